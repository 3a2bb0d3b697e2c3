"""Losses: each maps the scores of a mini-batch and masks of its positives to a sum and a count.

To add a loss, add a module to this folder; importing the package registers all of them.
"""

from xc_core.losses.base import LOSSES, PLAIN, BatchLoss, Loss, OnHost, Sampled, Stateless
from xc_core.losses.bce import Bce
from xc_core.losses.negative_sampling import AugmentReduce, NegativeSampling, NoiseContrastive, OneVsEach
from xc_core.losses.ordered import Ordered
from xc_core.losses.softmax import DecoupledSoftmax, SupCon, WithBinary
from xc_core.losses.triplet import Triplet
from xc_core.plugins import import_all

import_all(__name__, __path__)

__all__ = [
    "LOSSES",
    "PLAIN",
    "AugmentReduce",
    "BatchLoss",
    "Bce",
    "DecoupledSoftmax",
    "Loss",
    "NegativeSampling",
    "NoiseContrastive",
    "OnHost",
    "OneVsEach",
    "Ordered",
    "Sampled",
    "Stateless",
    "SupCon",
    "Triplet",
    "WithBinary",
]
