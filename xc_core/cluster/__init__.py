"""Grouping vectors into clusters of equal size, and saying how good the groups are."""

from xc_core.cluster.balanced import balanced_clusters, cluster_sizes
from xc_core.cluster.quality import Theorem1, cohesion, theorem1

__all__ = ["Theorem1", "balanced_clusters", "cluster_sizes", "cohesion", "theorem1"]
