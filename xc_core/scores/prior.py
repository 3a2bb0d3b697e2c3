"""The score ``prior``: temperature x log(number of train documents of the label), the same for every document."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from xc_core.params import at_least
from xc_core.scores.base import SCORES, FittedScore, NewLabels, Query, Score, ScoreData
from xc_core.shapes import F32, I32, I64

_FILE: Final = "prior.npy"


@SCORES.register("prior")
@dataclass(frozen=True, kw_only=True)
class Prior(Score):
    """How frequent a label is, to be added to a score that does not know it.

    In-batch pools draw a label as a negative in proportion to its frequency, so the optimum of a softmax on them is
    s / temperature = log p(label | document) - log p(label) + const: pointwise mutual information. Adding
    temperature x log p(label) gives log p(label | document). Measurements are in docs/papers/ngame.md.
    """

    offset = True
    temperature: float = 0.05
    """Weight of the logarithm; of a score that was trained by a softmax, the temperature of that loss."""

    def __post_init__(self) -> None:
        at_least(self, temperature=0)

    def fit(self, data: ScoreData) -> FittedScore:
        """Count the train documents of each label; one without any counts as half a document."""
        return LogPrior(self._values(data.label_counts()))

    def extended(self, fitted: FittedScore, new: NewLabels) -> FittedScore:
        """Add labels without documents."""
        assert isinstance(fitted, LogPrior)
        return LogPrior(np.concatenate([fitted.value_L, self._values(np.zeros(len(new), np.int64))]))

    def _values(self, count_L: I64) -> F32:
        return (self.temperature * np.log(np.maximum(count_L, 0.5))).astype(np.float32)

    def open(self, folder: Path) -> FittedScore:
        """Open the values."""
        return LogPrior(np.load(folder / _FILE, allow_pickle=False))


@dataclass(frozen=True)
class LogPrior(FittedScore):
    """One value per label."""

    value_L: F32

    @property
    def num_labels(self) -> int:
        """Number of labels, L."""
        return len(self.value_L)

    def candidates(self, query: Query, k: int) -> I32 | None:
        """Return the ``k`` most frequent labels, the same for each document."""
        best: I64 = np.argsort(-self.value_L, kind="stable")[:k]
        return np.broadcast_to(best.astype(np.int32), (len(query), len(best))).copy()

    def values(self, query: Query, ids_NK: I32) -> F32:
        """Return the value of each candidate."""
        return self.value_L[ids_NK]

    def save(self, folder: Path) -> None:
        """Write the values."""
        np.save(folder / _FILE, self.value_L)
