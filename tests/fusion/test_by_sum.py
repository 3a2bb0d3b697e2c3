"""Labels without train documents get at least the fused score that others have on average at their plain sum."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.naive import by_sum as naive
from xc_core.fusion import FittedFusion, Inputs, LightGBM, Pairs, Sum, Tree
from xc_core.fusion.by_sum import BySum, too_costly
from xc_core.metrics.ranking import PerDocument
from xc_core.recipes.settings import FusionSettings, inputs_of
from xc_core.scores import Frequency, LabelText, Prior
from xc_core.shapes import F32

NAMES = ("frequency", "a", "b")
INPUTS = Inputs(NAMES, ("a", "b"), counts="frequency")
N, K = 40, 6


def pairs(seed: int = 0) -> Pairs:
    """Return candidates of which a third has the count 0; scores have few values, so sums repeat."""
    random = np.random.default_rng(seed)
    values_NKF = (random.integers(0, 12, (N, K, 3)) / 4).astype(np.float32)
    values_NKF[..., 0] = random.integers(0, 3, (N, K))
    target_NK = (random.random((N, K)) < values_NKF[..., 1] / 4).astype(np.float32)
    filled_NK = random.random((N, K)) < 0.9
    return Pairs(values_NKF, target_NK, filled_NK, filled_NK & (random.random((N, K)) < 0.8))


def fitted(rule: Tree | LightGBM | None = None) -> FittedFusion:
    return (rule or Tree(depth=4, min_leaf=3)).fit(INPUTS, pairs())


def raised() -> FittedFusion:
    return fitted().with_by_sum(INPUTS, pairs())


def known_points(fusion: FittedFusion) -> tuple[list[float], list[float]]:
    """Return plain sum and fused score of each candidate that was found and has train documents."""
    own, fused_NK = pairs(), fusion.by_rule(pairs().values_NKF, pairs().found_NK)
    places = [(n, k) for n in range(N) for k in range(K) if own.found_NK[n, k] and own.values_NKF[n, k, 0] > 0]
    return [float(sum(own.values_NKF[n, k, 1:])) for n, k in places], [float(fused_NK[n, k]) for n, k in places]


def test_scores_are_those_of_the_naive_twin() -> None:
    fusion, values_NKF = raised(), pairs(1).values_NKF
    bare_NK, raised_NK = fusion.by_rule(values_NKF), fusion.scores(values_NKF)
    knots = naive.knots(*known_points(fusion))
    assert len(knots) > 3
    moved = 0
    for n in range(N):
        for k in range(K):
            expected = float(bare_NK[n, k])
            if values_NKF[n, k, 0] == 0:
                expected = max(expected, naive.least(knots, float(sum(values_NKF[n, k, 1:]))))
            assert raised_NK[n, k] == pytest.approx(expected, abs=1e-5)
            moved += expected > bare_NK[n, k] + 1e-6
    assert 0 < moved < (values_NKF[..., 0] == 0).sum(), "some are raised, and some are higher by the rule"


def test_labels_with_documents_keep_their_scores_bit_for_bit() -> None:
    fusion, values_NKF = raised(), pairs(1).values_NKF
    known_NK = values_NKF[..., 0] != 0
    np.testing.assert_array_equal(fusion.scores(values_NKF)[known_NK], fitted().scores(values_NKF)[known_NK])
    only_known = np.maximum(values_NKF, [1, 0, 0]).astype(np.float32)
    np.testing.assert_array_equal(fusion.scores(only_known), fitted().scores(only_known))


def test_no_score_is_lowered() -> None:
    values_NKF = pairs(2).values_NKF
    assert (raised().scores(values_NKF) >= fitted().scores(values_NKF)).all()


def test_the_least_score_rises_with_the_sum_and_is_finite() -> None:
    by_sum = raised().by_sum
    assert by_sum is not None
    sums: F32 = np.linspace(-50, 50, 2001, dtype=np.float32)
    assert (np.diff(by_sum.fused(sums)) > 0).all(), "also beyond the sums of the fit"
    assert np.isfinite(by_sum.fused(np.array([-3e38, 3e38], np.float32))).all()


def test_equal_means_are_one_knot() -> None:
    by_sum = BySum.fit("n", np.arange(6, dtype=np.float32), np.array([1, 1, 1, 3, 3, 3], np.float32))
    assert by_sum is not None
    assert (by_sum.sum_R[1:-1].tolist(), by_sum.fused_R[1:-1].tolist()) == ([1, 4], [1, 3])


def test_each_candidate_counts_where_means_are_joined() -> None:
    """Of four candidates with a mean of 0.5 three have the higher sum; the mean of the two means, 1, would join all."""
    by_sum = BySum.fit("n", np.array([0, 4, 4, 4, 8], np.float32), np.array([2, 0, 0, 0, 1], np.float32))
    assert by_sum is not None
    assert (by_sum.sum_R[1:-1].tolist(), by_sum.fused_R[1:-1].tolist()) == ([3, 8], [0.5, 1])


@pytest.mark.parametrize("fused", [[], [2.0], [3.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
def test_there_is_no_curve_if_the_fused_score_does_not_rise_with_the_sum(fused: list[float]) -> None:
    assert BySum.fit("n", np.arange(len(fused), dtype=np.float32), np.array(fused, np.float32)) is None


def test_nothing_is_raised_without_trees_or_without_a_score_that_counts() -> None:
    assert fitted().with_by_sum(replace(INPUTS, counts=""), pairs()).by_sum is None
    assert Sum().fit(INPUTS, pairs()).with_by_sum(INPUTS, pairs()).by_sum is None


def test_the_sum_is_that_of_the_scores_that_the_fusion_is_compared_with() -> None:
    """A linear start adds all scores with weights, the frequency too."""
    fusion = fitted(LightGBM(linear=True, min_leaf=3))
    values_NKF = pairs().values_NKF
    assert fusion.add == NAMES
    np.testing.assert_allclose(fusion.plain_sum(values_NKF[0]), values_NKF[0, :, 1] + values_NKF[0, :, 2])


def test_a_part_that_is_used_instead_raises_nothing() -> None:
    assert raised().part("sum").by_sum is None


def test_it_survives_its_file_and_files_without_it_are_as_before(tmp_path: Path) -> None:
    values_NKF = pairs(1).values_NKF
    raised().write(tmp_path)
    np.testing.assert_array_equal(FittedFusion.read(tmp_path).scores(values_NKF), raised().scores(values_NKF))
    content = json.loads((tmp_path / "fusion.json").read_text("utf-8"))
    assert set(content.pop("by_sum")) == {"counts", "sum_R", "fused_R"}
    fitted().write(tmp_path)
    assert json.loads((tmp_path / "fusion.json").read_text("utf-8")) == content
    np.testing.assert_array_equal(FittedFusion.read(tmp_path).scores(values_NKF), fitted().scores(values_NKF))


def test_only_the_frequency_counts_documents() -> None:
    assert inputs_of({"prior": Prior(), "label_text": LabelText()}).counts == ""
    assert inputs_of({"label_text": LabelText(), "often": Frequency()}).counts == "often"


def test_a_rule_that_learns_nothing_does_not_use_the_setting() -> None:
    assert "new_by_sum" in FusionSettings(rule=Sum()).unused()
    assert "new_by_sum" not in FusionSettings().unused()


ALL, FEW, FEWER, NONE = [1.0] * 100, [1.0] * 60 + [0.0] * 40, [1.0] * 58 + [0.0] * 42, [0.0] * 100


@pytest.mark.parametrize(("with_it", "most", "expected"), [
    ([FEW, FEW], 0, ()), ([ALL, FEWER], 0, ()), ([ALL, NONE], 0, ("PSP_at_5",)), ([NONE, ALL], 0, ("P_at_1",)),
    ([ALL, NONE], 59, ("PSP_at_5",)), ([ALL, NONE], 60, ()), ([NONE, NONE], 59, ("P_at_1", "PSP_at_5")),
])  # fmt: skip
def test_a_figure_is_too_costly_if_it_is_clearly_worse_by_more_than_the_bound(
    with_it: list[list[float]], most: float, expected: tuple[str, ...]
) -> None:
    def figures(hits: list[list[float]]) -> PerDocument:
        num = {name: np.array(own) for name, own in zip(("P_at_1", "PSP_at_5"), hits, strict=True)}
        return PerDocument(num, {name: np.ones(100) for name in num})

    assert too_costly(figures(with_it), figures([FEW, FEW]), most) == expected
