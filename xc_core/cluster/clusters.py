"""The artefact of the stage clusters: balanced clusters of the train and validation documents.

Its files: ``rows.npy`` (rows of the corpus, rising), ``order.npy`` (positions among them; cluster j is the j-th run)
and ``sizes.npy`` (documents of each cluster).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.shapes import I64


@dataclass(frozen=True)
class Clusters:
    """Clusters of the documents ``rows_N``."""

    kind: ClassVar[str] = "clusters"
    rows_N: I64
    """Rows of the corpus, rising."""
    order_N: I64
    """Positions in ``rows_N``; cluster j is the j-th run."""
    sizes: I64
    """Documents of each cluster."""

    @classmethod
    def open(cls, folder: Path) -> Clusters:
        """Open and verify the artefact at ``folder``; raise MissingError, CorruptError."""
        artifacts.verify(folder, kind=cls.kind)
        return cls(*(np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("rows", "order", "sizes")))

    def write(self, build: Build) -> None:
        """Write the files of the artefact."""
        for name, values in (("rows", self.rows_N), ("order", self.order_N), ("sizes", self.sizes)):
            np.save(build.path / f"{name}.npy", values)
        build.facts |= self.facts()

    def facts(self) -> dict[str, Any]:
        """Return the number of clusters and documents, and the smallest and largest size."""
        smallest, largest = int(self.sizes.min()), int(self.sizes.max())
        return {"clusters": len(self.sizes), "smallest": smallest, "largest": largest, "documents": len(self.rows_N)}

    def among(self, rows_N: I64) -> tuple[I64, I64]:
        """Return (order, sizes) of the clusters restricted to ``rows_N`` (rising); the order holds positions in them.

        Clusters without such a document are left out. Raises ValueError if a row is in no cluster.
        """
        kept_N = np.isin(self.rows_N, rows_N)
        if int(kept_N.sum()) != len(rows_N):
            raise ValueError(f"{len(rows_N) - int(kept_N.sum())} of {len(rows_N)} documents are in no cluster")
        kept_order = kept_N[self.order_N]
        cluster_N = np.repeat(np.arange(len(self.sizes)), self.sizes)
        counts = np.bincount(cluster_N[kept_order], minlength=len(self.sizes))
        return (np.cumsum(kept_N) - 1)[self.order_N[kept_order]], counts[counts > 0]

    def covers(self, rows_N: I64) -> bool:
        """Return True if the clusters hold each of ``rows_N`` (rising) exactly once and nothing else."""
        complete = np.array_equal(np.sort(self.order_N), np.arange(len(self.rows_N)))
        return complete and int(self.sizes.sum()) == len(self.rows_N) and np.array_equal(self.rows_N, rows_N)
