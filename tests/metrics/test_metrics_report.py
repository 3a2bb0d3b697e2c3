"""The report: its parts add up to the whole, and its intervals have the coverage that they claim."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import metrics as naive
from xc_core.data.labels import LabelMatrix
from xc_core.metrics import bootstrap
from xc_core.metrics import report as report_module
from xc_core.metrics.names import BINS, RECALL
from xc_core.metrics.ranking import PerDocument, per_document
from xc_core.metrics.report import decile_edges, in_bins, intervals, report
from xc_core.shapes import Shortlist


def world(seed: int, documents: int, labels: int, k: int) -> tuple[Shortlist, LabelMatrix, np.ndarray]:
    """Return a shortlist without repeats, a truth of up to 4 positives per document, and skewed train frequencies."""
    random = np.random.default_rng(seed)
    ids = random.random((documents, labels)).argsort(1)[:, :k].astype(np.int32)
    pairs = random.integers(0, labels, (documents, 4))
    kept = random.random((documents, 4)) < 0.6
    truth = LabelMatrix.from_pairs(np.nonzero(kept)[0], pairs[kept], (documents, labels))
    frequency = random.geometric(0.08, labels) - 1
    return Shortlist(ids, -np.sort(random.random(ids.shape)).astype(np.float32)), truth, frequency


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 60), st.integers(1, 12))
def test_bins_and_deciles_add_up_to_the_whole(seed: int, documents: int, labels: int, k: int) -> None:
    short, truth, frequency = world(seed, documents, labels, min(k, labels))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_module, "BOOTSTRAPS", 5)
        found = report(short, truth, np.ones(labels), frequency)
    assert (found["documents"], found["positives"]) == (documents, len(truth.indices))
    for parts in (list(found["bins"].values()), found["deciles"]):
        if parts:
            assert sum(part["P_at_5_points"] for part in parts) == pytest.approx(found["metrics"]["P_at_5"])
            assert sum(part["positives"] for part in parts) == found["positives"]
            assert sum(part["labels"] for part in parts) == labels


def test_each_bin_and_decile_equals_the_slow_twin() -> None:
    short, truth, frequency = world(3, 50, 80, 12)
    found = report(short, truth, np.ones(80), frequency)
    ranked, positives = short.ids_NK.tolist(), [set(truth.row(i).tolist()) for i in range(50)]
    ranges = {name: (low, high if high is not None else 10**9) for name, low, high in BINS}
    parts = [(found["bins"][name], *ranges[name]) for name in ranges]
    parts += [(part, part["from"], part["to"]) for part in found["deciles"]]
    assert len(found["deciles"]) > 5
    for part, low, high in parts:
        chosen = {i for i, count in enumerate(frequency.tolist()) if low <= count <= high}
        expected = naive.by_frequency(ranked, positives, chosen)
        assert {name: part[name] for name in expected} == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("k", [1, 4, 5, 6, 12])
def test_the_recall_of_a_bin_counts_the_first_five_labels_of_each_document(k: int) -> None:
    ranked, truth, frequency = world(k, 40, 60, k)
    figures = per_document(ranked, truth, np.ones(60), dict(in_bins(frequency)))
    assert len(BINS) == len(RECALL)
    for name, low, high in BINS:
        own = {label for label in range(60) if frequency[label] >= low and (high is None or frequency[label] <= high)}
        true = [own.intersection(truth.rows(np.array([doc])).indices.tolist()) for doc in range(40)]
        found = [len(labels.intersection(ids[:5])) for labels, ids in zip(true, ranked.ids_NK.tolist(), strict=True)]
        assert figures.num[RECALL[name]].tolist() == found
        assert figures.den[RECALL[name]].tolist() == list(map(len, true))


def test_deciles_are_ranges_without_gaps_that_hold_about_a_tenth_of_the_positives_each() -> None:
    random = np.random.default_rng(0)
    frequency = random.permutation(1000)
    truth = LabelMatrix.from_pairs(np.arange(1000), random.permutation(1000), (1000, 1000))
    edges = decile_edges(frequency, truth)
    assert edges[0][0] == 0
    assert edges[-1][1] == 999
    assert all(after[0] == before[1] + 1 for before, after in pairwise(edges))
    held = [int(((frequency >= low) & (frequency <= high)).sum()) for low, high in edges]
    assert len(held) == 10
    assert max(held) - min(held) <= 2


def test_equal_frequencies_make_one_decile() -> None:
    truth = LabelMatrix.from_pairs(np.arange(20), np.arange(20), (20, 20))
    assert decile_edges(np.full(20, 7), truth) == [(0, 7)]


def bernoulli(random: np.random.Generator, size: int) -> PerDocument:
    """Return figures of a plain mean of 0.3, and of a ratio of sums whose denominator correlates with its numerator."""
    weight = random.choice([1.0, 2.0, 8.0], size)
    won = np.where(random.random(size) < np.where(weight > 4, 0.6, 0.2), weight, 0.0)
    mean = (random.random(size) < 0.3).astype(np.float64)
    return PerDocument({"mean": mean, "ratio": won}, {"mean": np.ones(size), "ratio": weight})


TRUE = {"mean": 30.0, "ratio": 100 * (0.2 * 1 + 0.2 * 2 + 0.6 * 8) / (1 + 2 + 8)}


@pytest.mark.parametrize(("level", "least", "most"), [(0.95, 0.905, 0.985), (0.8, 0.73, 0.86)])
@pytest.mark.parametrize("groups", [8192, 75])
def test_an_interval_has_the_coverage_that_it_claims(
    level: float, least: float, most: float, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "BOOTSTRAPS", 200)
    monkeypatch.setattr(bootstrap, "GROUPS", groups)
    monkeypatch.setattr(bootstrap, "LEVEL", level)
    random = np.random.default_rng(1)
    found = [intervals(bernoulli(random, 150), seed=i) for i in range(250)]
    for name, true in TRUE.items():
        covered = np.mean([one[name][0] <= true <= one[name][1] for one in found])
        assert least < covered < most, name


@pytest.mark.parametrize("size", [10, 20, 40, 49])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9, 0.98])
def test_an_interval_of_few_documents_covers(size: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bootstrap covers a share of 0.98 in about 2 of 10 samples of ten documents: the others are all right.

    The figures are a share, shares of documents with weights that differ little and much, and a mean of sixths.
    """
    monkeypatch.setattr(report_module, "BOOTSTRAPS", 1)
    random, covered = np.random.default_rng(size), dict.fromkeys(("share", "weighted", "uneven", "mean"), 0)
    for _ in range(400):
        right, weight = (random.random(size) < share).astype(float), np.exp(random.normal(0, 0.5, size))
        mean = random.binomial(6, random.beta(3 * share, 3 * (1 - share), size)) / 6
        num = {"share": right, "weighted": right * weight, "uneven": right * weight**3, "mean": mean}
        den = {"share": np.ones(size), "weighted": weight, "uneven": weight**3, "mean": np.ones(size)}
        for name, (low, high) in intervals(PerDocument(num, den), seed=0).items():
            covered[name] += low <= 100 * share <= high
            assert 0 <= low <= high <= 100
    assert all(count >= (0.87 if name == "uneven" else 0.92) * 400 for name, count in covered.items()), covered


def test_the_interval_of_a_share_is_that_of_agresti_and_coull(monkeypatch: pytest.MonkeyPatch) -> None:
    """9 of 10: (9 + 2) / (10 + 4) = 0.786, and 2.262 standard errors of 0.1097."""
    figures = PerDocument({"P_at_1": np.r_[np.ones(9), 0.0]}, {"P_at_1": np.ones(10)})
    assert intervals(figures, seed=0)["P_at_1"] == pytest.approx((53.77, 100.0), abs=0.01)


def test_from_fifty_documents_on_intervals_are_those_of_the_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = bernoulli(np.random.default_rng(3), 50)
    found = intervals(figures, seed=4)
    monkeypatch.setattr(bootstrap, "FEW", 0)
    assert intervals(figures, seed=4) == found


@pytest.mark.parametrize(("figure", "ends"), [(1.0, (99.006, 100.0)), (0.0, (0.0, 0.994)), (0.2, (19.801, 20.795))])
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_equal_figures_of_all_documents_have_the_interval_of_the_rule_of_three(
    figure: float, ends: tuple[float, float], weight: float
) -> None:
    """300 of 300 have a probability of 0.05 if 0.99006 of all are so. P@5 is 0.2 for one label that is found."""
    figures = PerDocument({"P": np.full(300, figure * weight)}, {"P": np.full(300, weight)})
    assert intervals(figures, seed=0)["P"] == pytest.approx(ends, abs=0.001)


@pytest.mark.parametrize("size", [30, 98])
@pytest.mark.parametrize("most", [1, 2, 5, None])
def test_an_interval_of_precision_ends_where_no_document_is_better(size: int, most: int | None) -> None:
    """Of documents with one label, P@3 is at most 33.33, also if all are right; other metrics reach 100."""
    truth = LabelMatrix.from_pairs(np.arange(size), np.arange(size) % 2, (size, 2))
    short = Shortlist(np.stack([np.arange(size) % 2, 1 - np.arange(size) % 2], 1).astype(np.int32), np.ones((size, 2)))
    found = report(short, truth, np.ones(2), np.full(2, size), most=most)
    free = report(short, truth, np.ones(2), np.full(2, size))["intervals"]
    for name, (low, high) in found["intervals"].items():
        k = int(name.rpartition("_")[2])
        limit = 100 * min(most, k) / k if most is not None and name.startswith("P_") else 100
        assert (low, high) == (free[name][0], min(free[name][1], limit)), name
        assert low <= found["metrics"][name] <= high + 1e-9, name
    assert free["P_at_3"][1] > 34


@pytest.mark.parametrize("share", [0.01, 0.97, 0.99, 0.997])
def test_the_interval_of_a_share_that_is_nearly_all_covers(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 draws of 60 documents with a share of 0.99, 110 are all right: the bootstrap's interval is [100, 100]."""
    monkeypatch.setattr(report_module, "BOOTSTRAPS", 100)
    random, covered = np.random.default_rng(7), 0
    for seed in range(200):
        figures = PerDocument({"P": (random.random(60) < share).astype(float)}, {"P": np.ones(60)})
        low, high = intervals(figures, seed=seed)["P"]
        covered += low <= 100 * share <= high
    assert covered > 180


def test_intervals_hold_the_figure_and_shrink_with_the_number_of_documents() -> None:
    random = np.random.default_rng(2)
    few, many = bernoulli(random, 100), bernoulli(random, 6400)
    for name in TRUE:
        narrow, wide = (intervals(figures, seed=0)[name] for figures in (many, few))
        assert narrow[0] < many.total()[name] < narrow[1]
        assert (wide[1] - wide[0]) / (narrow[1] - narrow[0]) == pytest.approx(8, rel=0.25)


def test_groups_of_documents_give_intervals_of_the_same_width(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = bernoulli(np.random.default_rng(5), 6000)
    for name in TRUE:
        monkeypatch.setattr(bootstrap, "GROUPS", 8192)
        alone = np.mean([np.diff(intervals(figures, seed=seed)[name]) for seed in range(4)])
        monkeypatch.setattr(bootstrap, "GROUPS", 1000)
        in_groups = np.mean([np.diff(intervals(figures, seed=seed)[name]) for seed in range(8)])
        assert in_groups == pytest.approx(alone, rel=0.06)


def test_the_seed_decides_the_intervals() -> None:
    figures = bernoulli(np.random.default_rng(3), 80)
    assert intervals(figures, seed=4) == intervals(figures, seed=4)
    assert intervals(figures, seed=4) != intervals(figures, seed=5)


@pytest.mark.parametrize("documents", [0, 1, 3])
def test_a_report_without_a_positive_has_nan_instead_of_failing(documents: int) -> None:
    truth = LabelMatrix(np.zeros(documents + 1, np.int64), np.zeros(0, np.int32), 4)
    short = Shortlist(np.zeros((documents, 1), np.int32), np.zeros((documents, 1), np.float32))
    found = report(short, truth, np.ones(4), np.zeros(4, np.int64))
    assert math.isnan(found["metrics"]["PSP_at_1"])
    assert all(math.isnan(value) for value in found["intervals"]["PSP_at_1"])
    assert found["deciles"] == []
    if documents:
        low, high = found["intervals"]["P_at_1"]
        assert low == 0.0 and high > 50, "few documents say little"


def test_a_report_of_one_document_has_intervals_of_nearly_the_whole_scale() -> None:
    short, truth, frequency = world(5, 1, 9, 5)
    found = report(short, truth, np.ones(9), frequency)
    low, high = found["intervals"]["P_at_5"]
    assert 0 <= low <= found["metrics"]["P_at_5"] <= high <= 100 and high - low > 90
    assert found["metrics"] == pytest.approx(per_document(short, truth, np.ones(9)).total(), nan_ok=True)
