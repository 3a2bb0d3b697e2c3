"""Compares two models on the same documents: the difference of each metric, with an interval of paired documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from xc_core.metrics.bootstrap import columns, grouped, interval, percent, resamples
from xc_core.metrics.ranking import PerDocument
from xc_core.seeds import generator
from xc_core.shapes import I64

RESAMPLES: Final = 2000
"""Bootstrap resamples per comparison."""
_FEWEST: Final = 6
"""Documents that differ, at least: of fewer a sign test cannot reach 0.05 (5 of 5 has 0.0625)."""


@dataclass(frozen=True)
class PairedDifference:
    """Ours minus theirs, in percentage points, and the ends of its 95 % interval."""

    points: float
    low: float
    high: float
    differing: int = _FEWEST
    """Documents that the models answer differently by this metric."""

    @property
    def clear(self) -> bool:
        """True if the interval excludes 0, and enough documents differ to tell it from chance."""
        return self.differing >= _FEWEST and (self.low > 0 or self.high < 0)


def matched(ours: PerDocument, our_rows: I64, theirs: PerDocument, their_rows: I64) -> tuple[PerDocument, PerDocument]:
    """Return the figures of the documents that both models have, by the same labels; ``rows`` say which each has.

    The rows are ascending. A document of which one model leaves a label out is left out: its denominators differ.
    """
    _, our_positions, their_positions = np.intersect1d(our_rows, their_rows, assume_unique=True, return_indices=True)
    ours, theirs = ours.rows(our_positions), theirs.rows(their_positions)
    both = [ours.den[name] == theirs.den[name] for name in ours.den.keys() & theirs.den]
    same_labels = np.flatnonzero(np.all(both, axis=0))
    return ours.rows(same_labels), theirs.rows(same_labels)


def differences(ours: PerDocument, theirs: PerDocument) -> dict[str, PairedDifference]:
    """Return the difference of each metric that both have, with a percentile interval of a paired bootstrap.

    Both models are evaluated on the same resamples of documents (above ``GROUPS``: of random groups of documents), so
    the difficulty of a document cancels out. Intervals of (nan, nan) belong to metrics that no resample defines. A
    metric of fewer than ``FEW`` documents, or with the same difference for all of them, has another interval
    (``interval``). Raises ValueError for different numbers of documents.
    """
    names = [name for name in ours.num if name in theirs.num]
    tables = [columns(figures, names) for figures in (ours, theirs)]
    size = len(tables[0])
    if len(tables[1]) != size:
        raise ValueError(f"{size} and {len(tables[1])} documents")
    random = generator(0, "paired")
    groups = [np.ascontiguousarray(table) for table in np.split(grouped(np.hstack(tables), random), 2, axis=1)]
    sums = [[weights @ group for group in groups] for weights in resamples(random, len(groups[0]), RESAMPLES)]
    ours_RM, theirs_RM = percent(np.array(sums)).swapaxes(0, 1)
    drawn = ours_RM - theirs_RM
    points = percent(tables[0].sum(0)) - percent(tables[1].sum(0))
    low, high = interval(drawn, tables)
    differing = np.count_nonzero(tables[0][:, : len(names)] != tables[1][:, : len(names)], axis=0)
    return {
        name: PairedDifference(float(points[i]), float(low[i]), float(high[i]), int(differing[i]))
        for i, name in enumerate(names)
    }
