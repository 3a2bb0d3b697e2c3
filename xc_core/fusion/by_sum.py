"""The least fused score of labels without train documents: what other labels have on average at the same plain sum.

On held-out documents such labels are hardly ever right, so a rule ranks them low; of the labels of later documents they
may be a third.

Docs: docs/lab-notes/2026-11-30-new-labels-by-the-sum.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy  # its parts are imported when they are used

from xc_core.metrics.paired import differences
from xc_core.metrics.ranking import PerDocument
from xc_core.shapes import F32, F64

_FAR: Final = 1e3
"""The curve goes on by its mean slope for this many times its length; sums outside the knots keep their order."""


@dataclass(frozen=True)
class BySum:
    """A curve from the plain sum of a label's scores to its fused score, for labels whose count is 0."""

    counts: str
    """The score that counts a label's train documents."""
    sum_R: F64
    """Ascending, without ties."""
    fused_R: F64
    """The mean fused score of other labels at each of these sums; ascending, without ties."""

    @classmethod
    def fit(cls, counts: str, sum_M: F32, fused_M: F32) -> BySum | None:
        """Return the curve of M candidates that have train documents (isotonic regression).

        None if the fused score does not rise with the sum.
        """
        distinct_U, place_M, count_U = np.unique(sum_M.astype(np.float64), return_inverse=True, return_counts=True)
        if not len(distinct_U):
            return None
        mean_U = np.bincount(place_M, weights=fused_M) / count_U
        first_R = scipy.optimize.isotonic_regression(mean_U, weights=count_U).blocks[:-1]
        sum_R, fused_R = (
            np.add.reduceat(values_U * count_U, first_R) / np.add.reduceat(count_U, first_R)
            for values_U in (distinct_U, mean_U)
        )
        if len(first_R) < 2:
            return None
        return cls(counts, *(_with_far_points(values_R) for values_R in (sum_R, fused_R)))

    def fused(self, sum_NK: F32) -> F32:
        """Return the fused score at each plain sum; it rises with the sum."""
        return np.interp(sum_NK, self.sum_R, self.fused_R).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"counts": self.counts, "sum_R": self.sum_R.tolist(), "fused_R": self.fused_R.tolist()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> BySum:
        """Return what ``to_dict`` returned."""
        sum_R, fused_R = (np.array(content[name], np.float64) for name in ("sum_R", "fused_R"))
        return cls(content["counts"], sum_R, fused_R)


def too_costly(raised: PerDocument, rule: PerDocument, most: float) -> tuple[str, ...]:
    """Return the figures that raising labels without train documents lowers clearly, and by more than ``most`` points.

    Held-out documents show what it costs and hardly what it gives: few of their labels have no other document.
    """
    compared = differences(raised, rule)
    return tuple(name for name, difference in compared.items() if difference.clear and difference.points < -most)


def _with_far_points(values_R: F64) -> F64:
    """Return ascending values with one more far out on either side, continuing the mean slope."""
    length = values_R[-1] - values_R[0]
    return np.concatenate([[values_R[0] - _FAR * length], values_R, [values_R[-1] + _FAR * length]])
