"""Vectors are added to a graph with progress: the graph does not change, and a signal ends the call."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Final

import faiss
import numpy as np
import pytest

from tests.arrays import unit
from xc_core import progress
from xc_core.ann import Exact, Hnsw, exact_search, faiss_index, graph
from xc_core.ann.both import _one_thread
from xc_core.shapes import F32, I32, I64

_FAISS: Final[Any] = faiss  # its type hints miss what is used here


def vectors(size: int, width: int) -> F32:
    return np.random.default_rng(0).standard_normal((size, width), np.float32)


def empty(width: int, effort: int) -> Any:
    made = _FAISS.IndexHNSWFlat(width, 8, _FAISS.METRIC_INNER_PRODUCT)
    made.hnsw.efConstruction = effort
    return made


def first_links(made: Any) -> tuple[I32, I64]:
    """Return all links of a graph, as a view, and where those of each node begin."""
    links = _FAISS.rev_swig_ptr(made.hnsw.neighbors.data(), made.hnsw.neighbors.size())
    return links, _FAISS.vector_to_array(made.hnsw.offsets)[:-1].astype(np.int64)


class Slow:
    """A graph that waits while a quarter of its new nodes have no links, until that is reported."""

    def __init__(self, inner: Any, lines: list[str]) -> None:
        self.inner, self.hnsw, self.lines = inner, inner.hnsw, lines

    @property
    def ntotal(self) -> int:
        return int(self.inner.ntotal)

    def add(self, data: F32) -> None:
        self.inner.add(data)
        links, starts = first_links(self.inner)
        at, ends = starts[-len(data) // 4 :], time.monotonic() + 20
        kept, links[at] = links[at], -1
        while not any("75 %" in line for line in self.lines) and time.monotonic() < ends:
            time.sleep(0.005)
        links[at] = kept


@pytest.mark.parametrize("before", [0, 40])
def test_progress_is_that_of_the_new_nodes_and_the_graph_that_of_one_call(
    before: int, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    monkeypatch.setattr(graph, "_LOOK_SECONDS", 0.005)
    monkeypatch.setattr(progress, "_pace", 0.0)
    data, plain, shown = vectors(240, 8), empty(8, 40), empty(8, 40)
    with _one_thread():
        for made in (plain, shown):
            made.add(data[:before])
        plain.add(data[before:])
        graph.add(Slow(shown, lines), data[before:])
    assert np.array_equal(_FAISS.serialize_index(plain), _FAISS.serialize_index(shown))
    size = 240 - before
    assert any(line.startswith(f"building a graph: 75 % ({size * 3 // 4} of {size} vectors)") for line in lines)
    assert any(line.startswith(f"building a graph: 100 % ({size} of {size} vectors)") for line in lines)


def test_no_link_is_read_before_there_is_a_table_of_all_nodes() -> None:
    made = empty(8, 40)
    with _one_thread():
        made.add(vectors(9, 8))
    assert graph._linked(made.hnsw, [3, 7], 9) == 1.0
    made.hnsw.offsets.push_back(made.hnsw.offsets.at(9) + 16)  # a tenth node; its links come after
    assert graph._linked(made.hnsw, [3, 7], 9) == graph._linked(made.hnsw, [3, 7], 10) == 0.0


class StopError(KeyboardInterrupt):
    """What the handler of a signal raises."""


def test_a_signal_ends_the_call_before_all_vectors_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    linked = graph._linked

    def signalled(hnsw: Any, nodes: list[int], size: int) -> float:
        if hnsw.neighbors.size():
            os.kill(os.getpid(), signal.SIGUSR1)
        return linked(hnsw, nodes, size)

    def stop(*_: object) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise StopError

    monkeypatch.setattr(graph, "_linked", signalled)
    monkeypatch.setattr(graph, "_LOOK_SECONDS", 0.01)
    data, made, before = vectors(5_000, 384), empty(384, 2_000), signal.signal(signal.SIGUSR1, stop)
    try:
        with _one_thread(), pytest.raises(StopError):
            graph.add(made, data)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not any(thread.name == "graph" for thread in threading.enumerate()), "nobody reads the graph any more"
    links, starts = first_links(made)
    assert len(starts) == 5_000 and (links[starts] < 0).any()


def test_all_vectors_of_a_graph_are_searched_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_index, "_ROWS_AT_ONCE", 4)
    labels_LD, queries_BD = unit(vectors(6, 8)), vectors(3, 8)
    for k in (3, 9):
        found, expected = (exact_search(part.build(labels_LD), queries_BD, k) for part in (Hnsw(), Exact()))
        assert found is not None and expected is not None
        assert found.ids_NK.tolist() == expected.ids_NK.tolist()
