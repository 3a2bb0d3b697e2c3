"""Balanced hierarchical 2-means: N unit vectors into ceil(N / C) clusters whose sizes differ by at most one.

Takes: vectors_ND, a target size C, a seed.  Gives: an order of the rows in which each cluster is a run.
May import: seeds, shapes, data.labels.     Never: a Python call per cluster; a count rounded to a power of two.

Every level of the tree is split at once. 2-means runs on inner products only (a Gram matrix per node): on all points of
a node that has at most BLOCK of them, on a sample of a larger one, whose points are then split by its direction.
One Gram matrix of a small node serves all levels below it. Cost O(N D log(N / BLOCK) + N BLOCK D), NGAME appendix C.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from xc_core.data.labels import ragged_positions
from xc_core.errors import ConfigError
from xc_core.seeds import torch_generator
from xc_core.shapes import F32, I64

BLOCK: Final = 256
"""Points of a node from which on the whole Gram matrix is used; also the sample size of larger nodes."""
ROUNDS: Final = 8
"""2-means rounds; on title embeddings the split rarely moves after 6."""
_ROWS_AT_ONCE: Final = 1 << 15
_NODES_AT_ONCE: Final = 64
"""Nodes whose Gram matrices are in memory together: 64 x 256 x 256 x 4 bytes = 16 MB."""


Node = tuple[int, int]
"""A tree node: its first cluster and the one after its last."""


def cluster_sizes(num_points: int, target: int) -> I64:
    """Return the sizes of ceil(N / C) clusters, all floor or ceil of the mean size."""
    count = -(-num_points // target)
    return np.full(count, num_points // count, np.int64) + (np.arange(count) < num_points % count)


def balanced_clusters(vectors_ND: F32, target: int, seed: int) -> tuple[I64, I64]:
    """Return (order_N, sizes): rows in an order in which cluster j is the j-th run, of ``sizes[j]`` rows.

    Neighbouring runs come from neighbouring leaves of the tree, so a run of clusters is a larger cluster.
    The same vectors, target and seed give the same result. Raises ConfigError for a target below 1.
    """
    if target < 1:
        raise ConfigError(f"cluster size {target}", expected="at least 1", do="raise it")
    size = len(vectors_ND)
    if size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    leaves = cluster_sizes(size, target)
    order = np.arange(size, dtype=np.int64)
    edges = np.concatenate([[0], np.cumsum(leaves)])
    random = torch_generator(seed, "clusters")
    vectors = torch.from_numpy(np.ascontiguousarray(vectors_ND))
    nodes = [(0, len(leaves))]
    while large := [node for node in nodes if _points(node, edges) > BLOCK and node[1] - node[0] > 1]:
        for start in range(0, len(large), _NODES_AT_ONCE):
            _split_large(large[start : start + _NODES_AT_ONCE], order, vectors, edges, random)
        split = set(large)
        nodes = [half for node in nodes for half in (_halves(node) if node in split else (node,))]
    _split_small([node for node in nodes if node[1] - node[0] > 1], order, vectors, edges, random)
    return order, leaves


def _points(node: Node, edges: I64) -> int:
    return int(edges[node[1]] - edges[node[0]])


def _halves(node: Node) -> tuple[Node, Node]:
    first, last = node
    middle = first + (last - first) // 2
    return (first, middle), (middle, last)


def _split_large(nodes: list[Node], order: I64, vectors: Tensor, edges: I64, random: torch.Generator) -> None:
    """Sort the points of each node (more than BLOCK of them) along the direction 2-means finds on a sample of it."""
    begins = np.array([edges[first] for first, _ in nodes])
    counts = np.array([_points(node, edges) for node in nodes])
    share = torch.tensor([_points(_halves(node)[0], edges) for node in nodes]) / torch.from_numpy(counts)
    stratum = (torch.arange(BLOCK) + torch.rand(len(nodes), BLOCK, generator=random)) / BLOCK
    picks = begins[:, None] + np.minimum(
        (stratum.double().numpy() * counts[:, None]).astype(np.int64), counts[:, None] - 1
    )
    sample = vectors[torch.from_numpy(order[picks])]
    left = (share * BLOCK).round().long().clamp(1, BLOCK - 1)
    weights = _two_means(sample @ sample.transpose(1, 2), torch.full((len(nodes),), BLOCK), left, random)[1]
    directions = torch.bmm(weights.unsqueeze(1), sample).squeeze(1)
    places = ragged_positions(begins, counts)
    node_of = np.repeat(np.arange(len(nodes)), counts)
    rows = order[places]
    scores = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        own = directions[torch.from_numpy(node_of[part])]
        scores[part] = torch.einsum("nd,nd->n", vectors[torch.from_numpy(rows[part])], own).numpy()
    order[places] = rows[np.lexsort((scores, node_of))]


def _split_small(nodes: list[Node], order: I64, vectors: Tensor, edges: I64, random: torch.Generator) -> None:
    """Finish nodes of at most BLOCK points (or of one cluster), many at a time, on their Gram matrices alone."""
    for start in range(0, len(nodes), _NODES_AT_ONCE):
        part = nodes[start : start + _NODES_AT_ONCE]
        counts = torch.tensor([_points(node, edges) for node in part])
        width = int(counts.max())
        begins = np.array([edges[node[0]] for node in part])
        places = begins[:, None] + np.arange(width)[None, :]
        rows = order[np.minimum(places, len(order) - 1)]
        block = vectors[torch.from_numpy(rows)]
        gram = block @ block.transpose(1, 2)
        final = _descend(gram, counts, part, edges, random)
        for j, node in enumerate(part):
            size = _points(node, edges)
            order[begins[j] : begins[j] + size] = rows[j][final[j][:size]]


def _descend(gram: Tensor, counts: Tensor, nodes: list[Node], edges: I64, random: torch.Generator) -> list[I64]:
    """Return, for each node, its local point numbers in leaf order; splits level by level inside the Gram matrices."""
    width = gram.shape[1]
    members = [torch.arange(width).expand(len(nodes), width)]
    live_gram, live_counts, live_members, live_nodes = gram, counts, members[0], list(nodes)
    owner = list(range(len(nodes)))
    done: list[dict[int, Tensor]] = [{} for _ in nodes]
    while live_nodes:
        middles = [first + (last - first) // 2 for first, last in live_nodes]
        left = torch.tensor([int(edges[m] - edges[n[0]]) for n, m in zip(live_nodes, middles, strict=True)])
        ranked = _two_means(live_gram, live_counts, left, random)[0]
        sides: list[tuple[Tensor, Tensor, Tensor, list[Node], list[int]]] = []
        for right_side in (False, True):
            sizes = live_counts - left if right_side else left
            span = torch.arange(int(sizes.max()))
            offset = left[:, None] if right_side else torch.zeros_like(left)[:, None]
            local = ranked.gather(1, (offset + span).clamp(max=ranked.shape[1] - 1))
            below = [(m, n[1]) if right_side else (n[0], m) for n, m in zip(live_nodes, middles, strict=True)]
            sides.append((local, sizes, live_members.gather(1, local), below, owner))
        live_gram, live_counts, live_members, live_nodes, owner = _keep_unfinished(live_gram, sides, done)
    return [torch.cat([parts[key] for key in sorted(parts)]).numpy() for parts in done]


def _keep_unfinished(
    gram: Tensor,
    sides: list[tuple[Tensor, Tensor, Tensor, list[Node], list[int]]],
    done: list[dict[int, Tensor]],
) -> tuple[Tensor, Tensor, Tensor, list[Node], list[int]]:
    """Put nodes of one cluster into ``done``; return the Gram matrices of the rest, cut to their points."""
    width = max(local.shape[1] for local, *_ in sides)
    grams, counts, members, nodes, owners = [], [], [], [], []
    for local, sizes, member, below, owner in sides:
        for j, node in enumerate(below):
            if node[1] - node[0] == 1:
                done[owner[j]][node[0]] = member[j, : int(sizes[j])]
        alive = torch.tensor([j for j, node in enumerate(below) if node[1] - node[0] > 1], dtype=torch.long)
        if len(alive):
            pad = (0, width - local.shape[1])
            at = torch.nn.functional.pad(local[alive], pad)
            grams.append(gram[alive[:, None, None], at[:, :, None], at[:, None, :]])
            members.append(torch.nn.functional.pad(member[alive], pad))
            counts.append(sizes[alive])
            nodes += [below[j] for j in alive.tolist()]
            owners += [owner[j] for j in alive.tolist()]
    if not nodes:
        return gram[:0], torch.zeros(0, dtype=torch.long), torch.zeros(0, 0, dtype=torch.long), [], []
    return torch.cat(grams), torch.cat(counts), torch.cat(members), nodes, owners


def _two_means(gram: Tensor, counts: Tensor, left: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Run balanced 2-means on J Gram matrices (J x M x M), the first ``counts[j]`` points of each being real.

    Returns (ranked, weights): point numbers by rising projection, the first ``left[j]`` being the left half; and the
    coefficients a of the direction sum_i a_i x_i = mean(right) - mean(left) (J x M each).
    """
    nodes, width, _ = gram.shape
    real = torch.arange(width)[None, :] < counts[:, None]
    seed = (torch.rand(nodes, generator=random) * counts).long().clamp(max=width - 1)
    row = gram.gather(1, seed.view(-1, 1, 1).expand(-1, 1, width)).squeeze(1)
    far = row.masked_fill(~real, torch.inf).argmin(1)
    weights = torch.zeros(nodes, width)
    weights.scatter_(1, seed[:, None], -1.0)
    weights.scatter_add_(1, far[:, None], torch.ones(nodes, 1))
    is_left = torch.zeros(nodes, width, dtype=torch.bool)
    for _ in range(ROUNDS):
        scores = torch.bmm(gram, weights.unsqueeze(2)).squeeze(2).masked_fill(~real, torch.inf)
        ranked = scores.argsort(dim=1, stable=True)
        now_left = torch.zeros_like(is_left).scatter_(1, ranked, torch.arange(width)[None, :] < left[:, None])
        now_left &= real
        right = real & ~now_left
        weights = right / right.sum(1, keepdim=True).clamp(min=1) - now_left / now_left.sum(1, keepdim=True).clamp(
            min=1
        )
        if torch.equal(now_left, is_left):
            break
        is_left = now_left
    return ranked, weights
