"""The score ``frequency``: the number of train documents of the label, the same for every document."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from xc_core.scores.base import SCORES, FittedScore, NewLabels, Query, Score, ScoreData
from xc_core.shapes import F32, I32, I64

_FILE: Final = "frequency.npy"


@SCORES.register("frequency")
@dataclass(frozen=True, kw_only=True)
class Frequency(Score):
    """Counts the train documents of each label, so that a tree can weigh other scores by label frequency."""

    summed = False
    searches = False

    def fit(self, data: ScoreData) -> FittedScore:
        """Count the train documents of each label."""
        return Counts(data.label_counts())

    def extended(self, fitted: FittedScore, new: NewLabels) -> FittedScore:
        """Add labels without documents."""
        assert isinstance(fitted, Counts)
        return Counts(np.concatenate([fitted.count_L, np.zeros(len(new), np.int64)]))

    def open(self, folder: Path) -> FittedScore:
        """Open the counts."""
        return Counts(np.load(folder / _FILE, allow_pickle=False))


@dataclass(frozen=True)
class Counts(FittedScore):
    """Number of train documents of each label."""

    count_L: I64

    @property
    def num_labels(self) -> int:
        """Number of labels, L."""
        return len(self.count_L)

    def values(self, query: Query, ids_NK: I32) -> F32:
        """Return the count of each candidate."""
        return self.count_L[ids_NK].astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write the counts."""
        np.save(folder / _FILE, self.count_L)
