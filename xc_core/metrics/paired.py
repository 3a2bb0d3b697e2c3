"""Is one model better than another on the same documents: the difference of every metric, with an interval.

Takes: two PerDocument of the same documents.  Gives: Difference of each metric.
May import: seeds, metrics.ranking.            Never: calls two intervals that overlap a tie (the documents are paired).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from xc_core.metrics.ranking import PerDocument, columns, percent, resamples
from xc_core.seeds import generator

RESAMPLES: Final = 2000


@dataclass(frozen=True)
class Difference:
    """Ours minus theirs, in points of percent, and the ends of its 95 % interval."""

    points: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """True where the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def differences(ours: PerDocument, theirs: PerDocument, *, seed: int = 0) -> dict[str, Difference]:
    """Return the difference of every metric both have, with a percentile interval of a paired bootstrap over documents.

    Both models are judged on the same resample, so what is hard in a document is hard for both and drops out. Raises
    ValueError for other numbers of documents.
    """
    names = [name for name in ours.num if name in theirs.num]
    tables = [columns(figures, names) for figures in (ours, theirs)]
    size = len(tables[0])
    if len(tables[1]) != size:
        raise ValueError(f"{size} and {len(tables[1])} documents")
    drawn = np.empty((RESAMPLES, len(names)))
    for i, weights in enumerate(resamples(generator(seed, "paired"), size, RESAMPLES)):
        drawn[i] = percent(weights @ tables[0]) - percent(weights @ tables[1])
    points = percent(tables[0].sum(0)) - percent(tables[1].sum(0))
    low, high = np.nanquantile(drawn, [0.025, 0.975], axis=0)
    return {name: Difference(float(points[i]), float(low[i]), float(high[i])) for i, name in enumerate(names)}
