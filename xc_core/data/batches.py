"""Cutting many texts into batches of about equal cost: rows of like length together, a limit on padded tokens.

Takes: row numbers and their lengths.   Gives: lists of positions.
May import: shapes.                     Never: chooses which rows are trained on (sampling does).
"""

from __future__ import annotations

import numpy as np

from xc_core.shapes import I64


def by_length(lengths_N: I64, max_tokens: int) -> list[I64]:
    """Return positions in chunks, rising by length, each padded chunk holding at most ``max_tokens`` tokens.

    Every position appears once; a text longer than ``max_tokens`` is a chunk of its own. Equal lengths keep order.
    """
    order = np.argsort(lengths_N, kind="stable").astype(np.int64)
    sorted_lengths = np.asarray(lengths_N)[order]
    chunks, start = [], 0
    while start < len(order):
        # lengths rise, so no chunk has more rows than its first length allows, and cost rises along the window
        window = sorted_lengths[start : start + max(max_tokens // max(int(sorted_lengths[start]), 1), 1)]
        cost = np.arange(1, len(window) + 1) * window
        end = start + max(int(np.searchsorted(cost, max_tokens, side="right")), 1)
        chunks.append(order[start:end])
        start = end
    return chunks
