"""The artefact of the stage negatives: hard negatives of documents.

The file ``hard_negatives.npz`` holds rows of the corpus, label ids and scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.errors import ConfigError
from xc_core.shapes import I32, I64, Shortlist

_FILE: Final = "hard_negatives.npz"


@dataclass(frozen=True)
class HardNegatives:
    """For each of the documents ``rows_N``, its best-scored labels that are not positives."""

    kind: ClassVar[str] = "negatives"
    rows_N: I64
    """Rows of the corpus, rising; empty if none were mined."""
    found: Shortlist

    @classmethod
    def open(cls, folder: Path) -> HardNegatives:
        """Open and verify the artefact at ``folder``; raise MissingError, CorruptError."""
        artifacts.verify(folder, kind=cls.kind)
        with np.load(folder / _FILE, allow_pickle=False) as arrays:
            return cls(arrays["rows"], Shortlist(arrays["ids"], arrays["scores"]))

    def write(self, build: Build) -> None:
        """Write the files of the artefact."""
        np.savez(build.path / _FILE, rows=self.rows_N, ids=self.found.ids_NK, scores=self.found.scores_NK)
        build.facts |= {"documents": len(self.rows_N), "k": self.found.k}

    def of(self, rows_N: I64) -> I32:
        """Return the hard negatives of ``rows_N`` (N x K, holes last).

        Raises ConfigError if some of them have none.
        """
        if missing := int((~np.isin(rows_N, self.rows_N)).sum()):
            raise ConfigError(
                f"{missing} of {len(rows_N)} documents without stored hard negatives",
                expected="hard negatives of all documents that the classifier is trained on",
                do="run the stage negatives again" if len(self.rows_N) else "set negatives.k above 0",
            )
        return np.asarray(self.found.ids_NK[np.searchsorted(self.rows_N, rows_N)], np.int32)
