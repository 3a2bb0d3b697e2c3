"""A table that is spread over processes: each label has one place in one process, and what is cut comes back whole."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from xc_core.classifiers import Shard
from xc_core.distributed import World
from xc_core.sampling import LabelPool

LABELS = 11  # no multiple of 2 to 4: processes have different numbers of labels


@dataclass(frozen=True)
class Played(World):
    """A process whose exchange returns what the other ones are known to send."""

    sent: list[torch.Tensor] = field(default_factory=list)

    def stacked(self, tensor: torch.Tensor) -> torch.Tensor:
        assert torch.equal(self.sent[self.rank], tensor)
        return torch.stack(self.sent)


def padded(tensors: list[torch.Tensor], dim: int, size: int) -> list[torch.Tensor]:
    """Return tensors with zeros up to ``size`` entries in the dimension ``dim``."""
    out = []
    for tensor in tensors:
        shape = list(tensor.shape)
        shape[dim] = size - shape[dim]
        out.append(torch.cat([tensor, torch.zeros(shape)], dim))
    return out


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_label_has_a_place_in_one_process(size: int) -> None:
    labels, found = np.arange(LABELS), []
    for rank in range(size):
        shard = Shard(World(rank, size), LABELS)
        own = labels[shard.owned(labels)]
        assert np.array_equal(shard.of(labels.astype(np.float32)), own), "the rows of its labels"
        assert np.array_equal(shard.places(own), np.arange(len(own))), "in their order, without gaps"
        assert np.array_equal(shard.labels(torch.arange(len(own))).numpy(), own)
        found += own.tolist()
    assert sorted(found) == labels.tolist()


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 7, 8, 10], [1, 4, 7, 10], [2]])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_scores_of_all_processes_become_those_of_the_pool(size: int, labels: list[int]) -> None:
    """Also if a process has no label of the pool."""
    labels_U = np.array(labels)
    all_BU = torch.arange(4.0 * len(labels)).view(4, -1) + 1
    known_BU = np.zeros((4, len(labels)), bool)
    pool = LabelPool(labels_U, known_BU, known_BU)
    shards = [Shard(World(rank, size), LABELS) for rank in range(size)]
    own = [shard.own_columns(all_BU, labels_U) for shard in shards]
    assert [part.shape[1] for part in own] == [len(shard.cut(pool).labels_U) for shard in shards]
    widest = max(part.shape[1] for part in own)
    for rank, part in enumerate(own):
        shard = Shard(Played(rank, size, padded(own, 1, widest)), LABELS)
        assert torch.equal(shard.columns(part, labels_U), all_BU)


@pytest.mark.parametrize("block", [slice(0, 2), slice(2, 4), slice(0, 4)])
def test_rows_of_all_processes_are_gathered_in_the_order_of_labels(block: slice) -> None:
    """The last block has a position that only some of the processes have."""
    rows_LD, size = torch.arange(LABELS * 3.0).view(LABELS, 3) + 1, 3
    own = [rows_LD[rank::size][block] for rank in range(size)]
    for rank, part in enumerate(own):
        shard = Shard(Played(rank, size, padded(own, 0, block.stop - block.start)), LABELS)
        assert torch.equal(shard.gather(part, block), rows_LD[block.start * size : block.stop * size])
