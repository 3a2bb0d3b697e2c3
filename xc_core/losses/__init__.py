"""Scores and a mask of positives to a number to be minimised; importing this fills the table of losses."""

from xc_core.losses import softmax, triplet
from xc_core.losses.base import LOSSES, Loss, LossConfig

__all__ = ["LOSSES", "Loss", "LossConfig", "softmax", "triplet"]
