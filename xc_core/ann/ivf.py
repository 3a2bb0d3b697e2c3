"""Cell search (IVF) through faiss: fast to build and small; recall depends on the number of visited cells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import faiss
import numpy as np

from xc_core.ann.base import INDEXES, Index, IndexPart
from xc_core.ann.faiss_index import FaissIndex, even_lengths, read
from xc_core.errors import ConfigError
from xc_core.params import at_least
from xc_core.seeds import derive
from xc_core.shapes import F32, Shortlist

POINTS: Final = 64
"""Vectors per cell, at most, that centres are fitted on; faiss's 256 take four times as long at equal recall."""


class Cells(FaissIndex):
    """A faiss index of cells."""

    def extended(self, vectors_ND: F32) -> FaissIndex | None:
        """Return a copy with more vectors; None unless these and those in the index are all equally long."""
        first_1D = self.index.reconstruct_n(0, 1)
        if first_1D.shape[1] > self.width or even_lengths(np.concatenate([first_1D, vectors_ND])).shape[1] > self.width:
            return None
        return super().extended(vectors_ND)

    def exactly(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query by exact search; lists first in which cell each vector is.

        Without the list, of 8 bytes per vector, faiss looks through all cells for each block of vectors.
        """
        self.index.make_direct_map()
        try:
            return super().exactly(queries_BD, k)
        finally:
            self.index.make_direct_map(False)


@INDEXES.register("ivf")
@dataclass(frozen=True, kw_only=True)
class Ivf(IndexPart):
    """Cells of near vectors, uncompressed."""

    lists: int = 0
    """Cells; 0 for 4 sqrt(L), at most L / 8."""
    probes: int = 32
    """Cells that a query visits."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        at_least(self, lists=0, probes=1)

    def cells(self, size: int) -> int:
        """Return the number of cells for ``size`` vectors."""
        return self.lists or max(1, min(round(4 * size**0.5), size // 8))

    def _built(self, vectors_LD: F32) -> Index:
        """Cluster the vectors into cells and fill them.

        Raises ConfigError for more cells than vectors, or more probes than cells.
        """
        vectors = even_lengths(vectors_LD)
        lists = self.cells(len(vectors))
        if lists > len(vectors):
            raise ConfigError(f"{lists} lists for {len(vectors)} vectors", expected="at most as many", do="lower lists")
        if self.lists and self.probes > lists:
            raise ConfigError(f"{self.probes} probes of {lists} lists", expected="at most as many", do="lower probes")
        quantizer = faiss.IndexFlatIP(vectors.shape[1])
        index = faiss.IndexIVFFlat(quantizer, vectors.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.seed = derive(self.seed, "ivf") % (1 << 31)
        index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, POINTS
        index.train(vectors)
        index.add(vectors)
        index.nprobe = min(self.probes, lists)
        return Cells(index, vectors_LD.shape[1], self)

    def load(self, folder: Path, width: int) -> Index:
        """Read the cells."""
        index = read(folder)
        index.nprobe = min(self.probes, index.nlist)
        return Cells(index, width, self)
