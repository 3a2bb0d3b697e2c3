"""Cell search (IVF) through faiss: fast to build, small, recall set by how many cells are visited.

Takes: vectors_LD.                        Gives: Index.
May import: errors, ann.base, ann.faiss_index.  Never: visits more cells than there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import faiss

from xc_core.ann.base import INDEXES, IndexConfig
from xc_core.ann.faiss_index import FaissIndex, even_lengths, read
from xc_core.errors import ConfigError
from xc_core.seeds import derive
from xc_core.shapes import F32

_POINTS: Final = 64
"""Vectors a cell, at most, that the cells' centres are fitted on; faiss's 256 take four times as long for no recall."""


class Ivf:
    """The family of IVF indexes with uncompressed vectors."""

    @staticmethod
    def build(vectors_LD: F32, config: IndexConfig) -> FaissIndex:
        """Cluster the vectors into cells and fill them.

        Raises ConfigError where more cells are asked for than there are vectors, or more probes than cells.
        """
        vectors = even_lengths(vectors_LD)
        lists = config.lists or max(1, min(round(4 * len(vectors) ** 0.5), len(vectors) // 8))
        if lists > len(vectors):
            raise ConfigError(f"{lists} lists for {len(vectors)} vectors", expected="at most as many", do="lower lists")
        if config.lists and config.probes > lists:
            raise ConfigError(f"{config.probes} probes of {lists} lists", expected="at most as many", do="lower probes")
        cells = faiss.IndexFlatIP(vectors.shape[1])
        inner = faiss.IndexIVFFlat(cells, vectors.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
        inner.cp.seed = derive(config.seed, "ivf") % (1 << 31)
        inner.cp.min_points_per_centroid, inner.cp.max_points_per_centroid = 1, _POINTS
        inner.train(vectors)
        inner.add(vectors)
        inner.nprobe = min(config.probes, lists)
        return FaissIndex(inner, vectors_LD.shape[1])

    @staticmethod
    def load(folder: Path, config: IndexConfig, width: int) -> FaissIndex:
        """Read the cells."""
        inner = read(folder)
        inner.nprobe = min(config.probes, inner.nlist)
        return FaissIndex(inner, width)


INDEXES.add("ivf", Ivf)
