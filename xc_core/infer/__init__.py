"""From vectors or texts to ranked labels."""
