"""Slots number pairs as a dict does, in a bounded address space."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.bounded import bounded
from xc_core.losses import AugmentReduce, Sampled
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


def two_million_pairs() -> Callable[[], None]:
    """Restore estimates of 2 M pairs and add the pairs of one more batch."""
    pairs = torch.cartesian_prod(torch.arange(2_000), torch.arange(1_000))
    state = {"eta_pairs": pairs, "log_eta": torch.zeros(len(pairs)), "eta_seen": torch.ones(len(pairs))}
    loss = AugmentReduce().build()

    def learn() -> None:
        loss.load(state)
        chosen = torch.zeros(2, 8, dtype=torch.bool)
        chosen[:, 0] = True
        where = Sampled(docs_B=torch.tensor([0, 5_000]), labels_U=torch.arange(8))
        loss(torch.rand(2, 8), chosen, chosen, where)
        assert len(loss.tensors()["eta_pairs"]) == len(pairs) + 1

    return learn


def test_two_million_pairs_need_no_object_each() -> None:
    """A dict of tuples takes 500 MB."""
    bounded(two_million_pairs, megabytes=360)
