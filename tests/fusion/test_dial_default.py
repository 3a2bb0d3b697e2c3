"""The default position of the dial: the most PSP@5 at a cost in P@1 that is small, and small with confidence."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fusion.test_dial import world
from tests.naive.metrics import metrics
from xc_core.data.labels import LabelMatrix
from xc_core.fusion.dial import TAILS, DialFigures, _default_tail, _figures, _gain, _most_lost, fit_dial
from xc_core.metrics.paired import PairedDifference
from xc_core.metrics.ranking import PerDocument
from xc_core.shapes import F64, PAD_ID, Shortlist

CLEAR, UNCLEAR = PairedDifference(1.0, 0.5, 1.5), PairedDifference(1.0, -0.5, 1.5)


@pytest.mark.parametrize(("cost", "expected"), [(0.0, 0.0), (0.1, 0.1), (1.0, 0.2), (2.0, 0.3), (50.0, 0.3)])
def test_the_default_has_the_most_psp_before_p_falls_by_more_than_the_cost(cost: float, expected: float) -> None:
    """Later positions may have less of both: a cost that gains nothing is not paid."""
    figures = [(50.0, 30.0), (50.5, 30.1), (49.0, 31.0), (48.4, 32.0), (48.2, 32.0), (49.5, 31.9)]
    positions = [DialFigures(at / 10, p_at_1, 0, psp) for at, (p_at_1, psp) in enumerate(figures)]
    assert _default_tail(positions, cost, lambda tail: CLEAR, lambda tail: 0.0) == expected


def test_a_position_behind_a_fall_is_not_the_default() -> None:
    positions = [DialFigures(0.0, 50, 0, 30), DialFigures(0.1, 40, 0, 31), DialFigures(0.2, 50, 0, 32)]
    assert _default_tail(positions, 1.0, lambda tail: CLEAR, lambda tail: 0.0) == 0.0


def test_a_position_without_a_clear_gain_is_passed_over() -> None:
    """0.3 has the most, then 0.1; 0.2 has less than position 0, which gains nothing over itself."""
    figures = [(50.0, 30.0), (49.9, 30.5), (49.9, 29.0), (49.9, 31.0)]
    positions = [DialFigures(at / 10, p_at_1, 0, psp) for at, (p_at_1, psp) in enumerate(figures)]
    for clear, expected in (((0.1, 0.2, 0.3), 0.3), ((0.1, 0.2), 0.1), ((0.2,), 0.0), ((), 0.0)):
        gains = {position.tail: CLEAR if position.tail in clear else UNCLEAR for position in positions}
        assert _default_tail(positions, 1.0, gains.__getitem__, lambda tail: 0.0) == expected


@pytest.mark.parametrize(
    ("cost", "losses", "expected"),
    [(1.0, (0.5, 2.0), 0.2), (1.0, (0.5, 2.01), 0.1), (0.5, (1.0, 1.01), 0.1), (1.0, (2.5, 2.5), 0.0)],
)
def test_a_position_that_may_cost_twice_what_it_is_allowed_is_passed_over(
    cost: float, losses: tuple[float, float], expected: float
) -> None:
    """Even if no document shows a cost, as a position of equal P@1 is among few of them."""
    positions = [DialFigures(at / 10, 50.0, 0, 30.0 + at) for at in range(3)]
    loss_of = dict(zip((0.1, 0.2), losses, strict=True))
    assert _default_tail(positions, cost, lambda tail: CLEAR, loss_of.__getitem__) == expected


def right(hits: list[int]) -> PerDocument:
    return PerDocument({"P_at_1": np.array(hits, np.float64)}, {"P_at_1": np.ones(len(hits))})


@pytest.mark.parametrize(
    ("documents", "lost", "won", "expected"),
    [
        (65, 0, 0, 100 * 1.96 * 2**0.5 / 69),  # 4.02
        (65, 0, 1, 100 * (-1 + 1.96 * (3 - 1 / 69) ** 0.5) / 69),  # 3.46: one document more, and still few
        (2000, 20, 0, 100 * (20 + 1.96 * (22 - 400 / 2004) ** 0.5) / 2004),  # 1.45
        (200_000, 1000, 0, 0.5 + 1.96 * 0.0158),  # as Wald's interval, which has no documents added
    ],
)
def test_the_most_that_is_lost_by_hand(documents: int, lost: int, won: int, expected: float) -> None:
    here, first = [0] * documents, [0] * documents
    first[:lost] = [1] * lost
    here[lost : lost + won] = [1] * won
    assert _most_lost({0.3: right(here), 0.0: right(first)}, 0.3) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("documents", [30, 65, 300])
def test_the_most_that_is_lost_is_seldom_exceeded(documents: int) -> None:
    """Bound of 97.5 %, on draws of documents of which 4 in 100 are lost and 2 in 100 won."""
    random, exceeded = np.random.default_rng(0), 0
    for _ in range(2000):
        lost, won, _ = random.multinomial(documents, (0.04, 0.02, 0.94))
        here, first = np.zeros(documents, int), np.zeros(documents, int)
        first[:lost], here[lost : lost + won] = 1, 1
        exceeded += _most_lost({0.3: right(here.tolist()), 0.0: right(first.tolist())}, 0.3) < 2.0
    assert exceeded <= 0.035 * 2000


def tiled(documents: int, times: int, seed: int) -> tuple[Shortlist, LabelMatrix, F64]:
    """Return a world whose documents are repeated: every share stays, intervals shrink."""
    ids, scores, truth, weights = world(documents, seed=seed)
    rows = np.tile(np.arange(documents), times)
    return Shortlist.ranked(ids, scores).rows(rows), truth.rows(rows), weights


@pytest.mark.parametrize(("documents", "seed"), [(200, 0), (300, 4), (400, 0)])
def test_few_documents_keep_the_dial_at_0_and_many_move_it(documents: int, seed: int) -> None:
    """The same shares, shown by a few documents and by 20 times as many."""
    defaults = []
    for times in (1, 20):
        short, truth, weights = tiled(documents, times, seed)
        found = fit_dial(short, truth, weights, 1.0)
        assert found is not None
        dial, curve = found
        figures = {tail: _figures(dial, tail, short, truth, weights) for tail in TAILS}
        by_points = [one["tail"] for one in curve if one["P_at_1"] >= curve[0]["P_at_1"] - 1 and one["tail"]]
        assert any(_gain(figures, tail).clear for tail in by_points), "the gain is clear in both"
        defaults.append(dial.default)
    assert defaults[0] == 0.0 < defaults[1]


@pytest.mark.parametrize("documents", [40, 1500])
def test_the_default_moves_only_if_enough_documents_show_a_gain(documents: int) -> None:
    ids, scores, truth, weights = world(documents, seed=1)
    found = fit_dial(Shortlist.ranked(ids, scores), truth, weights, 20.0)
    assert found is not None
    dial, curve = found
    best = max(curve, key=lambda position: position["PSP_at_5"])
    short = Shortlist.ranked(ids, scores)
    figures = {tail: _figures(dial, tail, short, truth, weights) for tail in (0.0, best["tail"])}
    gain = _gain(figures, best["tail"])
    assert gain.points == pytest.approx(best["PSP_at_5"] - curve[0]["PSP_at_5"])
    assert best["tail"] > 0
    assert (dial.default > 0) == gain.clear == (documents == 1500)


def naive_default(
    rankings: dict[float, list[list[int]]], truth: list[set[int]], weights: list[float], cost: float
) -> tuple[float, float]:
    """Choose as the module does, from the definitions of the metrics and resamples of single documents.

    Also return how far the nearest bound is from deciding otherwise, in points.
    """
    size, random = len(truth), np.random.default_rng(5)
    drawn = random.integers(0, size, (1000, size))
    first_p, first_psp = hits(rankings[0.0], truth, weights)
    best, most, margin = 0.0, 0.0, np.inf
    for tail in sorted(rankings)[1:]:
        p, psp = hits(rankings[tail], truth, weights)
        loss, gain = 100 * (p - first_p).mean(), 100 * (psp - first_psp).sum() / best_weight(truth, weights).sum()
        margin = min(margin, abs(loss + cost))
        if loss < -cost:
            break
        more = np.concatenate([p - first_p, [1, -1, 0, 0]])  # two documents that differ, and two that do not
        low_p = 100 * (more.mean() - 1.96 * more.std() / len(more) ** 0.5)
        low_psp = np.quantile((psp - first_psp)[drawn].sum(axis=1), 0.025)
        if gain > most:
            margin = min(margin, abs(low_p + 2 * cost), abs(low_psp))
        if gain > most and low_psp > 0 and low_p >= -2 * cost and np.count_nonzero(psp != first_psp) >= 6:
            best, most = tail, gain
    return best, float(margin)


def hits(ranking: list[list[int]], truth: list[set[int]], weights: list[float]) -> tuple[F64, F64]:
    """Return the hit at 1, and the weight of the hits at 5, of each document."""
    at_1 = [float(row[:1] != [] and row[0] in own) for row, own in zip(ranking, truth, strict=True)]
    at_5 = [sum(weights[x] for x in row[:5] if x in own) for row, own in zip(ranking, truth, strict=True)]
    return np.array(at_1), np.array(at_5)


def best_weight(truth: list[set[int]], weights: list[float]) -> F64:
    return np.array([sum(sorted((weights[x] for x in own), reverse=True)[:5]) for own in truth])


@pytest.mark.parametrize("documents", [80, 150, 400, 1500])
def test_the_default_is_that_of_a_naive_twin(documents: int) -> None:
    chosen = []
    for seed in range(4):
        ids, scores, truth, weights = world(documents, seed=seed)
        short = Shortlist.ranked(ids, scores)
        found = fit_dial(short, truth, weights, 1.0)
        assert found is not None
        dial, curve = found
        own = [set(truth.indices[a:b].tolist()) for a, b in zip(truth.indptr, truth.indptr[1:], strict=False)]
        rankings = {
            tail: [[x for x in row if x != PAD_ID] for row in Shortlist.ranked(short.ids_NK, turned_NK).ids_NK.tolist()]
            for tail in TAILS
            for turned_NK in [dial.turned(short.ids_NK, short.scores_NK, tail)]
        }
        figures = metrics(rankings[0.5], own, weights.tolist())
        assert [curve[5]["P_at_1"], curve[5]["PSP_at_5"]] == pytest.approx([figures["P_at_1"], figures["PSP_at_5"]])
        expected, margin = naive_default(rankings, own, weights.tolist(), 1.0)
        if margin > 0.15:
            chosen.append(expected)
            assert dial.default == expected, (seed, margin)
    assert len(chosen) >= 2, "most worlds are decided by more than chance"
    assert any(chosen) == (documents == 1500)
