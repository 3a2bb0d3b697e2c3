"""Clustered order: whole clusters, the curriculum's formula, refreshes when due; and who meets whom."""

from __future__ import annotations

import numpy as np
import pytest

from tests.naive import clusters as naive
from xc_core.errors import ConfigError
from xc_core.sampling import ORDERS, OrderConfig
from xc_core.sampling.order import ClusteredOrder, RandomOrder
from xc_core.shapes import F32, I64


def planted(groups: int, each: int) -> tuple[F32, I64]:
    """Return unit vectors in ``groups`` tight groups, and the group of each."""
    random = np.random.default_rng(0)
    own = random.permutation(np.arange(groups * each) % groups)
    found = random.standard_normal((groups, 16))[own] + 0.01 * random.standard_normal((groups * each, 16))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32), own


@pytest.mark.parametrize(("size", "batch_size", "cluster_size"), [(203, 20, 4), (100, 30, 7), (64, 16, 16), (50, 9, 2)])
def test_a_clustered_batch_is_a_union_of_whole_clusters(size: int, batch_size: int, cluster_size: int) -> None:
    config = OrderConfig(batch_size=batch_size, cluster_size=cluster_size, warmup_epochs=0)
    order = ClusteredOrder(config, size, 0)
    order.refresh(0, np.random.default_rng(0).standard_normal((size, 5)).astype(np.float32))
    clusters = [set(cluster) for cluster in naive.clusters_of(order.order_N, order.sizes)]
    for epoch in (0, 1):
        batches = [set(batch.tolist()) for batch in order.batches(epoch)]
        assert all(sum(cluster <= batch for batch in batches) == 1 for cluster in clusters)
        per_batch = -(-batch_size // int(order.sizes.max()))
        assert len(batches) == -(-len(clusters) // per_batch)
        assert all(sum(cluster <= batch for cluster in clusters) <= per_batch for batch in batches)


def test_near_documents_meet_in_clustered_batches_and_not_in_random_ones() -> None:
    vectors, own = planted(groups=32, each=8)
    orders = [ORDERS[kind](OrderConfig(kind=kind, batch_size=32, cluster_size=8), 256, 0) for kind in ORDERS]
    met = {}
    for kind, order in zip(ORDERS, orders, strict=True):
        order.refresh(1, vectors)
        met[kind] = np.mean([(own[batch][:, None] == own[batch][None]).sum(1).mean() for batch in order.batches(1)])
    assert met["clustered"] == 8
    assert met["random"] < 2.5


def test_before_the_first_clustering_the_order_is_the_random_one() -> None:
    config = OrderConfig(batch_size=16, cluster_size=4, warmup_epochs=2)
    random, clustered = RandomOrder(config, 100, 3), ClusteredOrder(config, 100, 3)
    for epoch in (0, 1):
        assert clustered.refresh(epoch, np.ones((100, 2), np.float32)) == {}
        assert [b.tolist() for b in clustered.batches(epoch)] == [b.tolist() for b in random.batches(epoch)]


def test_the_curriculum_doubles_the_clusters_up_to_the_batch() -> None:
    config = OrderConfig(batch_size=48, cluster_size=3, double_every=2, warmup_epochs=1)
    assert [config.size_at(epoch) for epoch in range(12)] == [3, 3, 3, 6, 6, 12, 12, 24, 24, 48, 48, 48]
    assert config.size_at(10**6) == 48
    assert OrderConfig(batch_size=48, cluster_size=3).size_at(100) == 3
    order = ClusteredOrder(config, 480, 0)
    found = [order.refresh(epoch, planted(32, 15)[0]) for epoch in (0, 1, 5)]
    assert found[0] == {}
    assert [(one["cluster_size"], one["clusters"]) for one in found[1:]] == [(3.0, 160.0), (12.0, 40.0)]
    assert found[1]["cohesion"] > 0.95


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({"refresh_every": 1, "warmup_epochs": 0}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"refresh_every": 3, "warmup_epochs": 1}, [1, 4, 7]),
        ({"refresh_every": 5, "warmup_epochs": 2}, [2, 7]),
        ({"kind": "random"}, []),
    ],
)
def test_clusters_are_made_anew_only_when_due(changes: dict[str, int], due: list[int]) -> None:
    config = OrderConfig(**changes)  # type: ignore[arg-type]
    assert [epoch for epoch in range(8) if config.due(epoch)] == due


def test_given_clusters_are_used_as_they_are() -> None:
    clusters = np.random.default_rng(0).permutation(20), np.full(5, 4)
    order = ClusteredOrder.fixed(OrderConfig(batch_size=8, cluster_size=4), clusters, 0)
    groups = [set(cluster) for cluster in naive.clusters_of(*clusters)]
    assert all(sum(group <= set(batch.tolist()) for group in groups) in (1, 2) for batch in order.batches(0))
    assert sorted(np.concatenate(order.batches(0)).tolist()) == list(range(20))


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "clusterd"},
        {"batch_size": 0},
        {"cluster_size": 0},
        {"cluster_size": 200},
        {"double_every": -1},
        {"refresh_every": 0},
        {"warmup_epochs": -1},
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        OrderConfig(**changes)  # type: ignore[arg-type]
