"""Which documents meet in a mini-batch, and which labels are scored against them; importing this fills the tables."""

from xc_core.sampling import negatives, order
from xc_core.sampling.base import (
    NEGATIVES,
    ORDERS,
    BatchOrder,
    LabelPool,
    NegativesConfig,
    NegativeSource,
    OrderConfig,
)
from xc_core.sampling.label_tree import LabelTree
from xc_core.sampling.mining import audit_batches, hard_negatives

__all__ = [
    "NEGATIVES",
    "ORDERS",
    "BatchOrder",
    "LabelPool",
    "LabelTree",
    "NegativeSource",
    "NegativesConfig",
    "OrderConfig",
    "audit_batches",
    "hard_negatives",
    "negatives",
    "order",
]
