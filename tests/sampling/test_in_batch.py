"""In-batch negatives: the pool is the union of the chosen positives; the choice is uniform and independent."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from tests.arrays import matrix
from tests.made import made
from tests.naive import sampling as naive
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.params import changed
from xc_core.sampling import NEGATIVES, Documents, Frequency, Importance, InBatch, Negatives, NegativeSource
from xc_core.sampling.base import LabelPool, PairPool, Pool, mask

STEPS = 3000


def source(truth: LabelMatrix, config: Negatives | None = None, **settings: Any) -> NegativeSource:
    """Return the source of ``config``, or in-batch negatives with ``settings``."""
    return (config or InBatch(**settings)).build(Documents(truth), 0)


ROWS = [[0, 1, 2], [2, 3], [], [4], [0, 5]]


@pytest.mark.parametrize("kind", ["in-batch", "mixture", "mined", "all"])
def test_with_shared_positives_a_document_learns_from_all_that_the_pool_has(kind: str) -> None:
    truth, everyone = matrix(ROWS, 7), np.arange(5)
    shared, sampled = (source(truth, made(NEGATIVES, kind, positives=1, share=share)) for share in (True, False))
    found = shared.pool(everyone, 3)
    assert found.chosen_BU.tolist() == naive.masks(found.labels_U.tolist(), [set(row) for row in ROWS])
    assert found.chosen_BU.sum() > sampled.pool(everyone, 3).chosen_BU.sum() == 4


def test_the_pool_is_the_union_of_the_chosen_and_nothing_else() -> None:
    truth = matrix(ROWS, 7)
    for step in range(20):
        found = source(truth, positives=1).pool(np.arange(5), step)
        chosen = [set(found.labels_U[row].tolist()) for row in found.chosen_BU]
        assert found.labels_U.tolist() == sorted(set().union(*chosen))
        assert [len(own) for own in chosen] == [1, 1, 0, 1, 1]
        assert found.known_BU.tolist() == naive.masks(found.labels_U.tolist(), [set(row) for row in ROWS])


def test_a_pool_of_pairs_is_that_of_its_masks() -> None:
    """Labels that are asked for and not in the pool stay out of it."""
    labels_U = np.array([0, 2, 3, 5])
    pairs = PairPool(matrix([[0], [3], [], [4], [5]], 7), matrix(ROWS, 7), labels_U)
    masks = LabelPool(labels_U, pairs.chosen_BU, pairs.known_BU)

    def content(pool: Pool) -> list[Any]:
        return [pool.labels_U.tolist(), pool.chosen_BU.tolist(), pool.known_BU.tolist(), pool.learnable]

    for asked_S in ([1, 2, 4, 5, 6], [0, 3], [0, 2], [1], []):
        assert content(pairs.only(np.array(asked_S, np.int64))) == content(masks.only(np.array(asked_S, np.int64)))
    assert [*map(content, pairs.blocks(3))] == [*map(content, masks.blocks(3))]


def test_zero_positives_means_all_of_them() -> None:
    found = source(matrix([[0, 1], [1, 4]], 6), positives=0).pool(np.array([1, 0]), 0)
    assert found.labels_U.tolist() == [0, 1, 4]
    assert found.chosen_BU.tolist() == found.known_BU.tolist() == [[False, True, True], [True, True, False]]


def statistic(counts: Counter[object], cells: int, total: int) -> float:
    """Pearson's chi-square against equal shares."""
    seen = list(counts.values()) + [0] * (cells - len(counts))
    return sum((n - total / cells) ** 2 for n in seen) / (total / cells)


def pairs_drawn(positives: list[int], other: list[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return what is chosen for two documents of one batch, two labels each, step after step."""
    own = source(matrix([positives, other], 12), positives=2)
    drawn = []
    for step in range(STEPS):
        pool = own.pool(np.array([0, 1]), step)
        first, second = (tuple(pool.labels_U[row].tolist()) for row in pool.chosen_BU)
        drawn.append((first, second))
    return drawn


def test_each_pair_of_positives_is_chosen_equally_often_and_documents_choose_independently() -> None:
    drawn = pairs_drawn([0, 2, 3, 7, 8], [1, 4, 5])
    firsts = Counter(first for first, _ in drawn)
    assert set(firsts) == set(combinations([0, 2, 3, 7, 8], 2))
    assert statistic(firsts, 10, STEPS) < chi2.ppf(0.999, 9)
    assert statistic(Counter(second for _, second in drawn), 3, STEPS) < chi2.ppf(0.999, 2)
    assert statistic(Counter(drawn), 30, STEPS) < chi2.ppf(0.999, 29)


def test_a_sampler_that_favours_a_label_would_fail() -> None:
    random = np.random.default_rng(0)
    weights = np.array([0.24, 0.19, 0.19, 0.19, 0.19])
    drawn: Counter[object] = Counter(
        tuple(sorted(random.choice(5, 2, replace=False, p=weights).tolist())) for _ in range(STEPS)
    )
    assert statistic(drawn, 10, STEPS) > chi2.ppf(0.999, 9)


def test_a_mask_marks_only_labels_of_the_pool() -> None:
    found = mask(matrix([[0, 5], [3]], 6), np.array([3, 4]))
    assert found.tolist() == [[False, False], [True, False]]
    assert mask(matrix([[0, 5], [3]], 6), np.zeros(0, np.int64)).shape == (2, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("inbatch", "nearest: 'in-batch'"),
        ({"uniform": 5}, "a setting of the source of negatives 'in-batch': positives, first, share, unseen"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(InBatch(), changes, "encoder.negatives")


def test_only_in_batch_pools_and_stored_ones_add_unseen_labels() -> None:
    with_unseen = {kind for kind in NEGATIVES if "unseen" in {field.name for field in fields(NEGATIVES[kind])}}
    assert with_unseen == {"in-batch", "stored"}


def test_the_first_labels_are_used_instead_of_a_sample_on_request() -> None:
    truth = LabelMatrix.from_pairs(np.array([0, 0, 0, 1]), np.array([7, 2, 5, 9]), (2, 10))
    for step in range(5):
        pool = source(truth, positives=1, first=True).pool(np.array([1, 0]), step)
        assert pool.labels_U.tolist() == [2, 9]
        assert pool.chosen_BU.tolist() == [[False, True], [True, False]]
        assert pool.known_BU.tolist() == pool.chosen_BU.tolist()


def test_with_first_labels_alone_the_others_are_ordinary_negatives() -> None:
    """Bamler and Mandt keep a document's first label: noise, weights and figures must come from the same data."""
    truth = LabelMatrix.from_pairs(np.array([0, 0, 0, 1]), np.array([7, 2, 5, 9]), (2, 10))
    every = Importance(hard=0, uniform=10, positives=1, first=True)
    pool = source(truth, every).pool(np.array([0, 1]), 0)
    assert pool.weight_BU is not None
    assert pool.weight_BU.tolist() == [[float(label != own) for label in range(10)] for own in (2, 9)]
    frequency = source(truth, Frequency(positives=1, first=True)).noise()
    alone = source(truth.first(1), Frequency()).noise()
    assert frequency is not None and alone is not None
    where = np.zeros((1, 1), np.float32), np.arange(10)[None]
    np.testing.assert_array_equal(frequency.log_prob(*where), alone.log_prob(*where))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_positive_and_a_negative_count_only_in_the_same_document(weighted: bool) -> None:
    chosen_BU, known_BU = np.eye(2, dtype=bool)[[0, 1]], np.array([[True, True], [False, True]])
    chosen_BU[1] = False
    weight_BU = (~known_BU).astype(np.float32) if weighted else None
    pool = LabelPool(np.arange(2), chosen_BU, known_BU, weight_BU)
    assert not pool.learnable
    assert replace(pool, chosen_BU=np.array([[True, False], [False, True]])).learnable
