"""The score ``noise``: log p_n(label | document), for classifiers whose negatives were drawn from p_n.

Adding it to a classifier score that was trained against p_n removes the bias (Bamler and Mandt, equation 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xc_core.sampling import Noise as Distribution
from xc_core.sampling import load_noise, save_noise
from xc_core.scores.base import SCORES, FittedScore, Query, Score, ScoreData
from xc_core.shapes import F32, I32


@SCORES.register("noise")
@dataclass(frozen=True, kw_only=True)
class Noise(Score):
    """The distribution from which the classifier's negatives were drawn."""

    needs_noise = True

    def fit(self, data: ScoreData) -> FittedScore:
        """Read the distribution of the classifier's training."""
        return LogNoise(data.noise())

    def open(self, folder: Path) -> FittedScore:
        """Open the distribution."""
        return LogNoise(load_noise(folder))


@dataclass(frozen=True)
class LogNoise(FittedScore):
    """Scores candidates by log p_n and proposes the most probable labels."""

    distribution: Distribution

    @property
    def num_labels(self) -> int:
        """Number of labels, L."""
        return self.distribution.num_labels

    def candidates(self, query: Query, k: int) -> I32 | None:
        """Return about ``k`` labels with the highest p_n, which rows trained against p_n rank too low."""
        return self.distribution.likely(query.doc_ND, k)

    def values(self, query: Query, ids_NK: I32) -> F32:
        """Return log p_n of each candidate; the lowest float32 for a hole."""
        log_NK = self.distribution.log_prob(query.doc_ND, ids_NK.astype(np.int64))
        return np.maximum(log_NK, np.finfo(np.float32).min).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write the distribution."""
        save_noise(self.distribution, folder)
