"""ASTRA's source: an unbiased sample of all labels, hard ones of one's own, background searches that change nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.naive import search
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.losses import LossConfig, Sampled
from xc_core.sampling import NEGATIVES, NegativesConfig, NegativeSource
from xc_core.shapes import F32

SIZE, LABELS, WIDTH = 30, 40, 8
DOCS = np.array([3, 17, 22, 29])


def truth() -> LabelMatrix:
    return LabelMatrix.from_pairs(*np.nonzero(np.random.default_rng(0).random((SIZE, LABELS)) < 0.1), (SIZE, LABELS))


def source(**settings: Any) -> NegativeSource:
    config = NegativesConfig(**{"kind": "importance", "positives": 0, "search_in": "rows", **settings})
    return NEGATIVES[config.kind](config, truth(), 0)


def banks(seed: int = 1) -> tuple[F32, F32]:
    random = np.random.default_rng(seed)
    docs, rows = (random.standard_normal((n, WIDTH)).astype(np.float32) for n in (SIZE, LABELS))
    return docs, rows


def searched(**settings: Any) -> NegativeSource:
    own = source(**settings)
    for epoch in range(2):
        own.refresh(epoch, *banks())
    return own


def hardest(count: int) -> list[list[int]]:
    docs, rows = banks()
    order = search.nearest(rows, docs, LABELS)
    return [
        [label for label in row if label not in set(truth().row(i).tolist())][:count] for i, row in enumerate(order)
    ]


def test_the_binary_loss_on_the_sample_is_the_loss_over_all_labels_in_expectation() -> None:
    """6,000 draws; the interval of the mean is so narrow that a bias of 2 % would fall outside. Gradients too."""
    own = searched(hard=5, uniform=12)
    scores_NL = torch.from_numpy(np.random.default_rng(3).normal(0, 1.5, (SIZE, LABELS)).astype(np.float32))
    loss = LossConfig(name="bce", temperature=1.0).build()
    known = torch.from_numpy(truth().contains(DOCS[:, None], np.arange(LABELS)[None]))
    whole = scores_NL[DOCS].clone().requires_grad_(True)
    full, _ = loss(whole, known, known)
    (expected,) = torch.autograd.grad(full, whole)
    values, gradient = [], torch.zeros(len(DOCS), LABELS, dtype=torch.float64)
    for step in range(6000):
        pool = own.pool(DOCS, step)
        part = scores_NL[DOCS][:, pool.labels_U].clone().requires_grad_(True)
        assert pool.weight_BU is not None
        chosen = torch.from_numpy(pool.chosen_BU)
        total, _ = loss(part, chosen, chosen, Sampled(weight_BU=torch.from_numpy(pool.weight_BU)))
        (found,) = torch.autograd.grad(total, part)
        values.append(float(total.detach()))
        gradient[:, pool.labels_U] += found.double()
    error = np.std(values) / math.sqrt(len(values))
    assert 3.3 * error < 0.02 * float(full.detach())
    assert abs(np.mean(values) - float(full.detach())) < 3.3 * error
    np.testing.assert_allclose((gradient / 6000).numpy(), expected.numpy(), atol=0.06)


def test_a_document_has_its_own_hard_negatives_and_nobody_elses() -> None:
    pool = searched(hard=3, uniform=1).pool(DOCS, 0)
    assert pool.weight_BU is not None
    for row, doc in enumerate(DOCS.tolist()):
        weighed = set(pool.labels_U[pool.weight_BU[row] > 0].tolist())
        assert set(hardest(3)[doc]) <= weighed
        assert len(weighed - set(hardest(3)[doc])) <= 1
        assert (pool.weight_BU[row, np.isin(pool.labels_U, hardest(3)[doc])] == 1).all()


def test_no_weight_falls_on_a_positive() -> None:
    own = searched(hard=3, uniform=LABELS)
    pool = own.pool(DOCS, 0)
    assert pool.weight_BU is not None
    assert not (pool.weight_BU * pool.known_BU).any()
    assert (pool.weight_BU[~pool.known_BU] == 1).all(), "all labels drawn: every weight is 1"


def test_before_the_first_search_all_negatives_are_uniform_and_as_many() -> None:
    own = source(hard=5, uniform=10)
    own.refresh(0, *banks())
    pool = own.pool(np.zeros(0, np.int64), 0)
    assert len(pool.labels_U) == 15
    own.refresh(1, *banks())
    assert len(own.pool(np.zeros(0, np.int64), 0).labels_U) == 10


def test_hard_negatives_alone_leave_the_others_out() -> None:
    own = searched(hard=3, uniform=0)
    pool = own.pool(DOCS, 0)
    assert pool.weight_BU is not None
    assert set(np.unique(pool.weight_BU).tolist()) == {0.0, 1.0}
    assert (pool.weight_BU > 0).sum() == 3 * len(DOCS)


def test_a_curriculum_lets_hard_negatives_grow_and_keeps_the_sum() -> None:
    own = source(hard=8, uniform=4, curriculum=4.0)
    used = []
    for epoch in range(7):
        own.refresh(epoch, *banks())
        pool = own.pool(np.array([3]), 0)
        assert pool.weight_BU is not None
        hard = int((pool.weight_BU == 1).sum())
        drawn = len(own.pool(np.zeros(0, np.int64), 0).labels_U)
        assert hard + drawn == 12
        used.append(hard)
    assert used == [0, 2, 4, 6, 8, 8, 8]


@pytest.mark.parametrize("kind", ["mined", "importance"])
def test_a_search_in_the_background_uses_the_vectors_of_when_it_began(kind: str) -> None:
    """Begun an epoch ahead on the vectors of then; what the vectors become meanwhile does not matter."""
    plain = source(kind=kind, hard=4, search=4)
    ahead = source(kind=kind, hard=4, search=4, ahead=1, warmup_epochs=2)
    docs, rows = banks(1)
    plain.refresh(1, docs, rows)
    assert ahead.refresh(0, *banks(3)) == {}, "before its first search is begun"
    ahead.refresh(1, docs, rows)
    docs[:], rows[:] = banks(2)
    ahead.refresh(2, docs, rows)
    np.testing.assert_array_equal(ahead.arrays()["hard"], plain.arrays()["hard"])
    plain.refresh(2, docs, rows)
    ahead.refresh(3, *banks(3))
    np.testing.assert_array_equal(ahead.arrays()["hard"], plain.arrays()["hard"])


def test_a_search_under_way_is_part_of_the_state() -> None:
    begun, other = (source(hard=4, ahead=1, warmup_epochs=2) for _ in range(2))
    begun.refresh(1, *banks(1))
    other.load(begun.arrays())
    for own in (begun, other):
        own.refresh(2, *banks(2))
    np.testing.assert_array_equal(other.arrays()["hard"], begun.arrays()["hard"])
    np.testing.assert_array_equal(other.arrays()["hard_next"], begun.arrays()["hard_next"])
    assert other.pool(DOCS, 4).labels_U.tolist() == begun.pool(DOCS, 4).labels_U.tolist()


@pytest.mark.parametrize(
    "wrong",
    [
        {"hard": 0, "uniform": 0},
        {"ahead": 1, "warmup_epochs": 1},
        {"ahead": 2, "warmup_epochs": 3, "refresh_every": 1},
        {"search_in": "row"},
        {"curriculum": -1.0},
        {"draws": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        NegativesConfig(**{"kind": "importance", **wrong})


def test_staleness_is_one_where_nothing_moved_and_falls_where_rows_did() -> None:
    own = source(hard=6, ahead=1, warmup_epochs=2)
    own.refresh(1, *banks(1))
    same = own.refresh(2, *banks(1))
    moved = own.refresh(3, *banks(2))
    assert same["hard_recall"] == 1.0
    assert "hard_recall_left" not in same, "there were none before"
    assert moved["hard_recall"] < 0.7, "searched on the vectors before they moved"
    assert moved["hard_recall_left"] < 0.7
    assert source(hard=6).refresh(1, *banks(1))["hard_recall"] == 1.0


def test_the_comparison_has_as_many_negatives_all_uniform() -> None:
    other = searched(hard=4, uniform=8).all_uniform()
    pool = other.pool(np.zeros(0, np.int64), 0)
    assert len(pool.labels_U) == 12
