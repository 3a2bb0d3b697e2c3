"""A search that is spread over processes finds what one index of all labels finds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier

import numpy as np
import pytest
import torch
from torch import Tensor

from xc_core.ann import Exact, Hnsw, IndexPart, ShardedIndex, recall, spread
from xc_core.distributed import ALONE, World
from xc_core.errors import ConfigError
from xc_core.seeds import generator
from xc_core.shapes import F32, PAD_ID, Shortlist


@dataclass(frozen=True)
class Thread(World):
    """A process of a group, played by a thread."""

    meeting: Barrier = field(default_factory=lambda: Barrier(1))
    said: dict[int, Tensor] = field(default_factory=dict)

    def stacked(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all threads."""
        self.said[self.rank] = tensor
        self.meeting.wait()
        found = torch.stack([self.said[rank] for rank in range(self.size)])
        self.meeting.wait()
        return found


def searched(size: int, part: IndexPart, labels_LD: F32, queries_BD: F32, k: int) -> list[Shortlist]:
    """Return the answer of each of ``size`` processes."""
    meeting, said = Barrier(size), {}
    group = [Thread(rank, size, meeting, said) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda world: spread(part, labels_LD, world).search(queries_BD, k), group))


def vectors(labels: int, queries: int) -> tuple[F32, F32]:
    """Return unit vectors."""
    random = generator(0, "sharded")
    both = [random.standard_normal((n, 8)).astype(np.float32) for n in (labels, queries)]
    return both[0] / np.linalg.norm(both[0], axis=1, keepdims=True), both[1]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("k", [1, 7, 60])
def test_every_process_gets_the_answer_of_one_index(size: int, k: int) -> None:
    labels_LD, queries_BD = vectors(41, 1030)  # no multiple of 2, 3, 4; more queries than are exchanged at once
    labels_LD[20] = labels_LD[3]  # equal scores, in different processes
    expected = Exact().build(labels_LD).search(queries_BD, k)
    for found in searched(size, Exact(), labels_LD, queries_BD, k):
        np.testing.assert_array_equal(found.ids_NK, expected.ids_NK)
        np.testing.assert_allclose(found.scores_NK, expected.scores_NK, rtol=1e-5, atol=1e-6)


def test_more_processes_than_labels() -> None:
    labels_LD, queries_BD = vectors(3, 5)
    for found in searched(4, Exact(), labels_LD, queries_BD, 4):
        assert (found.ids_NK[:, 3] == PAD_ID).all()
        np.testing.assert_array_equal(found.ids_NK, Exact().build(labels_LD).search(queries_BD, 4).ids_NK)


def test_no_query_has_no_answer() -> None:
    labels_LD, _ = vectors(9, 0)
    assert [found.ids_NK.shape for found in searched(2, Exact(), labels_LD, labels_LD[:0], 4)] == [(0, 4), (0, 4)]


def test_graphs_of_the_parts_find_nearly_all() -> None:
    labels_LD, queries_BD = vectors(3000, 50)
    exact = Exact().build(labels_LD).search(queries_BD, 10)
    assert recall(searched(2, Hnsw(), labels_LD, queries_BD, 10)[1], exact) > 0.95


def test_a_process_keeps_its_own_labels_only() -> None:
    labels_LD, _ = vectors(41, 0)
    index = ShardedIndex(Exact(), labels_LD, World(rank=1, size=4))
    own = index._shard
    assert own is not None
    assert (index.size, own.size) == (41, 10)
    assert not isinstance(spread(Exact(), labels_LD, ALONE), ShardedIndex)
    with pytest.raises(ConfigError, match="k 0"):
        index.search(labels_LD[:1], 0)
