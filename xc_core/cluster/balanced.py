"""Balanced hierarchical 2-means: N unit vectors into ceil(N / C) clusters whose sizes differ by at most one.

The tree is built level by level. The nodes of a level have about the same size, and as many as fit into the cache are
split together. 2-means uses all points of a node; if there are more than SEEN, it uses a sample, whose direction then
splits them all. Cost O(N D log(N / C)), NGAME appendix C. ``on_card`` does the same on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from torch import Tensor

from xc_core.cluster.on_card import ordered
from xc_core.cluster.tree import ROUNDS, SEEN, cluster_sizes, levels, not_finite
from xc_core.errors import ConfigError
from xc_core.seeds import generator
from xc_core.shapes import F32, I64, Bool, spans

_TOGETHER: Final = 1024
"""Points of the nodes that are split together: 1024 x 384 x 4 bytes = 1.5 MB stay in the cache in all rounds."""


def balanced_clusters(vectors_ND: F32 | Tensor, target: int, seed: int) -> tuple[I64, I64]:
    """Return (order_N, sizes): the rows in an order such that cluster j is the j-th run, of ``sizes[j]`` rows.

    Neighbouring runs come from neighbouring leaves of the tree, so several consecutive clusters are a larger cluster.
    Vectors in a tensor are clustered on its device (``placed`` in ``on_card``). The same vectors, target, seed and
    device give the same result. Raises ConfigError for a target below 1 and for vectors that are not finite.
    """
    if target < 1:
        raise ConfigError(f"cluster size {target}", expected="at least 1", do="raise it")
    if not len(vectors_ND):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    sizes, random = cluster_sizes(len(vectors_ND), target), generator(seed, "clusters")
    if isinstance(vectors_ND, Tensor):
        return ordered(vectors_ND, sizes, random), sizes
    order = np.arange(len(vectors_ND), dtype=np.int64)
    for begin, middle, end in levels(sizes):
        for nodes in _node_groups(end - begin):
            _split(order, vectors_ND, begin[nodes], middle[nodes], end[nodes], random)
    return order, sizes


def _node_groups(counts_J: I64) -> Iterator[slice]:
    """Cut the nodes of a level into groups of about _TOGETHER points, at least one node each."""
    return spans(len(counts_J), max(_TOGETHER // int(counts_J.max()), 1))


def _split(order: I64, vectors_ND: F32, begin_J: I64, middle_J: I64, end_J: I64, random: np.random.Generator) -> None:
    """Sort the points of each node in ``order`` along the node's direction, so that its halves become runs."""
    counts, left_sizes = end_J - begin_J, middle_J - begin_J
    width = int(counts.max())
    if width > SEEN:
        rows = order[begin_J[0] : end_J[0]]
        sample = np.sort(random.choice(width, SEEN, replace=False))
        share = np.clip(left_sizes * SEEN // width, 1, SEEN - 1)
        direction = _two_means(vectors_ND[rows[sample]][None], np.array([SEEN]), share, random)[0]
        blocks = (vectors_ND[rows[start : start + SEEN]] for start in range(0, width, SEEN))
        scores = np.concatenate([_projections(block[None], direction[None])[0] for block in blocks])
        if not np.isfinite(scores).all():  # a point that the sample does not have
            raise not_finite()
        order[begin_J[0] : end_J[0]] = rows[np.argsort(scores, kind="stable")]
        return
    places = begin_J[:, None] + np.minimum(np.arange(width), counts[:, None] - 1)
    is_real = np.arange(width) < counts[:, None]
    rows = order[places]
    points = vectors_ND[rows]
    directions = _two_means(points, counts, left_sizes, random)
    ranked = _scores(points, directions, is_real).argsort(1, kind="stable")
    order[places[is_real]] = np.take_along_axis(rows, ranked, 1)[is_real]


def _scores(points_JMD: F32, direction_JD: F32, real_JM: Bool) -> F32:
    """Return each point's projection on its node's direction, infinity for padding (J x M)."""
    return np.where(real_JM, _projections(points_JMD, direction_JD), np.float32(np.inf))


def _lowest(scores_JM: F32, left_J: I64) -> Bool:
    """Return True for the ``left_J`` lowest scores of each node, the first of equal ones.

    Only nodes with equal scores on both sides are sorted: a partition takes less time.
    """
    limit_J = np.partition(scores_JM, np.unique(left_J), axis=1)[np.arange(len(left_J)), left_J]
    low_JM = scores_JM < limit_J[:, None]
    tied = np.flatnonzero(low_JM.sum(1) != left_J)
    ranked = scores_JM[tied].argsort(1, kind="stable")
    low_JM[tied[:, None], ranked] = np.arange(scores_JM.shape[1]) < left_J[tied, None]
    return low_JM


def _projections(points_JMD: F32, direction_JD: F32) -> F32:
    """Return each point's projection on its node's direction (J x M).

    OpenBLAS 0.3.31 with AVX-512 reports an invalid value for vectors of five dimensions although the product is right:
    its kernel also adds up a register that it has not set. ``_two_means`` checks the directions instead.
    """
    with np.errstate(invalid="ignore"):
        scores_JM: F32 = np.matmul(points_JMD, direction_JD[:, :, None])[:, :, 0]
    return scores_JM


def _two_means(points_JMD: F32, counts_J: I64, left_J: I64, random: np.random.Generator) -> F32:
    """Return the direction mean(right) - mean(left) that balanced 2-means finds in each of J nodes (J x D).

    The first ``counts_J`` points of a node are real, the others padding; its left half holds ``left_J`` of them. The
    start is a random point and the point furthest from it. A node is finished when its halves no longer change. Raises
    ConfigError if a direction is not finite: every point contributes to it.
    """
    nodes, width, _ = points_JMD.shape
    place = np.arange(width)
    start = points_JMD[np.arange(nodes), (random.random(nodes) * counts_J).astype(np.int64)]
    furthest = _scores(points_JMD, start, place < counts_J[:, None]).argmin(1)
    directions: F32 = points_JMD[np.arange(nodes), furthest] - start
    live, points, counts, left = np.arange(nodes), points_JMD, counts_J, left_J
    was_left = np.zeros((nodes, width), bool)
    for _ in range(ROUNDS):
        is_left = _lowest(_scores(points, directions[live], place < counts[:, None]), left)
        moved = (is_left != was_left).any(1)
        if not moved.any():
            break
        if 2 * np.count_nonzero(moved) <= len(moved):  # to drop nodes copies the points of all others
            live, points, counts, left, is_left = live[moved], points[moved], counts[moved], left[moved], is_left[moved]
        weight = np.where(is_left, -1 / left[:, None], 1 / (counts - left)[:, None])
        weight = np.where(place < counts[:, None], weight, 0.0).astype(np.float32)
        directions[live] = np.matmul(weight[:, None, :], points)[:, 0]
        was_left = is_left
    if not np.isfinite(directions).all():
        raise not_finite()
    return directions
