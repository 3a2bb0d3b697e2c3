"""Comparisons: a refresh of hard negatives, the best labels of as many documents, beside a graph of hnswlib."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
from click import ClickException

from benchmarks.cases.large import clustered, products_alone
from benchmarks.cases.table import case
from benchmarks.harness import Row, compare
from benchmarks.world import World
from xc_core.ann import Exact, recall
from xc_core.shapes import F32, I32, Shortlist

_K = 100
_QUERIES = 1024
"""Documents that are searched in each round; the time of all is in proportion."""
_RECALL = 0.99
"""Recall of the graph, at least: its ``ef`` is doubled until it is reached."""
_GRAPH = {"M": 32, "ef_construction": 200}


@case
def negatives(world: World) -> list[Row]:
    """The 100 best of the experiment's label and document vectors, 20,000 at most, for as many documents."""
    return _refresh(np.ascontiguousarray(np.concatenate([world.label_LD, world.doc_ND])[:20_000]))


@case
def large_negatives(world: World) -> list[Row]:
    """The same with 100,000 synthetic clustered vectors. The graph takes minutes to build."""
    return _refresh(clustered(100_000, 1))


def _refresh(label_LD: F32) -> list[Row]:
    """Compare searches of some documents, and from them refreshes of as many documents as there are labels.

    hnswlib builds its graph once, because that takes minutes; its time is part of a refresh.
    """
    size, width = label_LD.shape
    random = np.random.default_rng(0)
    queries = label_LD[random.choice(size, min(_QUERIES, size), replace=False)]
    queries = queries + random.standard_normal(queries.shape).astype(np.float32) * np.float32(0.3 / width**0.5)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    exact = Exact().build(label_LD)
    start = time.process_time()
    graph = _graph(label_LD)
    built = time.process_time() - start
    share = _tune(graph, queries, exact.search(queries, _K))
    what = f"{_K} best of {size:,} labels"
    ours = partial(exact.search, queries, _K)
    note = f"recall 1 and {share:.3f}"
    some = f"{what}, {len(queries):,} documents"
    search = compare(some, ours, "hnswlib, search", partial(_ids, graph, queries), note=note)
    floor = compare(some, ours, "products alone (floor)", products_alone(queries, label_LD)[1])
    times = size / len(queries)
    refresh = Row(
        f"{what}, {size:,} documents (by the row above)",
        search.ours * times,
        f"hnswlib, construction ({built:.0f} s) and search",
        built + search.seconds * times,
        note,
        search.spread,
    )
    return [search, refresh, floor]


def _graph(label_LD: F32) -> Any:
    """Return hnswlib's graph of the vectors, by inner products, built with one thread."""
    try:
        import hnswlib
    except ImportError:
        raise ClickException("no hnswlib here; pip install -r benchmarks/requirements-full.txt") from None
    graph = hnswlib.Index("ip", label_LD.shape[1])
    graph.init_index(len(label_LD), random_seed=0, **_GRAPH)
    graph.set_num_threads(1)
    graph.add_items(label_LD, num_threads=1)
    return graph


def _tune(graph: Any, queries: F32, truth: Shortlist) -> float:
    """Double the ``ef`` of the graph until its recall is that of ``_RECALL``; return it."""
    for ef in (_K << step for step in range(6)):
        graph.set_ef(ef)
        found = _ids(graph, queries)
        share = recall(Shortlist.ranked(found, np.zeros(found.shape, np.float32)), truth)
        if share >= _RECALL:
            break
    return share


def _ids(graph: Any, queries: F32) -> I32:
    ids: I32 = graph.knn_query(queries, _K, num_threads=1)[0].astype(np.int32)
    return ids
