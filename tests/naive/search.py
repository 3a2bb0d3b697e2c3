"""Slow twins of search: one inner product at a time, a full sort, and recall by sets."""

from __future__ import annotations

import math

from xc_core.shapes import F32, PAD_ID, Shortlist


def nearest(vectors_LD: F32, queries_BD: F32, k: int) -> list[list[int]]:
    """The k labels of the largest inner product, in float64; equal ones by rising id."""
    labels, queries = vectors_LD.astype(float), queries_BD.astype(float)
    return [sorted(range(len(labels)), key=lambda i: (-float(query @ labels[i]), i))[:k] for query in queries]


def ranked(ids: list[int], scores: list[float]) -> list[tuple[int, float]]:
    """Ids and scores, highest score first, equal scores by rising id; PAD_ID last with -inf."""
    pairs = [(i, -math.inf if i == PAD_ID else score) for i, score in zip(ids, scores, strict=True)]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0] == PAD_ID, pair[0]))


def recall(found: Shortlist, true: Shortlist) -> float:
    """Share of the true labels found, document by document."""
    sets = [
        (set(a) - {PAD_ID}, set(b) - {PAD_ID}) for a, b in zip(found.ids_NK.tolist(), true.ids_NK.tolist(), strict=True)
    ]
    total = sum(len(wanted) for _, wanted in sets)
    return sum(len(got & wanted) for got, wanted in sets) / total if total else 1.0
