"""Searches the settings of a recipe with Optuna, on validation documents alone (``xc tune``)."""
