"""A graph for a few queries at once and exact search for many: what is served above 20,000 labels.

Effort, recall and the number of queries from which exact search is faster are measured when the index is built. They
are stored with it, so a saved index always searches in the same way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np

from xc_core.ann.base import INDEXES, Index, IndexPart, checked
from xc_core.ann.exact import ExactIndex
from xc_core.ann.recall import recall
from xc_core.params import at_least, at_most, below
from xc_core.seeds import generator
from xc_core.shapes import F32, Shortlist

_FAISS: Final[Any] = faiss  # its type hints miss what is used here
_GRAPH: Final = "graph.faiss"
_FACTS: Final = "graph.json"
_SAMPLE: Final = 256
"""Label vectors with which effort and recall are measured."""
_FOUND: Final = 100
"""Labels per query for which the recall is measured."""
_EFFORTS: Final = (100, 128, 192, 256, 384, 512)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of queries at once for which both searches are timed."""


@dataclass(frozen=True)
class GraphFacts:
    """What was measured when the graph was built."""

    effort: int
    """Candidates kept while searching (efSearch)."""
    recall: float
    """Recall at 100 of the graph against exact search, with label vectors as queries."""
    few: int
    """Largest number of queries at once that the graph answers; 0 if exact search is faster for one."""


class BothIndex:
    """The vectors and a graph over them."""

    def __init__(self, vectors_LD: F32, graph: Any, facts: GraphFacts, part: IndexPart) -> None:
        self.exact, self.graph, self.facts, self.part = ExactIndex(vectors_LD), graph, facts, part
        self.vectors_LD: F32 | None = None
        self.size, self.width = self.exact.size, self.exact.width

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query: approximately for up to ``facts.few`` queries, exactly for more."""
        if len(queries_BD) > self.facts.few or not 0 < k <= self.facts.effort:
            return self.exact.search(queries_BD, k)
        return _through(self.graph, self.facts.effort, checked(queries_BD, self.width, k), k)

    def save(self, folder: Path) -> None:
        """Write vectors, graph and facts."""
        self.exact.save(folder)
        faiss.write_index(self.graph, str(folder / _GRAPH))
        (folder / _FACTS).write_text(json.dumps(asdict(self.facts), sort_keys=True) + "\n", "utf-8")


@INDEXES.register("both")
@dataclass(frozen=True, kw_only=True)
class Both(IndexPart):
    """A graph (HNSW, vectors in half precision) for a few queries at once, exact search for many."""

    links: int = 32
    """Links per node (M)."""
    build_effort: int = 100
    """Candidates kept while building (efConstruction)."""
    recall: float = 0.99
    """Recall at 100 that the graph must reach with label vectors as queries, for which it is up to 0.01 higher than
    for documents; the least effort that reaches it is used, exact search if none does."""

    def __post_init__(self) -> None:
        at_least(self, links=1, build_effort=1, recall=0)
        at_most(self, links=1024, build_effort=1_000_000)
        below(self, recall=1)

    def _built(self, vectors_LD: F32) -> Index:
        width = vectors_LD.shape[1]
        graph = _FAISS.IndexHNSWSQ(width, _FAISS.ScalarQuantizer.QT_fp16, self.links, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = self.build_effort
        graph.train(vectors_LD)
        graph.add(vectors_LD)
        exact = ExactIndex(vectors_LD)
        rows = generator(0, "graph").choice(exact.size, min(_SAMPLE, exact.size), replace=False)
        queries = vectors_LD[np.sort(rows)]
        effort, found = _effort(graph, exact, queries, self.recall)
        few = _few(graph, exact, queries, effort) if found >= self.recall else 0
        return BothIndex(vectors_LD, graph, GraphFacts(effort, found, few), self)

    def load(self, folder: Path, width: int) -> Index:
        """Read the graph; the vectors are memory-mapped."""
        facts = GraphFacts(**json.loads((folder / _FACTS).read_text("utf-8")))
        vectors_LD = np.load(folder / "index.npy", mmap_mode="c", allow_pickle=False)
        graph = faiss.read_index(str(folder / _GRAPH))
        if graph.ntotal != len(vectors_LD):
            raise ValueError(f"a graph of {graph.ntotal} labels and {len(vectors_LD)} vectors")
        return BothIndex(vectors_LD, graph, facts, self)


def _through(graph: Any, effort: int, queries_BD: F32, k: int) -> Shortlist:
    how = _FAISS.SearchParametersHNSW(efSearch=effort)
    scores, ids = graph.search(queries_BD, min(k, graph.ntotal), params=how)
    return Shortlist.ranked(ids.astype(np.int64), scores).top(k)


def _effort(graph: Any, exact: ExactIndex, queries_SD: F32, wanted: float) -> tuple[int, float]:
    """Return the least effort whose recall is at least ``wanted``, else the largest; and its recall."""
    true, found = exact.search(queries_SD, _FOUND), 0.0
    for effort in _EFFORTS:
        found = recall(_through(graph, effort, queries_SD, _FOUND), true)
        if found >= wanted:
            return effort, found
    return effort, found


def _few(graph: Any, exact: ExactIndex, queries_SD: F32, effort: int) -> int:
    """Return the largest number of queries at once for which the graph takes less CPU time than exact search."""
    best = 0
    for size in _SIZES:
        queries_BD = queries_SD[:size]
        ours = _seconds(partial(_through, graph, effort, queries_BD, _FOUND))
        if ours >= _seconds(partial(exact.search, queries_BD, _FOUND)):
            break
        best = size
    return best


def _seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the least CPU time of ``repeats`` calls, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)
