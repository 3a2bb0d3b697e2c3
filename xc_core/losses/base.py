"""The contract of a loss: scores of B documents against U labels and two masks in, (sum, count) out.

Takes: scores_BU, chosen_BU, known_BU.  Gives: (sum, count); one place outside divides.
May import: plugins.                    Never: a mean, a process group, a change to its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from xc_core.errors import ConfigError
from xc_core.plugins import Table


class Loss(Protocol):
    """Callable on one mini-batch."""

    def __call__(self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss summed over the batch and what it counts (both scalars; the sum carries the gradient).

        ``chosen_BU`` (bool) marks the positives to learn from, ``known_BU`` all positives that are known; a known
        positive that is not chosen is neither a positive nor a negative. A document without a chosen positive, or
        without a negative, adds nothing to either number.
        """


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """A loss by name and the settings that the losses have between them."""

    name: str = "triplet"
    """Name in the table of losses."""
    margin: float = 0.3
    """triplet: by how much (cosine) a positive must beat a negative."""
    negatives: int = 10
    """triplet: hardest negatives of a document that count."""
    positives: int = 1
    """triplet: hardest chosen positives of a document that count."""
    temperature: float = 0.1
    """triplet: softmax temperature of the weights over active negatives; 0: all alike, as the paper's sum has it.
    supcon, decoupled-softmax: what scores are divided by, above 0."""
    forward: float = 1.0
    """supcon, decoupled-softmax: share of the loss from documents to labels; the rest is from labels to documents."""

    def __post_init__(self) -> None:
        if self.margin < 0 or self.temperature < 0 or self.negatives < 1 or self.positives < 1:
            raise ConfigError(
                f"margin {self.margin}, temperature {self.temperature}, counts {self.negatives}, {self.positives}",
                expected="margin, temperature >= 0 and negatives, positives >= 1",
                do="mend the value",
            )
        if not 0 <= self.forward <= 1 or (self.temperature == 0 and self.name != "triplet"):
            raise ConfigError(
                f"forward {self.forward}, temperature {self.temperature}",
                expected="forward between 0 and 1, and for a softmax a temperature above 0",
                do="mend the value",
            )

    def build(self) -> Loss:
        """Return the loss."""
        return LOSSES[self.name](self)


LOSSES: Table[Callable[[LossConfig], Loss]] = Table("loss")
