"""Orders of mini-batches: random, and clustered with a curriculum (NGAME, algorithm 1).

Takes: OrderConfig, number of documents, seed.          Gives: BatchOrder.
May import: seeds, shapes, cluster, sampling.base.      Never: cuts a cluster in two.
"""

from __future__ import annotations

import numpy as np

from xc_core.cluster import balanced_clusters, cohesion
from xc_core.sampling.base import ORDERS, OrderConfig
from xc_core.seeds import derive, generator
from xc_core.shapes import F32, I64, Array, Bool


@ORDERS.register("random")
class RandomOrder:
    """A new random permutation every epoch, cut into batches of S."""

    def __init__(self, config: OrderConfig, size: int, seed: int) -> None:
        self.config, self.size, self.seed = config, size, seed

    def batches(self, epoch: int) -> list[I64]:
        """Return ceil(N / S) batches of sizes that differ by at most one."""
        order = generator(self.seed, "order", epoch).permutation(self.size)
        return np.array_split(order, max(-(-self.size // self.config.batch_size), 1))

    def refresh(self, epoch: int, vectors_ND: F32) -> dict[str, float]:
        """Nothing to adapt."""
        return {}

    def arrays(self) -> dict[str, Array]:
        """No state."""
        return {}

    def load(self, arrays: dict[str, Array]) -> None:
        """No state."""


def within(clusters: tuple[I64, I64], kept_N: Bool) -> tuple[I64, I64]:
    """Return clusters (order, sizes) of the documents that are kept alone, counted among these; none is empty."""
    order_N, sizes = clusters
    left = kept_N[order_N]
    cluster_N = np.repeat(np.arange(len(sizes)), sizes)
    own = np.bincount(cluster_N[left], minlength=len(sizes))
    return (np.cumsum(kept_N) - 1)[order_N[left]], own[own > 0]


@ORDERS.register("clustered")
class ClusteredOrder:
    """Random whole clusters together, ceil(S / C) a batch; random batches until the first clustering.

    A cluster holds C or C - 1 documents, so a batch has S documents where C divides S, and up to C more elsewhere.
    """

    def __init__(self, config: OrderConfig, size: int, seed: int) -> None:
        self.config, self.size, self.seed = config, size, seed
        self.order_N: I64 = np.zeros(0, np.int64)
        self.sizes: I64 = np.zeros(0, np.int64)

    @classmethod
    def fixed(cls, config: OrderConfig, clusters: tuple[I64, I64], seed: int) -> ClusteredOrder:
        """Build on given clusters, as M4 does: its documents' vectors are frozen, so there is nothing to refresh."""
        order = cls(config, len(clusters[0]), seed)
        order.order_N, order.sizes = clusters
        return order

    def batches(self, epoch: int) -> list[I64]:
        """Return the batches: shuffled clusters, ceil(S / C) of them each."""
        if not len(self.sizes):
            return RandomOrder(self.config, self.size, self.seed).batches(epoch)
        random = generator(self.seed, "order", epoch)
        shuffled = random.permutation(len(self.sizes))
        per_batch = -(-self.config.batch_size // int(self.sizes.max()))
        starts = np.cumsum(self.sizes) - self.sizes
        groups = np.array_split(shuffled, max(-(-len(shuffled) // per_batch), 1))
        return [
            np.concatenate([self.order_N[starts[j] : starts[j] + self.sizes[j]] for j in group]) for group in groups
        ]

    def refresh(self, epoch: int, vectors_ND: F32) -> dict[str, float]:
        """Cluster the vectors anew where the epoch is due; return cluster size, count and cohesion."""
        if not self.config.due(epoch):
            return {}
        target = self.config.size_at(epoch)
        self.order_N, self.sizes = balanced_clusters(vectors_ND, target, derive(self.seed, "refresh", epoch))
        return {
            "cluster_size": float(target),
            "clusters": float(len(self.sizes)),
            "cohesion": cohesion(vectors_ND, self.order_N, self.sizes),
        }

    def arrays(self) -> dict[str, Array]:
        """Return the present clusters."""
        return {"order": self.order_N, "sizes": self.sizes}

    def load(self, arrays: dict[str, Array]) -> None:
        """Take over saved clusters."""
        self.order_N, self.sizes = arrays["order"].astype(np.int64), arrays["sizes"].astype(np.int64)
