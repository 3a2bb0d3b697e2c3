"""Comparisons on synthetic clustered vectors: searches of more labels than a small dataset has."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Final

import faiss
import numpy as np
import torch

from benchmarks.cases.table import case
from benchmarks.harness import Row, compare
from benchmarks.world import World
from xc_core.ann import Both, Exact, recall
from xc_core.devices import Device
from xc_core.shapes import F32, Shortlist

_LABELS: Final = 118_000
_WIDTH: Final = 384
_QUERIES: Final = 256
_K: Final = 100
_BLOCK: Final = 16_384


def clustered(size: int, seed: int) -> F32:
    """Return unit vectors around N / 20 common centres (N x 384)."""
    centres = np.random.default_rng(0).standard_normal((_LABELS // 20, _WIDTH), np.float32)
    random = np.random.default_rng(seed)
    vectors = centres[random.integers(0, len(centres), size)] + random.standard_normal((size, _WIDTH), np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def products_alone(queries: F32, labels: F32) -> tuple[str, Callable[[], None]]:
    """Return the number format of a search, and a function that computes its products without ranking anything."""
    name, kind = ("bf16", torch.bfloat16) if Device.chosen().multiplies_bf16() else ("fp32", torch.float32)
    left, right = torch.from_numpy(queries).to(kind), torch.from_numpy(labels).to(kind)
    out = torch.empty(len(left), min(_BLOCK, len(right)), dtype=kind)

    def products() -> None:
        for block in torch.split(right, _BLOCK):
            torch.mm(left, block.T, out=out[:, : len(block)])

    return name, products


@case
def large_search(world: World) -> list[Row]:
    """Search of 118,000 labels: a batch against faiss and against the products alone (the floor), and one query."""
    labels, queries = clustered(_LABELS, 1), clustered(_QUERIES, 2)
    exact, flat = Exact().build(labels), faiss.IndexFlatIP(_WIDTH)
    flat.add(labels)
    name, products = products_alone(queries, labels)

    def batch() -> Shortlist:
        return exact.search(queries, _K)

    graph = Both().build(labels)
    one_by_one = Shortlist.stack([graph.search(query[None], _K) for query in queries])
    note = f"recall {recall(one_by_one, batch()):.4f}"
    our_queries, their_queries = cycle(queries[:, None]), cycle(queries[:, None])
    what = f"{_K} best of {_LABELS:,} labels"
    return [
        compare(f"{what}, {_QUERIES} queries", batch, "faiss IndexFlatIP", lambda: flat.search(queries, _K)),
        compare(f"{what}, {_QUERIES} queries", batch, f"products in {name} alone (floor)", products),
        compare(
            f"{what}, 1 query", lambda: graph.search(next(our_queries), _K), "exact",
            lambda: exact.search(next(their_queries), _K), rounds=50, note=note,
        ),
    ]  # fmt: skip
