"""Which documents meet in a mini-batch, and which labels are scored against them; importing this fills the tables."""

from xc_core.sampling import drawn, negatives, order, searched
from xc_core.sampling.base import (
    NEGATIVES,
    ORDERS,
    BatchOrder,
    EveryLabel,
    LabelPool,
    NegativesConfig,
    NegativeSource,
    OrderConfig,
    Pool,
)
from xc_core.sampling.label_tree import LabelTree
from xc_core.sampling.mining import audit_batches, hard_negatives, missed_by_pools, search_rows
from xc_core.sampling.noise import Noise, load_noise, save_noise

__all__ = [
    "NEGATIVES",
    "ORDERS",
    "BatchOrder",
    "EveryLabel",
    "LabelPool",
    "LabelTree",
    "NegativeSource",
    "NegativesConfig",
    "Noise",
    "OrderConfig",
    "Pool",
    "audit_batches",
    "drawn",
    "hard_negatives",
    "load_noise",
    "missed_by_pools",
    "negatives",
    "order",
    "save_noise",
    "search_rows",
    "searched",
]
