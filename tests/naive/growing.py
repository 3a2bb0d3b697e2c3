"""Support vector machines and clusters of sparse vectors by loops over dictionaries, written from the papers.

Hsieh et al., ICML 2008, algorithm 3 (dual coordinate descent with shrinking, L2 loss, C = 1), and spherical k-means. As
in omikuji, a pass draws an order of all documents, those set aside too.
"""

from __future__ import annotations

import math
from collections import defaultdict

Vector = dict[int, float]


def xorshift(state: int) -> int:
    """Return the next state (Marsaglia, 2003)."""
    state ^= state << 13 & (1 << 64) - 1
    state ^= state >> 7
    return state ^ (state << 17 & (1 << 64) - 1)


def dot(one: Vector, other: Vector) -> float:
    return sum(value * other.get(term, 0.0) for term, value in one.items())


def support_vector_machine(rows: list[Vector], signs: list[int], passes: int, state: int) -> Vector:
    """Return the weights; a document of sign 0 is no document."""
    order = [i for i, sign in enumerate(signs) if sign]
    weights: defaultdict[int, float] = defaultdict(float)
    duals = dict.fromkeys(order, 0.0)
    active, bound = len(order), math.inf
    for _ in range(passes):
        for last in range(len(order) - 1, 0, -1):
            state = xorshift(state)
            other = state % (last + 1)
            order[last], order[other] = order[other], order[last]
        projected: list[float] = []
        at = 0
        while at < active:
            i = order[at]
            gradient = signs[i] * dot(rows[i], weights) - 1 + duals[i] / 2
            if duals[i] == 0 and gradient > bound:
                active -= 1
                order[at], order[active] = order[active], order[at]
                continue
            projected.append(gradient if duals[i] > 0 else min(gradient, 0.0))
            if projected[-1]:
                before, duals[i] = duals[i], max(duals[i] - gradient / (dot(rows[i], rows[i]) + 0.5), 0.0)
                for term, value in rows[i].items():
                    weights[term] += (duals[i] - before) * signs[i] * value
            at += 1
        if max(projected, default=-math.inf) - min(projected, default=math.inf) > 0.1:
            bound = max(projected) if max(projected) > 0 else math.inf
        elif active == len(order):
            break
        else:
            active, bound = len(order), math.inf
    return dict(weights)


def clusters(vectors: list[Vector], starts: list[int], tolerance: float) -> list[int]:
    """Return a cluster of each unit vector; clusters of one are disbanded, the first of them first."""
    centroids = [vectors[start] for start in starts]
    before = -math.inf
    while True:
        cosines = [[dot(vector, centroid) for centroid in centroids] for vector in vectors]
        own = [row.index(max(row)) for row in cosines]
        mean = sum(row[cluster] for row, cluster in zip(cosines, own, strict=True)) / len(vectors)
        if mean - before < tolerance:
            break
        before = mean
        centroids = [
            _centroid([v for v, one in zip(vectors, own, strict=True) if one == c]) for c in range(len(starts))
        ]
    while len(set(own)) > 1 and (alone := [c for c in sorted(set(own)) if own.count(c) == 1]):
        moved = own.index(alone[0])
        others = sorted(set(own) - {alone[0]})
        own[moved] = max(others, key=lambda cluster: cosines[moved][cluster])
    return [sorted(set(own)).index(cluster) for cluster in own]


def _centroid(vectors: list[Vector]) -> Vector:
    total: defaultdict[int, float] = defaultdict(float)
    for vector in vectors:
        for term, value in vector.items():
            total[term] += value
    length = math.sqrt(sum(value**2 for value in total.values())) or 1.0
    return {term: value / length for term, value in total.items()}
