"""Inference: from texts or vectors to ranked labels."""
