"""The scores ``frequency`` and ``prior``: how many train documents a label has, the same for every document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xc_core.params import within
from xc_core.scores.base import SCORES, FittedScore, NewLabels, Query, Score, ScoreData
from xc_core.shapes import F32, I32, I64


@SCORES.register("frequency")
@dataclass(frozen=True, kw_only=True)
class Frequency(Score):
    """Counts the train documents of each label, so that a tree can weigh other scores by label frequency."""

    code_version = "2"  # a count of 0 was always wrong on held-out documents
    summed = False
    searches = False
    counts = True

    def fit(self, data: ScoreData) -> FittedScore:
        """Count the train documents of each label."""
        return PerLabel(self._values(data.label_counts()), self.kind, self.searches)

    def extended(self, fitted: FittedScore, new: NewLabels) -> FittedScore:
        """Add labels without documents."""
        assert isinstance(fitted, PerLabel)
        return replace(fitted, value_L=np.concatenate([fitted.value_L, self._values(np.zeros(len(new), np.int64))]))

    def open(self, folder: Path) -> FittedScore:
        """Open the values."""
        return PerLabel(np.load(folder / f"{self.kind}.npy", allow_pickle=False), self.kind, self.searches)

    def _values(self, count_L: I64) -> I64 | F32:
        return count_L


@SCORES.register("prior")
@dataclass(frozen=True, kw_only=True)
class Prior(Frequency):
    """temperature x log(count): how frequent a label is, to be added to a score that does not know it.

    In-batch pools draw a label as a negative in proportion to its frequency, so the optimum of a softmax on them is
    s / temperature = log p(label | document) - log p(label) + const: pointwise mutual information. Adding
    temperature x log p(label) gives log p(label | document). Measurements are in docs/papers/ngame.md.
    """

    summed = True
    searches = True
    offset = True
    counts = False
    temperature: float = 0.05
    """Weight of the logarithm; of a score that was trained by a softmax, the temperature of that loss."""

    def __post_init__(self) -> None:
        within(self, temperature=(0, 100))

    def _values(self, count_L: I64) -> F32:
        """Count a label without any document as half a document."""
        return (self.temperature * np.log(np.maximum(count_L, 0.5))).astype(np.float32)


@dataclass(frozen=True)
class PerLabel(FittedScore):
    """One value per label, in a file with the name of the score."""

    value_L: I64 | F32
    kind: str
    searches: bool

    @property
    def num_labels(self) -> int:
        """Number of labels, L."""
        return len(self.value_L)

    def candidates(self, query: Query, k: int) -> I32 | None:
        """Return the ``k`` most frequent labels, the same for each document."""
        if not self.searches:
            return None
        best: I64 = np.argsort(-self.value_L, kind="stable")[:k]
        return np.broadcast_to(best.astype(np.int32), (len(query), len(best))).copy()

    def values(self, query: Query, ids_NK: I32) -> F32:
        """Return the value of each candidate."""
        return np.asarray(self.value_L[ids_NK], np.float32)

    def save(self, folder: Path) -> None:
        """Write the values."""
        np.save(folder / f"{self.kind}.npy", self.value_L)
