"""Clusters of equal size over vectors, and measures of their quality."""

from xc_core.cluster.balanced import balanced_clusters, cluster_sizes
from xc_core.cluster.clusters import Clusters
from xc_core.cluster.quality import cohesion, theorem1

__all__ = ["Clusters", "balanced_clusters", "cluster_sizes", "cohesion", "theorem1"]
