"""A file of the figures of each document under several rankings: what models are compared by, document by document.

Format: ``.npz`` with two float32 arrays per ranking and metric, ``ranking/num/metric`` and ``ranking/den/metric``.
If the documents are not all of a split, the int64 array ``rows`` says which rows of the corpus they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from xc_core.metrics.names import KEPT
from xc_core.metrics.ranking import PerDocument
from xc_core.shapes import I64

_ROWS: Final = "rows"


@dataclass(frozen=True)
class StoredFigures:
    """The file at ``path``."""

    path: Path

    @property
    def names(self) -> list[str]:
        """The names of the rankings."""
        with np.load(self.path, allow_pickle=False) as arrays:
            return sorted({name.partition("/")[0] for name in arrays if name != _ROWS})

    @property
    def rows(self) -> I64:
        """The documents, as rows of the corpus, ascending; KeyError if the file does not have them."""
        with np.load(self.path, allow_pickle=False) as arrays:
            return np.asarray(arrays[_ROWS])

    def of(self, name: str) -> PerDocument | None:
        """Return the figures of a ranking; None if there is none of that name."""
        with np.load(self.path, allow_pickle=False) as arrays:
            num, den = (
                {
                    key.rpartition("/")[2]: arrays[key].astype(np.float64)
                    for key in arrays
                    if key.startswith(f"{name}/{side}/")
                }
                for side in ("num", "den")
            )
        return PerDocument(num, den) if num else None

    def write(
        self, figures: Mapping[str, PerDocument], metrics: Collection[str] = KEPT, rows: I64 | None = None
    ) -> None:
        """Write the figures of each ranking by ``metrics``, and which ``rows`` of the corpus they are of."""
        arrays: dict[str, Any] = {
            f"{name}/{side}/{metric}": getattr(per_document, side)[metric].astype(np.float32)
            for name, per_document in figures.items()
            for side in ("num", "den")
            for metric in metrics
        }
        if rows is not None:
            arrays[_ROWS] = rows
        np.savez(self.path, **arrays)
