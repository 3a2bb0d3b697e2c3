"""Graph search (HNSW) through faiss: a single query takes well under a millisecond for any number of labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import faiss

from xc_core.ann.base import INDEXES, Index, IndexPart
from xc_core.ann.faiss_index import FaissIndex, read
from xc_core.ann.graph import add
from xc_core.params import at_least, at_most
from xc_core.shapes import F32


@INDEXES.register("hnsw")
@dataclass(frozen=True, kw_only=True)
class Hnsw(IndexPart):
    """A graph of near labels.

    Links follow the inner product itself, for vectors of any length (Morozov and Babenko, NeurIPS 2018). faiss draws
    the levels of the graph from its fixed seed.
    """

    links: int = 32
    """Links per node (M)."""
    build_effort: int = 200
    """Candidates kept while building (efConstruction)."""
    search_effort: int = 200
    """Candidates kept while searching (efSearch)."""

    def __post_init__(self) -> None:
        at_least(self, links=1, build_effort=1, search_effort=1)
        at_most(self, links=1024, build_effort=1_000_000, search_effort=1_000_000)

    def _built(self, vectors_LD: F32) -> Index:
        graph = faiss.IndexHNSWFlat(vectors_LD.shape[1], self.links, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = self.build_effort
        graph.hnsw.efSearch = self.search_effort
        add(graph, vectors_LD)
        return FaissIndex(graph, vectors_LD.shape[1], self)

    def load(self, folder: Path, width: int) -> Index:
        """Read the graph."""
        graph = read(folder)
        graph.hnsw.efSearch = self.search_effort
        return FaissIndex(graph, width, self)
