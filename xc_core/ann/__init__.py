"""Maximum inner product search behind one contract; importing this fills the table of indexes."""

from xc_core.ann import exact, hnsw, ivf
from xc_core.ann.base import INDEXES, Index, IndexConfig, build_index, load_index, save_index
from xc_core.ann.recall import recall

__all__ = [
    "INDEXES",
    "Index",
    "IndexConfig",
    "build_index",
    "exact",
    "hnsw",
    "ivf",
    "load_index",
    "recall",
    "save_index",
]
