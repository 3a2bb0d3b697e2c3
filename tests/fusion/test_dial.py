"""The dial: 0 leaves the scores alone, higher positions raise rare labels, 1 has the best PSP@5 of its powers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xc_core.data.labels import LabelMatrix
from xc_core.errors import UsageError
from xc_core.fusion import FittedFusion, Inputs, Sum, summed
from xc_core.fusion.dial import POWERS, TAILS, Dial, DialFigures, _curve, _figures, fit_dial
from xc_core.shapes import F32, F64, I32, PAD_ID, Shortlist

LABELS = 40


def world(documents: int = 1500, seed: int = 0) -> tuple[I32, F32, LabelMatrix, F64]:
    """Return candidates, a score with a known probability of a positive, the positives, and inverse propensities.

    Labels from 20 on weigh up to 8; they are as likely as others of the same score.
    """
    random = np.random.default_rng(seed)
    ids = np.stack([random.permutation(LABELS)[:12] for _ in range(documents)]).astype(np.int32)
    scores = random.normal(size=ids.shape).astype(np.float32)
    chance = 1 / (1 + np.exp(2 - 1.5 * scores))
    positive = random.random(ids.shape) < chance
    ids[random.random(ids.shape) < 0.1] = PAD_ID
    kept = positive & (ids != PAD_ID)
    truth = LabelMatrix.from_pairs(np.nonzero(kept)[0], ids[kept], (documents, LABELS))
    weights = np.where(np.arange(LABELS) >= 20, np.linspace(2, 8, LABELS), 1.0)
    return ids, scores, truth, weights


def fitted(cost: float = 0.0) -> tuple[Dial, list[dict[str, float]]]:
    ids, scores, truth, weights = world()
    found = fit_dial(Shortlist.ranked(ids, scores), truth, weights, cost)
    assert found is not None
    return found


def measured(dial: Dial, tail: float, short: Shortlist, truth: LabelMatrix, weights: F64) -> DialFigures:
    return DialFigures.of(tail, _figures(dial, tail, short, truth, weights))


def test_at_0_scores_are_those_of_the_fusion_bit_for_bit() -> None:
    ids, scores, _, _ = world(20)
    dial, _ = fitted()
    assert dial.turned(ids, scores, 0.0) is scores
    assert dial.turned(ids, scores, None) is scores, "the default is 0 without a cost"
    assert not np.array_equal(dial.turned(ids, scores, 1.0), scores)


def test_the_score_is_that_of_p_times_the_weight() -> None:
    """A curve p = exp(score) by hand: the score rises by tail * reach * log w."""
    far = np.array([-1e3, 1e3])
    dial = Dial(far, far, np.log(np.array([1.0, 4.0], np.float32)), reach=0.5)
    ids, scores = np.array([[0, 1, PAD_ID]], np.int32), np.array([[-1.0, -2.0, -np.inf]], np.float32)
    np.testing.assert_allclose(dial.turned(ids, scores, 1.0)[0, :2], [-1.0, -2.0 + 0.5 * np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(dial.turned(ids, scores, 0.5)[0, :2], [-1.0, -2.0 + 0.25 * np.log(4)], rtol=1e-6)


def test_the_order_of_labels_of_one_weight_stays_at_every_position() -> None:
    dial, _ = fitted()
    even = replace(dial, log_weight_L=np.full_like(dial.log_weight_L, 0.7))
    scores = np.linspace(-30, 30, 4001, dtype=np.float32)[None]
    for tail in TAILS:
        assert (np.diff(even.turned(np.zeros(scores.shape, np.int32), scores, tail)) > 0).all()


def test_a_higher_position_ranks_rarer_labels_first() -> None:
    ids, scores, _, weights = world()
    dial, _ = fitted()
    firsts = [Shortlist.ranked(ids, dial.turned(ids, scores, tail)).ids_NK[:, 0] for tail in TAILS]
    mean = [float(np.log(weights)[first].mean()) for first in firsts]
    assert (np.diff(mean) >= 0).all()
    assert mean[-1] > mean[0] + 0.1


def test_psp_rises_and_p_falls_with_the_dial() -> None:
    dial, curve = fitted()
    assert [one["tail"] for one in curve] == list(TAILS)
    assert curve[0]["P_at_1"] > curve[-1]["P_at_1"] + 3
    assert curve[-1]["PSP_at_5"] > curve[0]["PSP_at_5"] + 1.5
    ids, scores, truth, weights = world()
    short = Shortlist.ranked(ids, scores)
    found = [measured(replace(dial, reach=power), 1.0, short, truth, weights).PSP_at_5 for power in POWERS]
    assert curve[-1]["PSP_at_5"] == max(found)
    assert dial.reach in (0.75, 1.0, 1.25), "theory says 1"


def test_on_new_documents_1_is_better_in_psp_and_0_in_p() -> None:
    dial, _ = fitted()
    ids, scores, truth, weights = world(seed=1)
    short = Shortlist.ranked(ids, scores)
    low, high = (measured(dial, tail, short, truth, weights) for tail in (0.0, 1.0))
    assert low.P_at_1 > high.P_at_1 + 3
    assert high.PSP_at_5 > low.PSP_at_5 + 1.5


def test_the_curve_is_the_share_of_positives() -> None:
    random = np.random.default_rng(0)
    scores = random.normal(size=200_000)
    chance = 1 / (1 + np.exp(2 - 1.5 * scores))
    curve = _curve(scores, random.random(len(scores)) < chance)
    assert curve is not None
    inner = np.linspace(-0.5, 2, 6)
    np.testing.assert_allclose(np.exp(np.interp(inner, *curve)), 1 / (1 + np.exp(2 - 1.5 * inner)), rtol=0.12)
    assert all((np.diff(own) > 0).all() for own in curve)


@pytest.mark.parametrize("tail", [None, 0.0, 0.4, 1.0])
def test_probabilities_are_shares_of_positives_on_new_documents_at_every_position(tail: float | None) -> None:
    dial = replace(fitted()[0], default=0.7, reach=0.75)
    ids, scores, _, _ = world(4000, seed=2)
    chance = 1 / (1 + np.exp(2 - 1.5 * scores))
    found = dial.probability(ids, dial.turned(ids, scores, tail), tail)
    assert found.dtype == np.float32
    assert not found[ids == PAD_ID].any() and found[ids != PAD_ID].all()
    np.testing.assert_allclose(found, dial.probability(ids, scores, 0.0), atol=1e-5)
    for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 1.0)):
        chosen = (found > low) & (found <= high)
        assert found[chosen].mean() == pytest.approx(chance[chosen].mean(), abs=0.03)
    assert found.max() == pytest.approx(np.exp(dial.log_share_R[-2])), "no more than was counted"


@pytest.mark.parametrize("tail", [None, 0.0, 1.0])
def test_unlikely_labels_are_left_out_and_the_others_keep_their_order(tail: float | None) -> None:
    """A label that has the least probability itself, as an answer states it, stays."""
    ids, scores, _, _ = world(300, seed=3)
    fusion = replace(summed(Sum(), Inputs(("one",), ("one",))), dial=replace(fitted()[0], default=0.7))
    ranked = fusion.rank(ids, scores[..., None], tail)
    probability = fusion.probabilities(ranked, tail)
    assert probability is not None
    least = float(np.sort(probability[probability >= 0.3])[0])
    likely = fusion.likely(ranked, least, tail)
    expected = [[one for one, share in zip(*row, strict=True) if share >= 0.3]
                for row in zip(ranked.ids_NK.tolist(), probability.tolist(), strict=True)]  # fmt: skip
    assert [[one for one in row if one != PAD_ID] for row in likely.ids_NK.tolist()] == expected
    assert 0 < sum(map(len, expected)) < int(ranked.filled_NK.sum())
    assert fusion.likely(ranked, 0.0) is ranked


@pytest.mark.parametrize("least", [-0.1, 1.1, float("nan"), True])
def test_a_least_probability_that_is_none_is_refused(least: float) -> None:
    fusion = replace(summed(Sum(), Inputs(("one",), ("one",))), dial=fitted()[0])
    with pytest.raises(UsageError, match="min_probability") as caught:
        fusion.likely(Shortlist.nothing(0), least)
    assert caught.value.expected == "a number from 0 to 1"


def test_a_fusion_without_a_dial_has_no_probabilities() -> None:
    plain, nothing = summed(Sum(), Inputs(("one",), ("one",))), Shortlist.nothing(2)
    assert plain.probabilities(nothing) is None
    assert plain.likely(nothing, 0.0) is nothing
    with pytest.raises(UsageError, match=r"min_probability 0\.5 for a fusion without a dial"):
        plain.likely(nothing, 0.5)


def test_a_score_that_tells_nothing_has_no_dial() -> None:
    ids, scores, truth, weights = world()
    assert fit_dial(Shortlist.ranked(ids[:5], scores[:5]), truth.rows(np.arange(5)), weights, 0.0) is None
    assert fit_dial(Shortlist.ranked(ids, np.zeros_like(scores)), truth, weights, 0.0) is None


def test_a_dial_that_changes_no_figure_has_no_effect() -> None:
    """All five candidates of a document are among the first five in any order."""
    ids, scores, truth, weights = world()
    found = fit_dial(Shortlist.ranked(ids[:, :5], scores[:, :5]), truth, weights, 0.0)
    assert found is not None
    assert found[0].reach == 0


def test_a_cost_moves_the_default() -> None:
    dial, curve = fitted(cost=3.0)
    at = TAILS.index(dial.default)
    assert 0 < dial.default < 1
    assert curve[at]["P_at_1"] >= curve[0]["P_at_1"] - 3.0 > curve[at + 1]["P_at_1"]


def test_new_labels_get_their_weights_and_the_others_keep_theirs() -> None:
    """Else a label that was added would change the order of all others."""
    far = np.array([-1e3, 1e3])
    dial = Dial(far, far, np.log(np.array([1.0, 4.0], np.float32)), reach=0.5, default=0.25)
    more = dial.extended(np.array([2.0, 3.0, 8.0]))
    np.testing.assert_allclose(np.exp(more.log_weight_L), [1.0, 4.0, 8.0], rtol=1e-6)
    assert more.log_weight_L.dtype == np.float32
    assert (more.reach, more.default) == (0.5, 0.25) and more.score_R is far


@pytest.mark.parametrize("tail", [-0.1, 1.1, float("nan"), True, "1"])
def test_a_position_that_is_none_is_refused(tail: float) -> None:
    with pytest.raises(UsageError, match="a number from 0"):
        fitted()[0].turned(np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32), tail)


def test_a_fusion_keeps_its_dial_in_its_files_and_ranks_by_it(tmp_path: Path) -> None:
    ids, scores, _, _ = world(50)
    plain = summed(Sum(), Inputs(("classifier",), ("classifier",)))
    dialled = replace(plain, dial=replace(fitted()[0], default=0.5))
    dialled.write(tmp_path)
    again = FittedFusion.read(tmp_path)
    values = scores[..., None]
    for tail in (None, 0.0, 0.3, 1.0):
        expected = dialled.rank(ids, values, tail)
        np.testing.assert_array_equal(again.rank(ids, values, tail).scores_NK, expected.scores_NK)
        np.testing.assert_array_equal(again.rank(ids, values, tail).ids_NK, expected.ids_NK)
    np.testing.assert_array_equal(again.rank(ids, values).ids_NK, again.rank(ids, values, 0.5).ids_NK)
    np.testing.assert_array_equal(again.rank(ids, values, 0.0).ids_NK, plain.rank(ids, values).ids_NK)
    assert not np.array_equal(again.rank(ids, values, 1.0).ids_NK, plain.rank(ids, values).ids_NK)


def test_a_fusion_without_a_dial_opens_and_refuses_a_position(tmp_path: Path) -> None:
    plain = summed(Sum(), Inputs(("classifier",), ("classifier",)))
    plain.write(tmp_path)
    assert "dial" not in json.loads((tmp_path / "fusion.json").read_text())
    again = FittedFusion.read(tmp_path)
    ids, values = np.zeros((1, 1), np.int32), np.zeros((1, 1, 1), np.float32)
    assert again.rank(ids, values, 0.0).ids_NK.tolist() == [[0]]
    with pytest.raises(UsageError, match="without a dial"):
        again.rank(ids, values, 0.5)


def test_powers_rise_from_0_in_steps_of_a_quarter_at_most() -> None:
    steps = np.diff(POWERS)
    assert POWERS[0] == 0
    assert ((steps > 0) & (steps <= 0.2501)).all()
