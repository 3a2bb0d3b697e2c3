"""Slots number pairs as a dict does."""

from __future__ import annotations

import numpy as np
import pytest

from xc_core.losses.slots import Slots


@pytest.mark.parametrize("seed", range(3))
def test_pairs_are_numbered_as_by_a_dict(seed: int) -> None:
    """New and known pairs, repeated ones, ids up to 2^31 - 1, and a table that grows on the way."""
    random, slots, twin = np.random.default_rng(seed), Slots(), dict[tuple[int, int], int]()
    highest = 2**31 - 1
    for size in (0, 1, 300, 700, 4_000, 3):
        docs, labels = random.integers(0, 40, size), random.integers(0, 90, size)
        docs, labels = np.where(docs > 30, highest - docs, docs), np.where(labels > 60, highest - labels, labels)
        wanted = [twin.setdefault(pair, len(twin)) for pair in zip(docs.tolist(), labels.tolist(), strict=True)]
        assert slots.numbered(docs, labels).tolist() == wanted
        assert slots.size == len(twin)
    assert slots.pairs().tolist() == [list(pair) for pair in twin]
