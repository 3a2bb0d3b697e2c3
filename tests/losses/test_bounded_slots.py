"""Millions of pairs are numbered in a bounded address space."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.bounded import bounded
from xc_core.losses import AugmentReduce, Sampled


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
