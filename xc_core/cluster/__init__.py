"""Clusters of equal size over vectors, and measures of their quality."""

from xc_core.cluster.balanced import balanced_clusters
from xc_core.cluster.clusters import Clusters
from xc_core.cluster.on_card import placed
from xc_core.cluster.quality import cohesion, theorem1
from xc_core.cluster.tree import cluster_sizes

__all__ = ["Clusters", "balanced_clusters", "cluster_sizes", "cohesion", "placed", "theorem1"]
