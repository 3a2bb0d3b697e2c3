"""The objective of a study: a weighted mean of P@1, P@5 and PSP@5 on validation documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from xc_core.errors import UsageError, nearest
from xc_core.metrics.names import stored
from xc_core.metrics.ranking import PerDocument
from xc_core.shapes import F64

FIGURES: Final = ("P@1", "P@5", "PSP@5")
"""What the stage fusion measures on validation documents."""
MEAN: Final = "mean"
OBJECTIVE: Final = "objective"
"""The name of the weighted mean beside those of figures."""


@dataclass(frozen=True)
class Metric:
    """Weights of the figures, which sum to 1."""

    weights: Mapping[str, float]

    @classmethod
    def of(cls, text: str) -> Metric:
        """Return the metric that a text names: mean, one figure (P@1), or weights (P@1=2,PSP@5=1).

        Raises UsageError for anything else.
        """
        if text.strip() == MEAN:
            return cls(dict.fromkeys(FIGURES, 1 / len(FIGURES)))
        weights: dict[str, float] = {}
        for part in text.split(","):
            name, equals, number = (piece.strip() for piece in part.partition("="))
            if name not in FIGURES or name in weights:
                raise _error(text, nearest(name, FIGURES) if name not in FIGURES else f" ({name} twice)")
            weights[name] = _weight(text, number) if equals else 1.0
        total = sum(weights.values())
        if total == float("inf"):
            raise _error(text, " (the sum of the weights is infinite)")
        return cls({name: weight / total for name, weight in sorted(weights.items())})

    def value(self, figures: Mapping[str, float]) -> float:
        """Return the weighted mean of figures, which are named as the stage fusion names them (P_at_1)."""
        return sum(weight * figures[stored(name)] for name, weight in self.weights.items())

    def per_document(self, figures: PerDocument) -> PerDocument:
        """Return the objective of each document, whose total is ``value`` of the totals.

        The sums of denominators are those of all documents, so that the objective of a resample is a ratio of sums
        too. It is the weighted mean of the figures of the resample if their denominators are proportional, as those of
        P@1 and P@5 are; otherwise nearly.
        """

        weights = {stored(name): weight for name, weight in self.weights.items()}
        sums = {name: figures.den[name].sum() for name in weights}

        def mean(side: Mapping[str, F64]) -> dict[str, F64]:
            return {OBJECTIVE: np.sum([weight * side[name] / sums[name] for name, weight in weights.items()], axis=0)}

        return PerDocument(mean(figures.num), mean(figures.den))

    def __str__(self) -> str:
        if len(set(self.weights.values())) == 1:
            names = list(self.weights)
            return names[0] if len(names) == 1 else f"mean of {', '.join(names[:-1])} and {names[-1]}"
        return " + ".join(f"{weight:.3g} {name}" for name, weight in self.weights.items())


def _weight(text: str, number: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not 0 < weight < float("inf"):
        raise _error(text, f" (weight {number!r})")
    return weight


def _error(text: str, reason: str) -> UsageError:
    return UsageError(
        f"--metric {text}{reason}",
        expected=f"{MEAN}, one of {', '.join(FIGURES)}, or weights above 0 such as P@1=2,PSP@5=1",
        do="fix the value",
    )
