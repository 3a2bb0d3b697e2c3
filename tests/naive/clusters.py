"""Slow twins of clustering: balanced 2-means by recursion on the points themselves, cohesion and Theorem 1 by loops."""

from __future__ import annotations

import math

import numpy as np

from xc_core.shapes import F32, F64, I64


def balanced(vectors_ND: F32, target: int, seed: int, rounds: int = 100) -> list[list[int]]:
    """Clusters by recursive balanced 2-means in float64: all points in every round, until no point moves."""
    count = -(-len(vectors_ND) // target)
    sizes = [len(vectors_ND) // count + (j < len(vectors_ND) % count) for j in range(count)]
    return _split(
        vectors_ND.astype(np.float64), list(range(len(vectors_ND))), sizes, np.random.default_rng(seed), rounds
    )


def _split(points: F64, rows: list[int], sizes: list[int], random: np.random.Generator, rounds: int) -> list[list[int]]:
    if len(sizes) == 1:
        return [rows]
    middle = len(sizes) // 2
    left_size = sum(sizes[:middle])
    own = points[rows]
    first = own[random.integers(len(rows))]
    direction = own[np.argmin(own @ first)] - first
    before: set[int] = set()
    for _ in range(rounds):
        ranked = np.argsort(own @ direction, kind="stable")
        left, right = ranked[:left_size], ranked[left_size:]
        if set(left.tolist()) == before:
            break
        before = set(left.tolist())
        direction = own[right].mean(0) - own[left].mean(0)
    halves = ([rows[i] for i in left], sizes[:middle]), ([rows[i] for i in right], sizes[middle:])
    return [cluster for part, below in halves for cluster in _split(points, part, below, random, rounds)]


def clusters_of(order_N: I64, sizes: I64) -> list[list[int]]:
    """The runs of an order as lists."""
    return [part.tolist() for part in np.split(order_N, np.cumsum(sizes)[:-1])]


def cohesion(vectors_ND: F32, clusters: list[list[int]]) -> float:
    """Mean cosine over all pairs that share a cluster, by a double loop."""
    points = vectors_ND.astype(np.float64)
    cosines = [points[i] @ points[j] for cluster in clusters for i in cluster for j in cluster if i != j]
    return float(np.mean(cosines)) if cosines else math.nan


def cohesion_of_sums(vectors_ND: F32, clusters: list[list[int]]) -> float:
    """The same for many points, from the squared length of each cluster's sum."""
    points = vectors_ND.astype(np.float64)
    totals = [float(points[cluster].sum(0) @ points[cluster].sum(0)) - len(cluster) for cluster in clusters]
    return sum(totals) / sum(len(cluster) * (len(cluster) - 1) for cluster in clusters)


def theorem1(
    docs: F32, labels: F32, positives: list[set[int]], clusters: list[list[int]], radius: float, aside: list[set[int]]
) -> dict[str, float]:
    """Every figure of Theorem 1 over all documents, from Euclidean distances; labels ``aside`` are not negatives."""
    place = {i: j for j, cluster in enumerate(clusters) for i in cluster}
    size = len(docs)
    used = sorted(set().union(*positives))
    to_label = [[math.dist(x, z) for z in labels] for x in docs]
    pairs = [(i, x) for i in range(size) for x in positives[i]]
    apart = sum(
        math.dist(docs[i], docs[j]) <= 2 * radius and place[i] != place[j] for i in range(size) for j in range(size)
    )
    negatives = [(i, x) for i in range(size) for x in used if x not in positives[i] | aside[i]]
    hard = [(i, x) for i, x in negatives if to_label[i][x] <= radius]
    missed = [(i, x) for i, x in hard if not any(x in positives[j] for j in clusters[place[i]])]
    c1, c2 = constants(positives, used)
    eps1 = sum(to_label[i][x] > radius for i, x in pairs) / len(pairs)
    eps2 = apart / size**2
    return {
        "radius": radius,
        "eps1": eps1,
        "eps2": eps2,
        "missed": len(missed) / (size * len(used)),
        "missed_share": len(missed) / len(hard) if hard else math.nan,
        "c1": c1,
        "c2": c2,
        "bound": c1 * eps1 + c2 * eps2,
    }


def constants(positives: list[set[int]], used: list[int]) -> tuple[float, float]:
    """c1 and c2 of Theorem 4 over the labels ``used``."""
    size, width = len(positives), len(used)
    p = [len(y) for y in positives]
    q = [sum(x in y for y in positives) for x in used]
    ratio = [(size - n) / n for n in q]
    c1 = _mean(q) * (_mean(ratio) + _deviation(ratio) * math.sqrt(width)) / size
    c2 = (_mean(p) + _deviation(p) * math.sqrt(size)) * size / (min(q) * width)
    return c1, c2


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)


def _deviation(values: list[float] | list[int]) -> float:
    return math.sqrt(sum((v - _mean(values)) ** 2 for v in values) / len(values))
