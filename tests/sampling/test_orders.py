"""Orders: whole clusters, the formula of the curriculum, due refreshes, and which documents share batches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.arrays import unit
from tests.naive import clusters as naive
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.params import changed
from xc_core.sampling import ORDERS, BatchOrder, Clustered, Documents, Order, Random, StoredClusters
from xc_core.sampling.order import ClusteredOrder
from xc_core.shapes import F32, I64


def build(config: Order, size: int, seed: int = 0, clusters: tuple[I64, I64] | None = None) -> BatchOrder:
    """Return an order of documents without labels; ``clusters`` are those of an earlier stage."""
    truth = LabelMatrix.none(size, 1)
    stored = Documents(truth) if clusters is None else Documents(truth, clusters=lambda: clusters)
    return config.build(stored, seed)


def planted(groups: int, each: int) -> tuple[F32, I64]:
    """Return unit vectors in ``groups`` tight groups, and the group of each."""
    random = np.random.default_rng(0)
    own = random.permutation(np.arange(groups * each) % groups)
    found = random.standard_normal((groups, 16))[own] + 0.01 * random.standard_normal((groups * each, 16))
    return unit(found), own


@pytest.mark.parametrize(("size", "batch_size", "target"), [(203, 20, 4), (100, 30, 7), (64, 16, 16), (50, 9, 2)])
def test_a_clustered_batch_is_a_union_of_whole_clusters(size: int, batch_size: int, target: int) -> None:
    order = build(Clustered(batch_size=batch_size, size=target, warmup_epochs=0), size)
    assert isinstance(order, ClusteredOrder)
    order.refresh(0, np.random.default_rng(0).standard_normal((size, 5)).astype(np.float32))
    clusters = [set(cluster) for cluster in naive.clusters_of(order.order_N, order.sizes)]
    for epoch in (0, 1):
        batches = [set(batch.tolist()) for batch in order.batches(epoch)]
        assert all(sum(cluster <= batch for batch in batches) == 1 for cluster in clusters)
        per_batch = -(-batch_size // int(order.sizes.max()))
        assert len(batches) == -(-len(clusters) // per_batch)
        assert all(sum(cluster <= batch for cluster in clusters) <= per_batch for batch in batches)


def test_each_clustering_begins_with_other_documents() -> None:
    """Vectors that have not moved are in other clusters in the next epoch, and in the same ones in a resumed one."""
    vectors, found = np.random.default_rng(0).standard_normal((100, 5)).astype(np.float32), []
    for epoch in (1, 2, 1):
        order = build(Clustered(batch_size=20, size=5), 100)
        order.refresh(epoch, vectors)
        found.append({frozenset(cluster) for cluster in naive.clusters_of(*order.clusters())})  # type: ignore[misc]
    assert found[0] == found[2] != found[1]


def test_near_documents_share_clustered_batches_and_not_random_ones() -> None:
    vectors, own = planted(groups=32, each=8)
    stored = np.argsort(own, kind="stable"), np.full(32, 8)
    met = {}
    for kind in ORDERS:
        order = build(ORDERS[kind](batch_size=32), 256, clusters=stored)  # type: ignore[call-arg]
        order.refresh(1, vectors)
        met[kind] = np.mean([(own[batch][:, None] == own[batch][None]).sum(1).mean() for batch in order.batches(1)])
    assert met["clustered"] == met["stored-clusters"] == 8
    assert met["random"] < 2.5


def test_before_the_first_clustering_the_order_is_the_random_one() -> None:
    random = build(Random(batch_size=16), 100, seed=3)
    clustered = build(Clustered(batch_size=16, size=4, warmup_epochs=2), 100, seed=3)
    for epoch in (0, 1):
        assert clustered.refresh(epoch, np.ones((100, 2), np.float32)) == {}
        assert [b.tolist() for b in clustered.batches(epoch)] == [b.tolist() for b in random.batches(epoch)]


def test_the_curriculum_doubles_the_clusters_up_to_the_batch() -> None:
    config = Clustered(batch_size=48, size=3, double_every=2, warmup_epochs=1)
    assert [config.size_at(epoch) for epoch in range(12)] == [3, 3, 3, 6, 6, 12, 12, 24, 24, 48, 48, 48]
    assert config.size_at(10**6) == 48
    assert Clustered(batch_size=48, size=3).size_at(100) == 3
    order = build(config, 480)
    found = [order.refresh(epoch, planted(32, 15)[0]) for epoch in (0, 1, 5)]
    assert found[0] == {}
    assert [(one["cluster_size"], one["clusters"]) for one in found[1:]] == [(3.0, 160.0), (12.0, 40.0)]
    assert found[1]["cohesion"] > 0.95


@pytest.mark.parametrize(
    ("config", "due"),
    [
        (Clustered(refresh_every=1, warmup_epochs=0), [0, 1, 2, 3, 4, 5, 6, 7]),
        (Clustered(refresh_every=3, warmup_epochs=1), [1, 4, 7]),
        (Clustered(refresh_every=5, warmup_epochs=2), [2, 7]),
        (Random(), []),
        (StoredClusters(), []),
    ],
)
def test_clusters_are_computed_only_when_due(config: Order, due: list[int]) -> None:
    assert [epoch for epoch in range(8) if config.due(epoch)] == due
    assert config.adapts == bool(due)


def test_stored_clusters_are_used_as_they_are() -> None:
    clusters = np.random.default_rng(0).permutation(20), np.full(5, 4)
    order = build(StoredClusters(batch_size=8), 20, clusters=clusters)
    found = order.clusters()
    assert found is not None
    assert all(np.array_equal(one, other) for one, other in zip(found, clusters, strict=True))
    groups = [set(cluster) for cluster in naive.clusters_of(*clusters)]
    assert all(sum(group <= set(batch.tolist()) for group in groups) in (1, 2) for batch in order.batches(0))
    assert sorted(np.concatenate(order.batches(0)).tolist()) == list(range(20))


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (Clustered(), "clusterd", "nearest: 'clustered'"),
        (Clustered(), {"size": 200}, "clusters of size 200 with batch_size 128"),
        (Random(), {"size": 4}, "a setting of the order 'random': batch_size"),
        (StoredClusters(), {"refresh_every": 2}, "a setting of the order 'stored-clusters': batch_size"),
    ],
)
def test_settings_that_mean_nothing_are_refused(config: Order, changes: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(config, changes, "classifier.order")


def test_stored_clusters_are_refused_in_a_training_that_has_none() -> None:
    assert [kind for kind in ORDERS if ORDERS[kind].stored] == ["stored-clusters"]
    with pytest.raises(ConfigError, match="stored clusters in a training that has none"):
        build(StoredClusters(), 20)
