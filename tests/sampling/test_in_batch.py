"""In-batch negatives: the pool is the union of what was chosen, and the choice is uniform and independent."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chi2

from tests.naive import sampling as naive
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.sampling import NEGATIVES, NegativesConfig
from xc_core.sampling.negatives import InBatch, mask

STEPS = 3000


def matrix(rows: list[list[int]], labels: int) -> LabelMatrix:
    docs, ids = np.array([(i, x) for i, row in enumerate(rows) for x in row], np.int64).reshape(-1, 2).T
    return LabelMatrix.from_pairs(docs, ids, (len(rows), labels))


def test_the_pool_is_the_union_of_the_chosen_and_nothing_else() -> None:
    rows = [[0, 1, 2], [2, 3], [], [4], [0, 5]]
    truth = matrix(rows, 7)
    for step in range(20):
        found = InBatch(NegativesConfig(positives=1), truth, 0).pool(np.arange(5), step)
        chosen = [set(found.labels_U[row].tolist()) for row in found.chosen_BU]
        assert found.labels_U.tolist() == sorted(set().union(*chosen))
        assert [len(own) for own in chosen] == [1, 1, 0, 1, 1]
        assert found.known_BU.tolist() == naive.masks(found.labels_U.tolist(), [set(row) for row in rows])


def test_all_positives_are_chosen_where_zero_is_asked_for() -> None:
    found = InBatch(NegativesConfig(positives=0), matrix([[0, 1], [1, 4]], 6), 0).pool(np.array([1, 0]), 0)
    assert found.labels_U.tolist() == [0, 1, 4]
    assert found.chosen_BU.tolist() == found.known_BU.tolist() == [[False, True, True], [True, True, False]]


def statistic(counts: Counter[object], cells: int, total: int) -> float:
    """Pearson's chi-square against equal shares."""
    seen = list(counts.values()) + [0] * (cells - len(counts))
    return sum((n - total / cells) ** 2 for n in seen) / (total / cells)


def pairs_drawn(positives: list[int], other: list[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return what is chosen for two documents of one batch, two labels each, step after step."""
    source = InBatch(NegativesConfig(positives=2), matrix([positives, other], 12), 0)
    drawn = []
    for step in range(STEPS):
        pool = source.pool(np.array([0, 1]), step)
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


def test_a_sampler_that_favours_a_label_would_be_found_out() -> None:
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


@pytest.mark.parametrize("changes", [{"positives": -1}, {"kind": "inbatch"}])
def test_settings_that_mean_nothing_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        NegativesConfig(**changes)  # type: ignore[arg-type]


def test_the_first_labels_are_taken_where_asked_for_instead_of_a_sample() -> None:
    config = NegativesConfig(positives=1, first=True)
    truth = LabelMatrix.from_pairs(np.array([0, 0, 0, 1]), np.array([7, 2, 5, 9]), (2, 10))
    for step in range(5):
        pool = NEGATIVES["in-batch"](config, truth, 0).pool(np.array([1, 0]), step)
        assert pool.labels_U.tolist() == [2, 9]
        assert pool.chosen_BU.tolist() == [[False, True], [True, False]]
        assert pool.known_BU.tolist() == pool.chosen_BU.tolist()


def test_with_first_labels_alone_the_others_are_labels_like_any_other() -> None:
    """Bamler and Mandt keep a document's first label: noise, weights and figures must be of the same data."""
    truth = LabelMatrix.from_pairs(np.array([0, 0, 0, 1]), np.array([7, 2, 5, 9]), (2, 10))
    some = {"positives": 1, "first": True}
    every = NEGATIVES["importance"](NegativesConfig(kind="importance", hard=0, uniform=10, **some), truth, 0)  # type: ignore[arg-type]
    pool = every.pool(np.array([0, 1]), 0)
    assert pool.weight_BU is not None
    assert pool.weight_BU.tolist() == [[float(label != own) for label in range(10)] for own in (2, 9)]
    frequency = NEGATIVES["frequency"](NegativesConfig(kind="frequency", **some), truth, 0).noise()  # type: ignore[arg-type]
    alone = NEGATIVES["frequency"](NegativesConfig(kind="frequency"), truth.first(1), 0).noise()
    assert frequency is not None and alone is not None
    where = np.zeros((1, 1), np.float32), np.arange(10)[None]
    np.testing.assert_array_equal(frequency.log_prob(*where), alone.log_prob(*where))
