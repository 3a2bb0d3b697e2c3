"""Balanced hierarchical 2-means and cohesion on a card: the tree, samples and starts of ``balanced``, by torch.

Nothing waits for the card before the end: positions of nodes are known without looking at the points, and 2-means
always takes all rounds, because a node that is finished keeps its halves. The vectors stay where they are; the points
of the nodes that are split together are copied. Tensors of the processor work too, for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from xc_core.cluster.tree import ROUNDS, SEEN, levels, not_finite
from xc_core.devices import Device, put
from xc_core.progress import report
from xc_core.shapes import F32, I64, spans

_COPIED: Final = 1 << 28
"""Numbers of the points that are copied together, 1 GiB (a guess): few operations to start, and it fits."""
_NODES: Final = 1 << 15
"""Nodes that are split together, at most: the limit of products in one call was 65,535 for a long time."""
_PER_POINT: Final = 128
"""Bytes per point for places, scores and the buffers of a sort; 41 to 120 without those of a card's sort
(docs/lab-notes/2026-11-30-clusters-on-a-card.md)."""


def placed(vectors_ND: F32 | Tensor, device: Device | None = None) -> F32 | Tensor:
    """Return the vectors where they are clustered: on the card of this process, or in an array if there is none.

    ``vectors_ND`` in a tensor of a card stay there. An array is copied to it once, in blocks. If the card has not
    enough free memory, the result is an array and the processor clusters; that is reported.
    """
    if isinstance(vectors_ND, Tensor):
        device = Device(str(vectors_ND.device))
    device = device or Device.chosen()
    if device.is_cpu:
        return vectors_ND.numpy() if isinstance(vectors_ND, Tensor) else vectors_ND
    size, width = vectors_ND.shape
    needed = memory_on_card(size, width, copied=not isinstance(vectors_ND, Tensor))
    if not device.keeps(needed):
        report(f"clusters of {size:,} vectors are made on the CPU: the GPU would need {needed / 1e9:.1f} GB for them")
        return vectors_ND.cpu().numpy() if isinstance(vectors_ND, Tensor) else vectors_ND
    return vectors_ND if isinstance(vectors_ND, Tensor) else _copied(vectors_ND, device)


def memory_on_card(size: int, width: int, *, copied: bool = True) -> int:
    """Return the bytes that clusters need on a card: vectors, if they are copied to it, points of nodes, and places.

    Nodes of a level are padded to the largest, which has up to half as many points again as the smallest.
    """
    return copied * 4 * size * width + 4 * min(_COPIED, 2 * size * width) + _PER_POINT * size


def _copied(vectors_ND: F32, device: Device) -> Tensor:
    """Return a copy on the device, made in blocks: a whole second copy in pinned memory would not fit everywhere."""
    out_ND = torch.empty(vectors_ND.shape, device=device.torch)
    for rows in spans(len(vectors_ND), max(_COPIED // 4 // max(vectors_ND.shape[1], 1), 1)):
        out_ND[rows] = put(np.array(vectors_ND[rows]), device.torch)
    return out_ND


def ordered(vectors_ND: Tensor, sizes: I64, random: np.random.Generator) -> I64:
    """Return the rows in an order such that cluster j is the j-th run, of ``sizes[j]`` rows.

    Raises ConfigError for vectors that are not finite.
    """
    order_N, finite = _sorted(vectors_ND, sizes, random)
    if not finite:
        raise not_finite()
    found_N: I64 = order_N.cpu().numpy()
    return found_N


def _sorted(vectors_ND: Tensor, sizes: I64, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return the order, and whether all projections were finite, both on the device; nothing is waited for."""
    (size, width), device = vectors_ND.shape, vectors_ND.device
    order = torch.arange(size + 1, device=device)  # the last place takes what is written for padding
    finite = torch.ones((), dtype=torch.bool, device=device)
    for begin, middle, end in levels(sizes):
        largest = min(int((end - begin).max()), SEEN)
        for nodes in spans(len(begin), _together(largest, width)):
            finite &= _split(order, vectors_ND, begin[nodes], middle[nodes], end[nodes], random)
    return order[:size], finite


def _together(points: int, width: int) -> int:
    """Return how many nodes (or clusters) of so many ``points`` are worked on together."""
    return max(min(_COPIED // max(points * width, 1), _NODES), 1)


def _split(
    order: Tensor, vectors_ND: Tensor, begin_J: I64, middle_J: I64, end_J: I64, random: np.random.Generator
) -> Tensor:
    """Sort the points of each node in ``order`` along the node's direction; return whether projections are finite."""
    counts_J, left_J, device = end_J - begin_J, middle_J - begin_J, order.device
    width = int(counts_J.max())
    begin_J1, counts_J1 = (put(part, device)[:, None] for part in (begin_J, counts_J))
    place_M = torch.arange(width, device=device)
    rows_JM = order[begin_J1 + torch.minimum(place_M, counts_J1 - 1)]
    real_JM = place_M < counts_J1
    sample_JS, start_J = _drawn(counts_J, random)
    seen_JS, large = rows_JM, counts_J > SEEN
    if sample_JS is not None:
        seen_JS = rows_JM.gather(1, put(sample_JS, device))
    share_J = np.where(large, np.clip(left_J * SEEN // counts_J, 1, SEEN - 1), left_J)
    directions_JD = _two_means(vectors_ND[seen_JS], np.minimum(counts_J, SEEN), share_J, start_J)
    scores_JM = _projections(vectors_ND, rows_JM, directions_JD)
    ranked_JM = _ranked(scores_JM, real_JM)
    targets_JM = (begin_J1 + place_M).masked_fill(~real_JM, len(order) - 1)
    order.scatter_(0, targets_JM.view(-1), rows_JM.gather(1, ranked_JM).view(-1))
    return scores_JM.isfinite().all()  # a point that no sample has is not in a direction


def _drawn(counts_J: I64, random: np.random.Generator) -> tuple[I64 | None, I64]:
    """Return the sampled places of each node (J x S), None for all places, and where 2-means starts among them.

    The draws are those of ``balanced``, in its order: for a node above SEEN points a sample, then its start.
    """
    nodes, width = len(counts_J), int(counts_J.max())
    if width <= SEEN:
        return None, (random.random(nodes) * counts_J).astype(np.int64)
    sample_JS = np.minimum(np.arange(SEEN), counts_J[:, None] - 1)
    uniform_J = np.empty(nodes)
    for node, count in enumerate(counts_J):
        if count > SEEN:
            sample_JS[node] = np.sort(random.choice(count, SEEN, replace=False))
        uniform_J[node] = random.random()
    return sample_JS, (uniform_J * np.minimum(counts_J, SEEN)).astype(np.int64)


def _two_means(points_JMD: Tensor, counts_J: I64, left_J: I64, start_J: I64) -> Tensor:
    """Return the direction mean(right) - mean(left) that balanced 2-means finds in each of J nodes (J x D).

    The first ``counts_J`` points of a node are real, the others repeat the last of them; its left half holds ``left_J``
    points. The start is the point at ``start_J`` and the one furthest from it. The halves of a finished node no longer
    change, so its direction stays.
    """
    nodes, width, _ = points_JMD.shape
    device = points_JMD.device
    counts_J1, left_J1, start_J1 = (put(part, device)[:, None] for part in (counts_J, left_J, start_J))
    place_M = torch.arange(width, device=device)
    real_JM = place_M < counts_J1
    left_weight, right_weight = (
        put((sign / np.maximum(part, 1)).astype(np.float32), device)[:, None]
        for sign, part in ((-1.0, left_J), (1.0, counts_J - left_J))
    )
    weight_JM = torch.where(place_M < left_J1, left_weight, right_weight).masked_fill(~real_JM, 0.0)
    at_J = torch.arange(nodes, device=device)
    start_JD = points_JMD[at_J, start_J1[:, 0]]
    scores_JM = torch.bmm(points_JMD, start_JD[:, :, None])[:, :, 0]
    furthest_J = scores_JM.argmin(1)  # padding repeats the last point
    directions_JD = points_JMD[at_J, furthest_J] - start_JD
    for _ in range(ROUNDS):
        ranked_JM = _ranked(torch.bmm(points_JMD, directions_JD[:, :, None])[:, :, 0], real_JM)
        own_JM = torch.empty_like(weight_JM).scatter_(1, ranked_JM, weight_JM)
        directions_JD = torch.bmm(own_JM[:, None, :], points_JMD)[:, 0]
    return directions_JD


def _ranked(scores_JM: Tensor, real_JM: Tensor) -> Tensor:
    """Return the places of each node by rising score, equal scores in the order of the points, padding last."""
    return scores_JM.masked_fill(~real_JM, torch.inf).argsort(dim=1, stable=True)


def _projections(vectors_ND: Tensor, rows_JM: Tensor, directions_JD: Tensor) -> Tensor:
    """Return each point's projection on its node's direction (J x M), on some points of all nodes at a time."""
    parts = [
        torch.bmm(vectors_ND[rows_JM[:, columns]], directions_JD[:, :, None])[:, :, 0]
        for columns in _columns(rows_JM, vectors_ND)
    ]
    return torch.cat(parts, 1)


def _columns(rows_JM: Tensor, vectors_ND: Tensor) -> Iterator[slice]:
    """Yield parts of the columns: so many points of all nodes are copied together."""
    nodes, width = rows_JM.shape
    return spans(width, max(_COPIED // max(nodes * vectors_ND.shape[1], 1), 1))


def squares(vectors_ND: Tensor, order_N: I64, sizes: I64) -> float:
    """Return the sum of |sum of a cluster|^2 over all clusters."""
    device, order = vectors_ND.device, put(order_N, vectors_ND.device)
    starts, largest = np.cumsum(sizes) - sizes, int(sizes.max())
    place_M = torch.arange(largest, device=device)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for clusters in spans(len(sizes), _together(largest, vectors_ND.shape[1])):
        starts_J1, sizes_J1 = (put(part[clusters], device)[:, None] for part in (starts, sizes))
        rows_JM = order[starts_J1 + torch.minimum(place_M, sizes_J1 - 1)]
        real_JM = (place_M < sizes_J1).to(vectors_ND.dtype)
        sums_JD = vectors_ND.new_zeros((len(rows_JM), vectors_ND.shape[1]))
        for columns in _columns(rows_JM, vectors_ND):
            sums_JD += torch.bmm(real_JM[:, None, columns], vectors_ND[rows_JM[:, columns]])[:, 0]
        total += sums_JD.double().square().sum()
    return float(total)
