"""Sampling: which documents share a mini-batch, and which labels they are scored against.

To add an order or a source of negatives, add a module to this folder; importing the package registers all of them.
"""

from xc_core.plugins import import_all
from xc_core.sampling.base import (
    NEGATIVES,
    ORDERS,
    ROWS,
    TEXTS,
    BatchOrder,
    Documents,
    LabelPool,
    LabelVectors,
    Negatives,
    NegativeSource,
    Order,
    PairPool,
    Pool,
)
from xc_core.sampling.drawn import Frequency, Tree, Uniform
from xc_core.sampling.importance import Importance
from xc_core.sampling.label_tree import LabelTree
from xc_core.sampling.mining import audit_batches, hard_negatives, missed_by_pools, search_negatives
from xc_core.sampling.negatives import All, InBatch, Mixture
from xc_core.sampling.noise import Noise, load_noise, save_noise
from xc_core.sampling.order import Clustered, Random, StoredClusters
from xc_core.sampling.searched import Mined, Stored, load_random

import_all(__name__, __path__)

__all__ = [
    "NEGATIVES",
    "ORDERS",
    "ROWS",
    "TEXTS",
    "All",
    "BatchOrder",
    "Clustered",
    "Documents",
    "Frequency",
    "Importance",
    "InBatch",
    "LabelPool",
    "LabelTree",
    "LabelVectors",
    "Mined",
    "Mixture",
    "NegativeSource",
    "Negatives",
    "Noise",
    "Order",
    "PairPool",
    "Pool",
    "Random",
    "Stored",
    "StoredClusters",
    "Tree",
    "Uniform",
    "audit_batches",
    "hard_negatives",
    "load_noise",
    "load_random",
    "missed_by_pools",
    "save_noise",
    "search_negatives",
]
