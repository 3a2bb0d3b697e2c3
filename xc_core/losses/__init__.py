"""Scores and a mask of positives to a number to be minimised; importing this fills the table of losses."""

from xc_core.losses import bce, negative_sampling, softmax, triplet
from xc_core.losses.base import LOSSES, PLAIN, Loss, LossConfig, Sampled

__all__ = ["LOSSES", "PLAIN", "Loss", "LossConfig", "Sampled", "bce", "negative_sampling", "softmax", "triplet"]
