"""Balanced clusters: an exact cover of equal sizes for any N and C, as good as plain 2-means, and reproducible."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from tests.arrays import unit
from tests.cluster.points import mixture
from tests.naive import clusters as naive
from xc_core.cluster import balanced, balanced_clusters, cluster_sizes, cohesion
from xc_core.errors import ConfigError


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 700), st.integers(1, 800), st.integers(0, 2**32 - 1))
def test_every_point_is_in_one_cluster_and_sizes_differ_by_at_most_one(size: int, target: int, seed: int) -> None:
    vectors = unit(np.random.default_rng(seed).standard_normal((size, 4)))
    order, sizes = balanced_clusters(vectors, target, seed)
    assert sorted(order.tolist()) == list(range(size))
    assert len(sizes) == -(-size // target)
    assert sizes.sum() == size
    if size:
        assert sizes.max() - sizes.min() <= 1
        assert sizes.max() <= target


@pytest.mark.parametrize(("size", "target", "expected"), [(12, 5, [4, 4, 4]), (13, 5, [5, 4, 4]), (6, 1, [1] * 6)])
def test_the_count_is_not_rounded_to_a_power_of_two(size: int, target: int, expected: list[int]) -> None:
    assert cluster_sizes(size, target).tolist() == expected
    assert balanced_clusters(mixture(0, size, 3, 3, 1.0)[0], target, 0)[1].tolist() == expected


def test_the_same_seed_gives_the_same_order_and_another_seed_another() -> None:
    vectors, _ = mixture(1, 500, 8, 20, 1.0)
    before = vectors.copy()
    first, again, other = (balanced_clusters(vectors, 7, seed)[0] for seed in (3, 3, 4))
    assert first.tolist() == again.tolist() != other.tolist()
    assert np.array_equal(vectors, before)


def test_equal_vectors_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """In large nodes too, and on every processor: a sort that is not stable depends on its instructions."""
    for bound in ("SEEN", "_TOGETHER"):
        monkeypatch.setattr(balanced, bound, 64)
    order, _ = balanced_clusters(np.eye(3, 4, dtype=np.float32)[np.arange(500) % 3], 10, 0)
    for kind in range(3):
        assert (np.diff(order[order % 3 == kind]) > 0).all()


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(2, 40), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_the_lowest_scores_are_those_of_a_sort_that_keeps_the_order_of_equal_ones(
    nodes: int, width: int, values: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(-values, values, (nodes, width)).astype(np.float32)
    scores[random.random(scores.shape) < 0.1] = np.inf
    left = random.integers(1, width, nodes)
    places = scores.argsort(1, kind="stable").argsort(1)
    assert np.array_equal(balanced._lowest(scores, left), places < left[:, None])


def test_the_number_of_threads_changes_nothing() -> None:
    vectors, _ = mixture(2, 3000, 48, 60, 0.8)
    orders, threads = [], torch.get_num_threads()
    for number in (1, 2):
        torch.set_num_threads(number)
        with threadpool_limits(number):
            orders.append(balanced_clusters(vectors, 9, 0)[0])
    torch.set_num_threads(threads)
    assert np.array_equal(*orders)


@pytest.mark.parametrize(("clusters", "size"), [(4, 10), (7, 30), (24, 25), (40, 60)])
def test_planted_clusters_are_found(clusters: int, size: int) -> None:
    vectors, own = mixture(3, clusters * size, 32, clusters, 0.02)
    order, sizes = balanced_clusters(vectors, size, 0)
    assert all(len(set(own[part])) == 1 for part in naive.clusters_of(order, sizes))


@pytest.mark.parametrize(
    ("size", "width", "centres", "noise", "target"),
    [
        (600, 16, 40, 0.7, 8),
        (2000, 32, 100, 0.7, 8),
        (2000, 64, 2000, 0.3, 5),
        (3000, 16, 20, 1.0, 16),
        (350, 8, 9, 1.0, 50),
    ],
)
def test_cohesion_is_that_of_plain_recursive_two_means(
    size: int, width: int, centres: int, noise: float, target: int
) -> None:
    fast, slow = [], []
    for seed in range(3):
        vectors, _ = mixture(seed, size, width, centres, noise)
        fast.append(cohesion(vectors, *balanced_clusters(vectors, target, seed)))
        slow.append(naive.cohesion_of_sums(vectors, naive.balanced(vectors, target, seed)))
    assert np.mean(fast) >= 0.98 * np.mean(slow)
    assert np.mean(fast) > 3 * np.mean([cohesion(vectors, np.arange(size), cluster_sizes(size, target))])


def test_a_sample_of_a_large_node_splits_it_nearly_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = mixture(4, 4000, 16, 50, 0.7)
    whole = cohesion(vectors, *balanced_clusters(vectors, 10, 0))
    monkeypatch.setattr(balanced, "SEEN", 512)
    order, sizes = balanced_clusters(vectors, 10, 0)
    assert sorted(order.tolist()) == list(range(4000))
    assert cohesion(vectors, order, sizes) >= 0.96 * whole


@pytest.mark.parametrize("together", [1, 64, 10**6])
def test_how_many_nodes_are_split_together_does_not_matter(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = mixture(5, 700, 12, 30, 0.9)
    expected, sizes = balanced_clusters(vectors, 6, 0)
    monkeypatch.setattr(balanced, "_TOGETHER", together)
    found, _ = balanced_clusters(vectors, 6, 0)
    # Sums of padded rows may round otherwise, so single points may change places; the clusters are as good.
    assert cohesion(vectors, found, sizes) == pytest.approx(cohesion(vectors, expected, sizes), rel=0.01)


def test_a_run_of_clusters_is_a_larger_cluster() -> None:
    random = np.random.default_rng(6)
    outer = np.repeat(random.standard_normal((4, 32)), 4, axis=0)
    inner = outer + 0.3 * random.standard_normal((16, 32))
    own = random.permutation(np.arange(320) % 16)
    vectors = unit(inner[own] + 0.01 * random.standard_normal((320, 32)))
    order, sizes = balanced_clusters(vectors, 20, 0)
    assert all(len(set(own[part])) == 1 for part in naive.clusters_of(order, sizes))
    assert all(len(set(own[part] // 4)) == 1 for part in naive.clusters_of(order, np.full(4, 80)))


def test_neighbouring_clusters_are_nearer_than_distant_ones() -> None:
    vectors, _ = mixture(7, 1024, 24, 60, 0.8)
    order, sizes = balanced_clusters(vectors, 4, 0)
    levels = [cohesion(vectors, order, np.full(1024 // size, size)) for size in (4, 8, 16, 64, 256, 1024)]
    assert all(fine > coarse for fine, coarse in pairwise(levels))
    assert len(sizes) == 256


@pytest.mark.parametrize("target", [1, 3, 50, 400])
def test_equal_points_are_split_all_the_same(target: int) -> None:
    constant = unit(np.ones((350, 5)))
    order, sizes = balanced_clusters(constant, target, 0)
    assert sorted(order.tolist()) == list(range(350))
    assert sizes.max() - sizes.min() <= 1
    assert np.isnan(cohesion(constant, order, sizes)) if target == 1 else True


def test_copies_of_a_point_stay_together() -> None:
    distinct, _ = mixture(8, 40, 16, 40, 1.0)
    own = np.random.default_rng(8).permutation(np.repeat(np.arange(40), 8))
    order, sizes = balanced_clusters(distinct[own], 8, 0)
    together = sum(len(set(own[part])) == 1 for part in naive.clusters_of(order, sizes))
    assert together >= 0.9 * len(sizes)


def test_vectors_of_length_zero_are_points_like_others() -> None:
    vectors = np.concatenate([np.zeros((30, 4), np.float32), mixture(9, 30, 4, 2, 0.1)[0]])
    assert sorted(balanced_clusters(vectors, 6, 0)[0].tolist()) == list(range(60))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("size", [40, 3000])
def test_vectors_that_are_not_finite_are_refused(value: float, size: int) -> None:
    vectors = mixture(10, size, 8, 5, 1.0)[0]
    vectors[17, 3] = value
    with pytest.raises(ConfigError, match="not finite"):
        balanced_clusters(vectors, 4, 0)


@pytest.mark.parametrize("seen", [1 << 15, 1024])
def test_an_invalid_value_that_only_the_product_reports_is_no_warning(
    seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenBLAS adds up a register that it has not set: the flag is raised, the product is right."""
    matmul, calls = np.matmul, []

    def flagged(*args: Any) -> Any:
        calls.append(np.array(np.inf) - np.array(np.inf))
        return matmul(*args)

    vectors = unit(np.random.default_rng(0).standard_normal((2000, 5)))
    monkeypatch.setattr(balanced, "SEEN", seen)
    expected = balanced_clusters(vectors, 4, 0)
    with np.errstate(invalid="warn"):
        monkeypatch.setattr(np, "matmul", lambda *args: flagged(*args) if args[1].shape[-1] == 1 else matmul(*args))
        found = balanced_clusters(vectors, 4, 0)
    assert calls
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_target_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="cluster size 0"):
        balanced_clusters(np.ones((3, 2), np.float32), 0, 0)


def test_a_sample_of_a_large_node_is_split_in_the_shares_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three clusters two are on one side; the sample, too, has two thirds there."""
    seen: list[tuple[int, int]] = []
    split = balanced._two_means

    def noting(points: Any, counts: Any, left: Any, random: Any) -> Any:
        seen.append((int(counts[0]), int(left[0])))
        return split(points, counts, left, random)

    monkeypatch.setattr(balanced, "SEEN", 60)
    monkeypatch.setattr(balanced, "_two_means", noting)
    vectors = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    balanced_clusters(unit(vectors), 100, 0)
    count, left = seen[0]
    assert count == 60
    assert left in (20, 40)


def test_two_means_starts_at_a_point_and_the_one_furthest_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balanced, "ROUNDS", 0)
    points = mixture(12, 9, 4, 3, 1.0)[0]
    expected = [points[(points @ start).argmin()] - start for start in points]
    for seed in range(5):
        (found,) = balanced._two_means(points[None], np.array([9]), np.array([4]), np.random.default_rng(seed))
        assert any(np.array_equal(found, direction) for direction in expected)
