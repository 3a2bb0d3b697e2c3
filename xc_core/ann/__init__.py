"""Maximum inner product search behind one contract; importing this fills the table of indexes.

torch comes before faiss: they then share one OpenMP runtime. The other way round each has its own, whose threads still
spin when the other's begin, and the first search after a text was encoded takes 7 ms instead of 0.6.
"""

import torch  # noqa: F401

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
