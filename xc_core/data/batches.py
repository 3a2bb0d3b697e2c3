"""Batches of texts of similar length, with a limit on padded tokens; for encoding, where order does not matter."""

from __future__ import annotations

import numpy as np

from xc_core.shapes import I64


def by_length(lengths_N: I64, max_tokens: int, pass_cost: int | None = None) -> list[I64]:
    """Return positions in chunks by ascending length; a padded chunk has at most ``max_tokens`` tokens.

    Every position appears once. A text longer than ``max_tokens`` forms its own chunk. Equal lengths keep their order.
    Without ``pass_cost`` chunks are as large as possible. With it they are cut to save padding: a chunk costs its
    padded tokens plus ``pass_cost``, and the sum is close to the smallest.
    """
    order = np.argsort(lengths_N, kind="stable").astype(np.int64)
    sorted_lengths = np.asarray(lengths_N)[order]
    ends = [len(order)] if pass_cost is None else _ends(sorted_lengths, max_tokens, pass_cost)
    chunks, start = [], 0
    for end in ends:
        while start < end:
            size = _fitting(sorted_lengths[start:end], max_tokens)
            chunks.append(order[start : start + size])
            start += size
    return chunks


def _fitting(lengths: I64, max_tokens: int) -> int:
    """Return how many of the ascending ``lengths`` a chunk can hold, at least 1."""
    # lengths ascend: the first one bounds the number of rows, and the cost ascends within the window
    window = lengths[: max(max_tokens // max(int(lengths[0]), 1), 1)]
    cost = np.arange(1, len(window) + 1) * window
    return max(int(np.searchsorted(cost, max_tokens, side="right")), 1)


def _ends(sorted_lengths: I64, max_tokens: int, pass_cost: int) -> list[int]:
    """Return where chunks should end, by dynamic programming over the distinct lengths: O(D^2) for D of them."""
    longest, starts = np.unique(sorted_lengths, return_index=True)
    ends = np.append(starts[1:], len(sorted_lengths))
    least_cost, previous = np.zeros(len(longest) + 1), np.zeros(len(longest), np.int64)
    for index, (length, end) in enumerate(zip(longest, ends, strict=False)):
        rows = end - starts[: index + 1]
        passes = -(-rows // max(max_tokens // max(int(length), 1), 1))
        cost = least_cost[: index + 1] + rows * length + pass_cost * passes
        previous[index] = np.argmin(cost)
        least_cost[index + 1] = cost[previous[index]]
    cuts, index = [], len(longest)
    while index:
        cuts.append(int(ends[index - 1]))
        index = int(previous[index - 1])
    return cuts[::-1]
