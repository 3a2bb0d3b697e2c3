"""Graph search (HNSW) through faiss: single queries in well under a millisecond at any number of labels.

Takes: vectors_LD.                        Gives: Index.
May import: ann.base, ann.faiss_index.    Never: batches of queries where exact search is faster (see ``auto``).
"""

from __future__ import annotations

from pathlib import Path

import faiss

from xc_core.ann.base import INDEXES, IndexConfig
from xc_core.ann.faiss_index import FaissIndex, read
from xc_core.shapes import F32


class Hnsw:
    """The family of HNSW indexes."""

    @staticmethod
    def build(vectors_LD: F32, config: IndexConfig) -> FaissIndex:
        """Insert all vectors; the levels of the graph are drawn by faiss from its fixed seed.

        Links follow the inner product itself, whatever the lengths (Morozov and Babenko, NeurIPS 2018).
        """
        inner = faiss.IndexHNSWFlat(vectors_LD.shape[1], config.links, faiss.METRIC_INNER_PRODUCT)
        inner.hnsw.efConstruction = config.build_effort
        inner.hnsw.efSearch = config.search_effort
        inner.add(vectors_LD)
        return FaissIndex(inner, vectors_LD.shape[1])

    @staticmethod
    def load(folder: Path, config: IndexConfig, width: int) -> FaissIndex:
        """Read the graph."""
        inner = read(folder)
        inner.hnsw.efSearch = config.search_effort
        return FaissIndex(inner, width)


INDEXES.add("hnsw", Hnsw)
