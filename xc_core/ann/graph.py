"""Adds vectors to a faiss graph (HNSW) and shows progress.

The vectors are added in one call: faiss inserts them in an order of its own, so blocks would give another graph. A
thread looks at a sample of the nodes meanwhile. faiss looks for signals itself, after every 100 million operations or
so, and then raises what the handler raised.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import faiss
import numpy as np

from xc_core.progress import Meter
from xc_core.shapes import F32

_FAISS: Final[Any] = faiss  # its type hints miss what is used here
_SAMPLE: Final = 256
"""New nodes that are looked at; the share with links is that of all, because the order of insertion is random."""
_LOOK_SECONDS: Final = 1.0


def add(graph: Any, vectors_ND: F32) -> None:
    """Add vectors (float32, contiguous) to an ``IndexHNSW``; the graph is the same as without progress.

    If a signal ends the call, the graph is unusable.
    """
    first, size, ended = int(graph.ntotal), len(vectors_ND), threading.Event()
    nodes = np.linspace(first, first + size - 1, min(_SAMPLE, size)).astype(np.int64).tolist()
    with Meter("building a graph", size, "vectors") as meter:

        def look() -> None:
            while not ended.wait(_LOOK_SECONDS):
                meter.update(round(size * _linked(graph.hnsw, nodes, first + size)) - meter.done)

        thread = threading.Thread(target=look, name="graph", daemon=True)
        thread.start()
        try:
            graph.add(vectors_ND)
        finally:
            ended.set()
            thread.join()
        meter.update(size - meter.done)


def _linked(hnsw: Any, nodes: list[int], size: int) -> float:
    """Return the share of ``nodes`` that have links; 0 as long as faiss has not made its tables for ``size`` nodes."""
    offsets, neighbors = hnsw.offsets, hnsw.neighbors
    if offsets.size() != size + 1 or neighbors.size() != offsets.at(size):
        return 0.0
    links = _FAISS.rev_swig_ptr(neighbors.data(), neighbors.size())
    return float(np.mean([links[offsets.at(node)] >= 0 for node in nodes]))
