"""Cohesion and the figures of Theorem 1 against plain loops, and the theorem's inequality on random worlds."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.arrays import matrix, unit
from tests.naive import clusters as naive
from xc_core.cluster import balanced_clusters, cohesion, quality, theorem1
from xc_core.cluster.quality import constants
from xc_core.data.labels import LabelMatrix
from xc_core.shapes import F32, I64


@pytest.mark.parametrize("rows_at_once", [1, 7, 1 << 15])
@pytest.mark.parametrize("target", [2, 5, 60, 1])
def test_cohesion_equals_the_double_loop(target: int, rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "_ROWS_AT_ONCE", rows_at_once)
    vectors = unit(np.random.default_rng(0).standard_normal((60, 6)))
    order, sizes = balanced_clusters(vectors, target, 0)
    slow = naive.cohesion(vectors, naive.clusters_of(order, sizes))
    assert cohesion(vectors, order, sizes) == pytest.approx(slow, abs=1e-6, nan_ok=True)
    assert math.isnan(slow) == (target == 1)


def test_cohesion_of_equal_points_is_one_and_of_opposite_ones_minus_one() -> None:
    points = np.array([[1, 0], [1, 0], [0, 1], [0, -1]], np.float32)
    assert cohesion(points, np.arange(4), np.array([2, 2])) == pytest.approx(0.0)
    assert cohesion(points[:2], np.arange(2), np.array([2])) == pytest.approx(1.0)
    assert cohesion(points[2:], np.arange(2), np.array([2])) == pytest.approx(-1.0)


World = tuple[F32, F32, list[set[int]], tuple[I64, I64], float, list[set[int]]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Return documents near their labels or anywhere, labels without documents, any clustering, filtered pairs."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size, labels = draw(st.integers(2, 24)), draw(st.integers(1, 12))
    label_LD = unit(random.standard_normal((labels, 3)))
    density, noise = draw(st.sampled_from([0.05, 0.2, 0.6])), draw(st.sampled_from([0.05, 0.5, 3.0]))
    positives = [set(np.flatnonzero(random.random(labels) < density).tolist()) for _ in range(size)]
    assume(any(positives))
    centres = np.stack([label_LD[sorted(y)].sum(0) if y else random.standard_normal(3) for y in positives])
    doc_ND = unit(centres + noise * random.standard_normal((size, 3)))
    clusters = balanced_clusters(doc_ND, draw(st.integers(1, 8)), 0)
    radius = draw(st.sampled_from([0.1, 0.3, 0.6, 0.9, 1.3]))
    both = np.concatenate([doc_ND, label_LD]).astype(np.float64)
    distances = np.linalg.norm(both[:, None] - both[None], axis=2)
    assume(min(abs(distances - radius).min(), abs(distances - 2 * radius).min()) > 1e-4)
    share = draw(st.sampled_from([0.0, 0.3]))
    aside = [set(np.flatnonzero(random.random(labels) < share).tolist()) - y for y in positives]
    return doc_ND, label_LD, positives, clusters, radius, aside


def measured(world: World) -> quality.Theorem1:
    doc_ND, label_LD, positives, clusters, radius, aside = world
    truth, filters = (matrix(rows, len(label_LD)) for rows in (positives, aside))
    return theorem1((doc_ND, label_LD), truth, truth.union(filters), clusters, radius=radius, seed=0)


@settings(deadline=None, max_examples=60)
@given(worlds(), st.sampled_from([1, 32]))
def test_every_figure_of_theorem_one_equals_the_slow_twin(world: World, at_once: int) -> None:
    doc_ND, label_LD, positives, clusters, radius, aside = world
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "_AT_ONCE", at_once)
        fast = measured(world)
    slow = naive.theorem1(doc_ND, label_LD, positives, naive.clusters_of(*clusters), radius, aside)
    assert asdict(fast) == pytest.approx(slow, nan_ok=True, rel=1e-9)


@settings(deadline=None, max_examples=100)
@given(worlds())
def test_the_inequality_of_theorem_one_holds(world: World) -> None:
    found = measured(world)
    assert found.missed <= found.bound + 1e-9


def test_a_label_without_documents_is_not_a_missed_negative() -> None:
    label_LD = unit(np.array([[1.0, 0.0], [1.0, 0.01]]))
    doc_ND = unit(np.array([[1.0, 0.0], [1.0, 0.0]]))
    one_cluster = np.arange(2), np.array([2])
    truth = matrix([{0}, {0}], 2)
    found = theorem1((doc_ND, label_LD), truth, truth, one_cluster, radius=0.5, seed=0)
    assert (found.eps1, found.eps2, found.missed, found.bound) == (0.0, 0.0, 0.0, 0.0)
    assert math.isnan(found.missed_share)


def hand_world() -> tuple[tuple[F32, F32], LabelMatrix, LabelMatrix]:
    """Two documents at one point, each with its own label there: apart, each misses the other's label."""
    points = unit(np.array([[1.0, 0.0], [1.0, 0.0]]))
    truth = matrix([{0}, {1}], 2)
    return (points, points), truth, truth


@pytest.mark.parametrize(("sizes", "missed", "eps2"), [([1, 1], 0.5, 0.5), ([2], 0.0, 0.0)])
def test_a_hard_negative_is_missed_if_its_documents_are_in_other_clusters(
    sizes: list[int], missed: float, eps2: float
) -> None:
    found = theorem1(*hand_world(), (np.arange(2), np.array(sizes)), radius=0.5, seed=0)
    assert (found.missed, found.eps1, found.eps2) == (missed, 0.0, eps2)
    assert found.missed_share == 2 * missed
    # p = q = 1, N = L = 2: c1 = 1 (1 + 0) / 2 and c2 = (1 + 0) 2 / (1 x 2)
    assert (found.c1, found.c2, found.bound) == (0.5, 1.0, eps2)


def test_a_sample_estimates_the_figures_of_all_documents() -> None:
    random = np.random.default_rng(5)
    doc_ND, label_LD = unit(random.standard_normal((800, 4))), unit(random.standard_normal((60, 4)))
    truth = LabelMatrix.from_pairs(np.arange(800), random.integers(0, 60, 800), (800, 60))
    clusters = balanced_clusters(doc_ND, 10, 0)
    whole, part, again, other = (
        theorem1((doc_ND, label_LD), truth, truth, clusters, radius=0.5, seed=seed, sample=sample)
        for seed, sample in ((0, 800), (0, 200), (0, 200), (1, 200))
    )
    assert part == again
    assert part != other
    for name in ("eps2", "missed", "missed_share"):
        assert getattr(part, name) == pytest.approx(getattr(whole, name), rel=0.2)


def test_constants_equal_the_slow_twin_and_are_at_most_one_if_all_counts_are_equal() -> None:
    random = np.random.default_rng(6)
    positives = [set(random.integers(0, 9, 3).tolist()) for _ in range(40)]
    used = sorted(set().union(*positives))
    assert constants(matrix(positives, 30)) == pytest.approx(naive.constants(positives, used))
    regular = [{i % 5} for i in range(20)]
    c1, c2 = constants(matrix(regular, 5))
    assert (c1, c2) == (pytest.approx(0.8), pytest.approx(1.0))


def test_without_positives_there_are_no_constants() -> None:
    assert all(math.isnan(c) for c in constants(matrix([set(), set()], 3)))


def test_of_very_many_positives_some_are_measured_each_with_its_own_label() -> None:
    size = 100_000
    own, label_LD = np.arange(size) % 2, np.eye(2, dtype=np.float32)
    truth = LabelMatrix.from_pairs(np.arange(size), own, (size, 2))
    clusters = np.arange(size), np.full(size // 4, 4)
    found = theorem1((label_LD[own], label_LD), truth, truth, clusters, radius=0.5, seed=0, sample=8)
    assert found.eps1 == 0
