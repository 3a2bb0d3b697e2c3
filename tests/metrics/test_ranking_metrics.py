"""Ranking metrics against figures worked out by hand, and against a plain loop on random worlds."""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import metrics as naive
from xc_core.data.labels import LabelMatrix
from xc_core.metrics import bootstrap, ranking
from xc_core.metrics.bootstrap import grouped
from xc_core.metrics.names import RECALL
from xc_core.metrics.ranking import PerDocument, hits, per_document, without
from xc_core.shapes import PAD_ID, Shortlist

LOG3 = 1 / math.log2(3)  # discount of rank 2: 0.63093
LOG5 = 1 / math.log2(5)  # discount of rank 4: 0.43068


def matrix(rows: list[set[int]], labels: int) -> LabelMatrix:
    pairs = [(i, x) for i, row in enumerate(rows) for x in row]
    docs, ids = np.array(pairs, np.int64).reshape(-1, 2).T
    return LabelMatrix.from_pairs(docs, ids, (len(rows), labels))


def shortlist(rows: list[list[int]], k: int) -> Shortlist:
    ids = np.full((len(rows), k), PAD_ID, np.int32)
    scores = np.full((len(rows), k), -np.inf, np.float32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        scores[i, : len(row)] = -np.arange(len(row))
    return Shortlist(ids, scores)


HAND_RANKED = [[2, 1, 0, 3, 4], [0, 5, 1, 2, 3], [1, 2, 3, 4, 5], [3]]
HAND_TRUTH: list[set[int]] = [{0, 2}, {5}, set(), {1, 3, 4, 5}]
HAND_WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
"""Four documents, six labels; document 2 has no positive, document 3 a shortlist of one."""

HAND = {
    # hits in the first k: 1 0 0 1, 2 1 0 1, 2 1 0 1; over 4 documents times k places
    "P_at_1": 2 / 4,
    "P_at_3": 4 / 12,
    "P_at_5": 4 / 20,
    # documents 0, 1, 3 alone; ideal of 2, 1, 4 positives
    "nDCG_at_1": (1 + 0 + 1) / 3,
    "nDCG_at_3": ((1 + 0.5) / (1 + LOG3) + LOG3 + 1 / (1 + LOG3 + 0.5)) / 3,
    "nDCG_at_5": ((1 + 0.5) / (1 + LOG3) + LOG3 + 1 / (1 + LOG3 + 0.5 + LOG5)) / 3,
    # sums over the corpus: won 3, 0, 0, 4 of 3, 6, 0, 6; then 4, 6, 0, 4 of 4, 6, 0, 15; then of 4, 6, 0, 17
    "PSP_at_1": 7 / 15,
    "PSP_at_3": 14 / 25,
    "PSP_at_5": 14 / 27,
    "PSnDCG_at_1": 7 / 15,
    "PSnDCG_at_3": (3 + 0.5 + 6 * LOG3 + 4) / (3 + LOG3 + 6 + 6 + 5 * LOG3 + 2),
    "PSnDCG_at_5": (3 + 0.5 + 6 * LOG3 + 4) / (3 + LOG3 + 6 + 6 + 5 * LOG3 + 2 + 2 * LOG5),
    "R_at_10": (1 + 1 + 0.25) / 3,
    "R_at_100": (1 + 1 + 0.25) / 3,
}


def test_every_metric_equals_the_hand_calculation() -> None:
    found = per_document(shortlist(HAND_RANKED, 5), matrix(HAND_TRUTH, 6), HAND_WEIGHTS).total()
    assert found == pytest.approx({name: 100 * value for name, value in HAND.items()}, rel=1e-12)
    assert found["PSnDCG_at_3"] == pytest.approx(54.295, abs=1e-3)
    assert found["nDCG_at_5"] == pytest.approx(64.701, abs=1e-3)


def test_the_slow_twin_equals_the_hand_calculation_too() -> None:
    found = naive.metrics(HAND_RANKED, HAND_TRUTH, list(HAND_WEIGHTS))
    assert found == pytest.approx({name: 100 * value for name, value in HAND.items()}, rel=1e-12)


def test_psp_is_a_ratio_of_corpus_sums_and_not_a_mean_of_ratios() -> None:
    figures = per_document(shortlist(HAND_RANKED, 5), matrix(HAND_TRUTH, 6), HAND_WEIGHTS)
    num, den = figures.num["PSP_at_1"], figures.den["PSP_at_1"]
    labelled = den > 0
    mean_of_ratios = 100 * (num[labelled] / den[labelled]).mean()
    assert figures.total()["PSP_at_1"] == pytest.approx(700 / 15)
    assert mean_of_ratios == pytest.approx(100 * (1 + 0 + 4 / 6) / 3)


def test_a_total_over_rows_is_the_total_of_those_documents_alone() -> None:
    figures = per_document(shortlist(HAND_RANKED, 5), matrix(HAND_TRUTH, 6), HAND_WEIGHTS)
    alone = naive.metrics([HAND_RANKED[0], HAND_RANKED[3]], [HAND_TRUTH[0], HAND_TRUTH[3]], list(HAND_WEIGHTS))
    assert figures.total(np.array([0, 3])) == pytest.approx(alone)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[set[int]], list[set[int]], np.ndarray]:
    """Candidate ids with holes anywhere, scores with ties, truth and filters with empty rows, weights with ties."""
    labels, k = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    size = draw(st.integers(1, 8))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ids = np.full((size, k), PAD_ID, np.int32)
    for row in ids:
        count = random.integers(0, min(k, labels) + 1)
        row[random.permutation(k)[:count]] = random.permutation(labels)[:count]
    scores = random.integers(0, 4, (size, k)).astype(np.float32)
    density = random.choice([0.0, 0.2, 0.7])
    truth, filters = ([set(np.flatnonzero(random.random(labels) < d).tolist()) for _ in ids] for d in (density, 0.3))
    weights = random.choice([1.0, 1.5, 2.0, 7.25], labels)
    return ids, scores, truth, filters, weights


def plain(ids: np.ndarray, scores: np.ndarray) -> list[list[int]]:
    """Best first, equal scores by rising id, holes left out."""
    rows = [[(-s, int(i)) for i, s in zip(r, t, strict=True) if i != PAD_ID] for r, t in zip(ids, scores, strict=True)]
    return [[i for _, i in sorted(row)] for row in rows]


@settings(deadline=None, max_examples=150)
@given(worlds())
def test_metrics_equal_the_slow_twin_on_any_world(world: tuple) -> None:  # type: ignore[type-arg]
    ids, scores, truth, _, weights = world
    short = Shortlist.ranked(ids, scores)
    found = per_document(short, matrix(truth, len(weights)), weights).total()
    assert found == pytest.approx(naive.metrics(plain(ids, scores), truth, weights.tolist()), nan_ok=True, abs=1e-9)


@settings(deadline=None, max_examples=100)
@given(worlds())
def test_filters_apply_before_the_cut_and_leave_the_truth_alone(world: tuple) -> None:  # type: ignore[type-arg]
    ids, scores, truth, filters, weights = world
    short = without(Shortlist.ranked(ids, scores), matrix(filters, len(weights)))
    kept = naive.filtered(plain(ids, scores), filters)
    assert [row[row != PAD_ID].tolist() for row in short.ids_NK] == kept
    assert np.isneginf(short.scores_NK[~short.filled_NK]).all()
    found = per_document(short, matrix(truth, len(weights)), weights).total()
    assert found == pytest.approx(naive.metrics(kept, truth, weights.tolist()), nan_ok=True, abs=1e-9)


def test_a_filtered_positive_stays_in_the_denominator() -> None:
    truth, filters = matrix([{0, 1}], 3), matrix([{0}], 3)
    short = without(shortlist([[0, 1, 2]], 3), filters)
    assert short.ids_NK.tolist() == [[1, 2, PAD_ID]]
    figures = per_document(short, truth, np.array([5.0, 2.0, 1.0])).total()
    assert figures["P_at_1"] == 100
    assert figures["PSP_at_1"] == pytest.approx(100 * 2 / 5)
    assert figures["R_at_10"] == 50


def test_filters_do_not_change_the_shortlist_they_are_given() -> None:
    short = shortlist([[0, 1, 2]], 3)
    without(short, matrix([{0}], 3))
    assert short.ids_NK.tolist() == [[0, 1, 2]]
    assert np.isfinite(short.scores_NK).all()


def test_a_hole_is_no_hit_even_for_the_last_label_of_the_document_before() -> None:
    truth = matrix([{3}, {0}], 4)
    short = shortlist([[3], []], 2)
    assert hits(short, truth).tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize("documents", [1, 3])
def test_unequal_numbers_of_documents_are_refused(documents: int) -> None:
    truth, short = matrix([{0}] * documents, 2), shortlist([[0], [1]], 1)
    with pytest.raises(ValueError, match=f"2 shortlists for {documents} documents"):
        per_document(short, truth, np.ones(2))
    with pytest.raises(ValueError, match=f"2 shortlists for {documents} documents"):
        without(short, truth)


def test_without_any_positive_precision_is_zero_and_the_rest_is_nan() -> None:
    found = per_document(shortlist([[0], [1]], 1), matrix([set(), set()], 2), np.ones(2)).total()
    assert {name for name, value in found.items() if value == 0} == {"P_at_1", "P_at_3", "P_at_5"}
    assert all(math.isnan(value) for name, value in found.items() if not name.startswith("P_"))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 2, 48]), st.sampled_from([1, 40, 1 << 18]))
def test_hits_are_the_same_however_documents_are_compared(seed: int, many: int, compared: int) -> None:
    """By one positive after the other or by a binary search, in blocks of any size, with holes and repeated labels."""
    random = np.random.default_rng(seed)
    labels, shape = int(random.integers(1, 90)), (int(random.integers(0, 12)), int(random.integers(0, 12)))
    truth = [
        set(np.flatnonzero(random.random(labels) < random.choice([0.0, 0.1, 0.9])).tolist()) for _ in range(shape[0])
    ]
    ids = random.integers(PAD_ID, labels, shape).astype(np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "MANY", many)
        patch.setattr(ranking, "_COMPARED", compared)
        found = hits(Shortlist(ids, np.zeros(shape, np.float32)), matrix(truth, labels))
    assert found.tolist() == [[i in row for i in own] for own, row in zip(ids.tolist(), truth, strict=True)]


@pytest.mark.parametrize("many", [0, 3, 48])
@pytest.mark.parametrize("block", [1, 7, 1 << 13])
def test_ideal_gains_are_the_same_however_they_are_found(many: int, block: int) -> None:
    """By insertion or by a sort, in blocks of any size, with equal gains and documents without positives."""
    random = np.random.default_rng(many + block)
    counts = [0, 5, 1, 0, 60, 4, 6, 5, 48, 2, 49, 3, 0, 5]
    truth = [set(random.choice(90, count, replace=False).tolist()) for count in counts]
    weights = 1 + random.integers(0, 9, 90) / 7
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "MANY", many)
        patch.setattr(ranking, "_INSERTED", block)
        found = per_document(shortlist([[] for _ in counts], 5), matrix(truth, 90), weights)
    gains = [sorted((float(weights[i]) for i in row), reverse=True) for row in truth]
    for k in (1, 3, 5):
        assert found.den[f"PSP_at_{k}"].tolist() == [
            reduce(add, own[:k], 0.0) for own in gains
        ]  # sum() is more exact since Python 3.12


def test_grouped_keeps_the_sums_and_leaves_few_documents_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).integers(0, 9, (103, 3)).astype(np.float64)
    assert grouped(table, np.random.default_rng(1)) is table
    monkeypatch.setattr(bootstrap, "GROUPS", 10)
    ones = np.hstack([table, np.ones((103, 1))])
    found = grouped(ones, np.random.default_rng(1))
    assert found.sum(0).tolist() == ones.sum(0).tolist()
    assert sorted(found[:, 3].tolist()) == [10.0] * 7 + [11.0] * 3
    assert grouped(ones, np.random.default_rng(2)).tolist() != found.tolist(), "groups are drawn"


@pytest.mark.parametrize(("rank", "at_10", "at_100"), [(9, 100, 100), (10, 0, 100), (99, 0, 100), (100, 0, 0)])
def test_recall_counts_the_first_10_and_the_first_100(rank: int, at_10: float, at_100: float) -> None:
    found = per_document(shortlist([list(range(101))], 101), matrix([{rank}], 101), np.ones(101)).total()
    assert (found["R_at_10"], found["R_at_100"]) == (at_10, at_100)


def test_rankings_of_the_same_documents_share_their_denominators(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, weights = matrix([{0, 1}, {2}, set()], 3), np.array([1.0, 2.0, 4.0])
    bins = {next(iter(RECALL)): np.array([True, False, True])}
    rankings = {"one": shortlist([[0, 2], [1, 2], [0, 1]], 2), "other": shortlist([[2, 1], [2, 0], [1, 0]], 2)}
    alone = {name: per_document(short, truth, weights, bins) for name, short in rankings.items()}
    calls = Mock(side_effect=ranking._ideal_gains)
    monkeypatch.setattr(ranking, "_ideal_gains", calls)
    found = ranking.of_each(rankings, truth, weights, bins)
    assert calls.call_count == 1
    assert found.keys() == rankings.keys()
    for name, own in found.items():
        for side in ("num", "den"):
            expected = getattr(alone[name], side)
            assert getattr(own, side).keys() == expected.keys()
            assert all(np.array_equal(value, expected[metric]) for metric, value in getattr(own, side).items())
    name = RECALL[next(iter(bins))]
    assert {key: own.num[name].tolist() for key, own in found.items()} == {"one": [1, 1, 0], "other": [0, 1, 0]}
    assert found["one"].den[name].tolist() == [1, 1, 0]


def test_the_figures_of_blocks_of_documents_are_those_of_all_together() -> None:
    """An evaluation measures block by block."""
    truth = matrix([{0, 1}, {2}, {1}, set()], 3)
    short = shortlist([[0, 2, 1], [1, 2, 0], [1, 0, 2], [0, 1, 2]], 3)
    weights = np.array([1.0, 2.0, 4.0])
    whole = per_document(short, truth, weights)
    blocks = [slice(0, 1), slice(1, 1), slice(1, 4)]
    parts = [
        per_document(short.rows(np.arange(4)[block]), truth.rows(np.arange(4)[block]), weights) for block in blocks
    ]
    joined = PerDocument.joined(parts)
    assert joined.num.keys() == whole.num.keys() == joined.den.keys()
    for name in whole.num:
        np.testing.assert_array_equal(joined.num[name], whole.num[name])
        np.testing.assert_array_equal(joined.den[name], whole.den[name])
