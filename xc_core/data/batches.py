"""Batches of texts of similar length, with a limit on padded tokens; for encoding, where order does not matter."""

from __future__ import annotations

import numpy as np

from xc_core.shapes import I64


def by_length(lengths_N: I64, max_tokens: int) -> list[I64]:
    """Return positions in chunks by ascending length; a padded chunk has at most ``max_tokens`` tokens.

    Every position appears once. A text longer than ``max_tokens`` forms its own chunk. Equal lengths keep their order.
    """
    order = np.argsort(lengths_N, kind="stable").astype(np.int64)
    sorted_lengths = np.asarray(lengths_N)[order]
    chunks, start = [], 0
    while start < len(order):
        # lengths ascend: the first one bounds the number of rows, and the cost ascends within the window
        window = sorted_lengths[start : start + max(max_tokens // max(int(sorted_lengths[start]), 1), 1)]
        cost = np.arange(1, len(window) + 1) * window
        end = start + max(int(np.searchsorted(cost, max_tokens, side="right")), 1)
        chunks.append(order[start:end])
        start = end
    return chunks
