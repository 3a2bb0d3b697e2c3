"""The objective of a study: a weighted mean of P@1, P@5 and PSP@5 on validation documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from xc_core.errors import UsageError, nearest
from xc_core.metrics.names import stored

FIGURES: Final = ("P@1", "P@5", "PSP@5")
"""What the stage fusion measures on validation documents."""
MEAN: Final = "mean"


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
