"""A graph for a few queries at once and exact search for many: what is served above 20,000 labels.

Effort and recall are measured when the index is built. The number of queries from which exact search is faster follows
from the vectors that the graph compares per query, not from a clock, so equal vectors give equal files. All of it is
stored, so a saved index always searches in the same way, and as many queries as share a pass of a server are searched
alike. The graph is built by one thread: with more, its links differ from build to build.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np

from xc_core.ann.base import INDEXES, HasAlwaysExact, HasExactly, HasExtended, Index, IndexPart, checked
from xc_core.ann.exact import Exact, ExactIndex
from xc_core.ann.graph import add
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
_EFFORTS: Final = (100, 112, 128, 144, 160, 192, 256, 384, 512)
TOGETHER: Final = 32
"""Queries at once that are all searched alike, as many as texts share a pass of a server (``Limits.max_batch``): the
answer to one must not depend on how many others came with it."""
_SIZES: Final = (64, 32, 16, 8, 4, 2, 1)
"""Numbers of queries at once for which the costs of both searches are compared."""


@dataclass(frozen=True)
class GraphFacts:
    """What was measured when the graph was built."""

    effort: int
    """Candidates kept while searching (efSearch)."""
    recall: float
    """Recall at 100 of the graph against exact search, with label vectors as queries."""
    few: int
    """Largest number of queries at once for which the graph is faster; 0 if exact search is faster for one."""

    @property
    def most(self) -> int:
        """Largest number of queries at once that the graph answers."""
        return max(self.few, TOGETHER) if self.few else 0


class BothIndex(HasAlwaysExact, HasExactly, HasExtended):
    """The vectors and a graph over them."""

    def __init__(self, exact: ExactIndex, graph: Any, facts: GraphFacts, part: Both) -> None:
        self.exact, self.graph, self.facts, self.part = exact, graph, facts, part
        self.vectors_LD: F32 | None = None
        self.size, self.width = self.exact.size, self.exact.width

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query: approximately for up to ``facts.most`` queries, exactly for more."""
        if len(queries_BD) > self.facts.most or not 0 < k <= self.facts.effort:
            return self.exact.search(queries_BD, k)
        return _search_graph(self.graph, self.facts.effort, checked(queries_BD, self.width, k), k)

    @property
    def always_exact(self) -> bool:
        """True if the graph answers no query."""
        return self.facts.most == 0

    def exactly(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query by exact search."""
        return self.exact.search(queries_BD, k)

    def extended(self, vectors_ND: F32) -> BothIndex:
        """Return a copy with more vectors; its effort is measured again, from the present one on."""
        graph, part = _FAISS.clone_index(self.graph), self.part
        with _one_thread():
            add(graph, np.ascontiguousarray(vectors_ND, np.float32))
        all_LD = np.concatenate([self.exact.vectors_LD, vectors_ND])
        return _with_measured_effort(all_LD, graph, part, self.facts.effort)

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
        with _one_thread():
            graph.train(vectors_LD)
            add(graph, vectors_LD)
        return _with_measured_effort(vectors_LD, graph, self)

    def load(self, folder: Path, width: int) -> Index:
        """Read the graph; the vectors are memory-mapped."""
        facts = GraphFacts(**json.loads((folder / _FACTS).read_text("utf-8")))
        exact = Exact().load(folder, width)
        graph = faiss.read_index(str(folder / _GRAPH))
        if graph.ntotal != exact.size:
            raise ValueError(f"a graph of {graph.ntotal} labels and {exact.size} vectors")
        return BothIndex(exact, graph, facts, self)


def _with_measured_effort(vectors_LD: F32, graph: Any, part: Both, first: int = _EFFORTS[0]) -> BothIndex:
    """Return the index with the effort that its recall needs, measured with some of its vectors as queries."""
    exact = ExactIndex(vectors_LD)
    rows = generator(0, "graph").choice(exact.size, min(_SAMPLE, exact.size), replace=False)
    return BothIndex(exact, graph, _least_effort(graph, exact, vectors_LD[np.sort(rows)], part.recall, first), part)


def _search_graph(graph: Any, effort: int, queries_BD: F32, k: int) -> Shortlist:
    parameters = _FAISS.SearchParametersHNSW(efSearch=effort)
    scores, ids = graph.search(queries_BD, min(k, graph.ntotal), params=parameters)
    return Shortlist.ranked(ids.astype(np.int64), scores).top(k)


def _least_effort(graph: Any, exact: ExactIndex, queries_SD: F32, target: float, first: int) -> GraphFacts:
    """Return the least effort whose recall reaches ``target``; if none does, the largest effort, for no queries.

    The search begins at the effort ``first`` and goes up, or down while the recall, which rises with effort, suffices.
    """
    true = exact.search(queries_SD, _FOUND)

    def measure(index: int) -> GraphFacts:
        _FAISS.cvar.hnsw_stats.reset()
        measured = recall(_search_graph(graph, _EFFORTS[index], queries_SD, _FOUND), true)
        compared = _FAISS.cvar.hnsw_stats.ndis / len(queries_SD)
        queries = few(exact.size, exact.width, compared) if measured >= target else 0
        return GraphFacts(_EFFORTS[index], measured, queries)

    index = min(bisect_left(_EFFORTS, first), len(_EFFORTS) - 1)
    best, down = measure(index), index - 1
    while best.recall < target and index + 1 < len(_EFFORTS):
        index, down = index + 1, -1
        best = measure(index)
    while best.recall >= target and down >= 0 and (lower := measure(down)).recall >= target:
        best, down = lower, down - 1
    return best


def few(labels: int, width: int, compared: float) -> int:
    """Return the largest number of queries at once for which the graph is faster; 0 if exact search always is.

    ``compared``: vectors that the graph compares per query. Costs in ns, measured on an Intel Xeon with AVX-512
    (docs/lab-notes/2026-11-22-search-and-answers.md): the graph waits for each vector that it reads, exact search reads
    all of them once for all queries.
    """
    for queries in _SIZES:
        graph = queries * compared * (40 + 0.25 * width)
        if graph < labels * width * (0.35 + 0.022 * queries):
            return queries
    return 0


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = _FAISS.omp_get_max_threads()
    _FAISS.omp_set_num_threads(1)
    try:
        yield
    finally:
        _FAISS.omp_set_num_threads(threads)
