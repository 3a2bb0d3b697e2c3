"""Orders of mini-batches: random, clustered with a curriculum (NGAME, algorithm 1), or made of stored clusters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from xc_core.cluster import balanced_clusters, cohesion, placed
from xc_core.errors import ConfigError
from xc_core.params import at_least
from xc_core.sampling.base import ORDERS, BatchOrder, Documents, Order, falls_due
from xc_core.seeds import derive, generator
from xc_core.shapes import F32, I64, Array


@ORDERS.register("random")
@dataclass(frozen=True, kw_only=True)
class Random(Order):
    """A new random permutation every epoch."""

    batch_size: int = 128
    """Documents per mini-batch (S)."""

    def __post_init__(self) -> None:
        at_least(self, batch_size=1)

    def build(self, documents: Documents, seed: int) -> BatchOrder:
        """Return the order of ``documents``."""
        return RandomOrder(self.batch_size, len(documents), seed)


class FixedOrder:
    """Base of orders that do not adapt; they have no state."""

    def refresh(self, epoch: int, vectors_ND: F32 | Tensor) -> dict[str, float]:
        """Do nothing."""
        return {}

    def clusters(self) -> tuple[I64, I64] | None:
        """Return None: batches are not made of clusters."""
        return None

    def arrays(self) -> dict[str, Array]:
        """Return no state."""
        return {}

    def load(self, arrays: dict[str, Array]) -> None:
        """There is no state."""


@dataclass
class RandomOrder(FixedOrder):
    """A random permutation of ``size`` documents per epoch, cut into batches."""

    batch_size: int
    size: int
    seed: int

    def batches(self, epoch: int) -> list[I64]:
        """Return ceil(N / S) batches of sizes that differ by at most one."""
        order = generator(self.seed, "order", epoch).permutation(self.size)
        return np.array_split(order, max(-(-self.size // self.batch_size), 1))


@ORDERS.register("clustered")
@dataclass(frozen=True, kw_only=True)
class Clustered(Order):
    """Batches of near documents: ceil(S / C) whole clusters each (NGAME, algorithm 1).

    Batches are random until the first clustering. Clusters are computed during the training, on the vectors of the
    previous epoch.
    """

    adapts = True
    batch_size: int = 128
    """Documents per mini-batch (S)."""
    size: int = 8
    """Documents per cluster at the first clustering (C)."""
    double_every: int = 0
    """Epochs after which C doubles, up to the batch size; 0 for never (curriculum, NGAME section 3)."""
    refresh_every: int = 1
    """Epochs between two clusterings (tau)."""
    warmup_epochs: int = 1
    """Random epochs before the first clustering; they fill the memory bank at no cost."""

    def __post_init__(self) -> None:
        at_least(self, batch_size=1, size=1, double_every=0, refresh_every=1, warmup_epochs=0)
        if self.size > self.batch_size:
            raise ConfigError(
                f"clusters of size {self.size} with batch_size {self.batch_size}",
                expected="clusters that fit into a batch",
                do="lower size or raise batch_size",
            )

    def size_at(self, epoch: int) -> int:
        """Return C in ``epoch``, after the curriculum."""
        doublings = max(epoch - self.warmup_epochs, 0) // self.double_every if self.double_every else 0
        return int(min(self.size << min(doublings, 32), self.batch_size))

    def due(self, epoch: int) -> bool:
        """Return True if documents are clustered before ``epoch``."""
        return falls_due(epoch, self.warmup_epochs, self.refresh_every)

    def shortened(self, epochs: float) -> dict[str, Any]:
        """Return changes for fewer ``epochs``, such that the first clustering is before the last one at the latest."""
        last = math.ceil(epochs) - 1  # vectors to cluster come from the first epoch
        return {"warmup_epochs": last} if 1 <= last < self.warmup_epochs else {}

    def build(self, documents: Documents, seed: int) -> BatchOrder:
        """Return the order of ``documents``."""
        return ClusteredOrder(self, len(documents), seed)


class ClusteredOrder:
    """Shuffled whole clusters; random batches until the first clustering.

    A cluster holds C or C - 1 documents, so a batch has S documents if C divides S, and up to C more otherwise.
    """

    def __init__(self, settings: Clustered, size: int, seed: int) -> None:
        self.settings, self.size, self.seed = settings, size, seed
        self.order_N: I64 = np.zeros(0, np.int64)
        self.sizes: I64 = np.zeros(0, np.int64)

    def batches(self, epoch: int) -> list[I64]:
        """Return the batches: shuffled clusters, ceil(S / C) of them each."""
        if not len(self.sizes):
            return RandomOrder(self.settings.batch_size, self.size, self.seed).batches(epoch)
        return cluster_batches((self.order_N, self.sizes), self.settings.batch_size, epoch, self.seed)

    def refresh(self, epoch: int, vectors_ND: F32 | Tensor) -> dict[str, float]:
        """Cluster the vectors if due; return cluster size, number of clusters and cohesion."""
        if not self.settings.due(epoch):
            return {}
        target, points_ND = self.settings.size_at(epoch), placed(vectors_ND)
        self.order_N, self.sizes = balanced_clusters(points_ND, target, derive(self.seed, "refresh", epoch))
        return {
            "cluster_size": float(target),
            "clusters": float(len(self.sizes)),
            "cohesion": cohesion(points_ND, self.order_N, self.sizes),
        }

    def clusters(self) -> tuple[I64, I64] | None:
        """Return the present clusters, if any were computed."""
        return (self.order_N, self.sizes) if len(self.sizes) else None

    def arrays(self) -> dict[str, Array]:
        """Return the present clusters."""
        return {"order": self.order_N, "sizes": self.sizes}

    def load(self, arrays: dict[str, Array]) -> None:
        """Restore saved clusters."""
        self.order_N, self.sizes = arrays["order"].astype(np.int64), arrays["sizes"].astype(np.int64)


@ORDERS.register("stored-clusters")
@dataclass(frozen=True, kw_only=True)
class StoredClusters(Order):
    """Batches of ceil(S / C) whole clusters of the stage clusters.

    For M4: its document vectors are frozen, so clusters are computed once.
    """

    stored = True
    batch_size: int = 1024
    """Documents per mini-batch (S)."""

    def __post_init__(self) -> None:
        at_least(self, batch_size=1)

    def build(self, documents: Documents, seed: int) -> BatchOrder:
        """Return the order of ``documents``; raises ConfigError if no clusters are stored for them."""
        return StoredOrder(documents.clusters(), self.batch_size, seed)


@dataclass
class StoredOrder(FixedOrder):
    """Shuffled whole clusters that never change; they are an input, no state."""

    stored: tuple[I64, I64]
    batch_size: int
    seed: int

    def batches(self, epoch: int) -> list[I64]:
        """Return the batches: shuffled clusters, ceil(S / C) of them each."""
        return cluster_batches(self.stored, self.batch_size, epoch, self.seed)

    def clusters(self) -> tuple[I64, I64] | None:
        """Return the clusters."""
        return self.stored


def cluster_batches(clusters: tuple[I64, I64], batch_size: int, epoch: int, seed: int) -> list[I64]:
    """Return batches of shuffled whole clusters; ``clusters`` is (order, sizes), as from ``balanced_clusters``."""
    order_N, sizes = clusters
    shuffled = generator(seed, "order", epoch).permutation(len(sizes))
    per_batch = -(-batch_size // int(sizes.max()))
    starts = np.cumsum(sizes) - sizes
    groups = np.array_split(shuffled, max(-(-len(shuffled) // per_batch), 1))
    return [np.concatenate([order_N[starts[j] : starts[j] + sizes[j]] for j in group]) for group in groups]
