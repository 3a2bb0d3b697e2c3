"""The paired difference: the right number, and an interval that is narrow and has the coverage that it claims."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.source import ROOT
from xc_core.metrics import bootstrap, paired
from xc_core.metrics.paired import differences
from xc_core.metrics.ranking import PerDocument
from xc_core.shapes import F64


def figures(num: F64, den: F64 | None = None) -> PerDocument:
    return PerDocument({"P_at_1": num}, {"P_at_1": np.ones(len(num)) if den is None else den})


def test_the_difference_is_that_of_the_totals_also_for_ratios_of_sums() -> None:
    random = np.random.default_rng(0)
    ours, theirs = (figures(random.random(200), random.random(200) + 1) for _ in range(2))
    found = differences(ours, theirs)["P_at_1"]
    assert found.points == pytest.approx(ours.total()["P_at_1"] - theirs.total()["P_at_1"])
    assert found.low < found.points < found.high


@pytest.mark.parametrize(("wins", "clear"), [(1, False), (5, False), (6, True), (20, True)])
def test_a_difference_of_fewer_than_six_documents_is_never_clear(wins: int, clear: bool) -> None:
    """Five of five have a probability of 1 in 16 by chance, though nearly every resample that draws one is above 0."""
    ours = np.zeros(60)
    ours[:wins] = 1
    found = differences(figures(ours), figures(np.zeros(60)))["P_at_1"]
    assert (found.low > 0, found.differing, found.clear) == (wins > 1, wins, clear)
    turned = differences(figures(np.zeros(60)), figures(ours))["P_at_1"]
    assert (turned.high < 0, turned.differing, turned.clear) == (wins > 1, wins, clear)


@pytest.mark.parametrize("groups", [8192, 250])
def test_pairing_finds_a_difference_that_separate_intervals_miss(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 of 500 documents are better in one model and none is worse; each interval alone is 8 points wide."""
    monkeypatch.setattr(bootstrap, "GROUPS", groups)
    random = np.random.default_rng(1)
    base = (random.random(500) < 0.5).astype(float)
    better = base.copy()
    better[np.flatnonzero(base == 0)[:10]] = 1
    found = differences(figures(better), figures(base))["P_at_1"]
    assert found.points == pytest.approx(2.0)
    assert found.clear
    assert found.high - found.low < 3
    shuffled = differences(figures(random.permutation(better)), figures(base))["P_at_1"]
    assert not shuffled.clear
    assert shuffled.high - shuffled.low > 8


@pytest.mark.parametrize("groups", [8192, 75])
def test_the_interval_covers_a_true_difference_of_zero_as_often_as_it_claims(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 200 pairs of equal models, a 95 % interval excludes 0 in 2 to 20 of them."""
    monkeypatch.setattr(paired, "RESAMPLES", 300)
    monkeypatch.setattr(bootstrap, "GROUPS", groups)
    random = np.random.default_rng(2)
    out = 0
    for _ in range(200):
        hits = (random.random((2, 150)) < 0.4).astype(float)
        out += differences(figures(hits[0]), figures(hits[1]))["P_at_1"].clear
    assert 2 <= out <= 20


def test_a_metric_without_a_denominator_has_no_difference_and_no_interval() -> None:
    nothing = figures(np.zeros(4), np.zeros(4))
    found = differences(nothing, nothing)["P_at_1"]
    assert np.isnan([found.points, found.low, found.high]).all()
    assert not found.clear


def test_different_numbers_of_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="3 and 4 documents"):
        differences(figures(np.ones(3)), figures(np.ones(4)))


# few documents


def shares(random: np.random.Generator, only_ours: float, only_theirs: float, size: int) -> tuple[F64, F64]:
    draw = random.random(size)
    return (draw < only_ours).astype(float), ((draw >= only_ours) & (draw < only_ours + only_theirs)).astype(float)


@pytest.mark.parametrize("size", [10, 20, 40])
@pytest.mark.parametrize(
    ("only_ours", "only_theirs"), [(0.05, 0.0), (0.1, 0.0), (0.2, 0.02), (0.05, 0.05), (0.3, 0.3), (0.9, 0.02)]
)
def test_the_interval_of_few_documents_covers(
    size: int, only_ours: float, only_theirs: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the worst of these cases a bootstrap covers the truth in about 35 of 100 samples: no document differs."""
    monkeypatch.setattr(paired, "RESAMPLES", 1)
    random, true, covered = np.random.default_rng(size), 100 * (only_ours - only_theirs), 0
    for _ in range(400):
        ours, theirs = shares(random, only_ours, only_theirs, size)
        found = differences(figures(ours), figures(theirs))["P_at_1"]
        covered += found.low <= true <= found.high
        assert -100 <= found.low <= found.points <= found.high <= 100
    assert covered >= 0.9 * 400


def test_from_fifty_documents_on_the_interval_is_the_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = shares(np.random.default_rng(0), 0.2, 0.1, 50)
    whole = differences(figures(ours), figures(theirs))["P_at_1"]
    monkeypatch.setattr(bootstrap, "FEW", 0)
    assert differences(figures(ours), figures(theirs))["P_at_1"] == whole
    few = differences(figures(ours[:49]), figures(theirs[:49]))["P_at_1"]
    monkeypatch.setattr(bootstrap, "FEW", 50)
    other = differences(figures(ours[:49]), figures(theirs[:49]))["P_at_1"]
    assert (other.points, other.differing) == (few.points, few.differing)
    assert (other.low, other.high) != (few.low, few.high)


def test_the_documents_of_a_metric_are_those_with_a_denominator() -> None:
    """Twelve of a thousand documents have a label of this bin; both models find all of them."""
    den = np.zeros(1000)
    den[:12] = 1
    found = differences(figures(den, den), figures(den, den))["P_at_1"]
    assert found.points == 0
    assert found.low < -5 and found.high > 5


# the same difference for all documents


@pytest.mark.parametrize(
    ("ours", "theirs", "ends", "clear"),
    [(1.0, 1.0, (-0.994, 0.994), False), (1.0, 0.0, (98.013, 100.0), True), (0.0, 1.0, (-100.0, -98.013), True)],
)
def test_equal_differences_of_all_documents_have_the_interval_of_the_rule_of_three(
    ours: float, theirs: float, ends: tuple[float, float], clear: bool
) -> None:
    found = differences(figures(np.full(300, ours)), figures(np.full(300, theirs)))["P_at_1"]
    assert (found.low, found.high) == pytest.approx(ends, abs=0.001)
    assert found.clear == clear


@pytest.mark.parametrize("place", ["xc_core/tune/report.py", "xc_core/cli/compare.py", "xc_core/cli/ablate.py"])
def test_what_commands_say_of_few_documents_is_the_limit(place: str) -> None:
    assert paired._FEWEST == 6
    assert len(re.findall(r"six\s+documents", (ROOT / place).read_text())) == 1
