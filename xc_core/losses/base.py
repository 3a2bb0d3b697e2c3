"""The contract of a loss: scores of B documents against U labels and two masks in, (sum, count) out.

Takes: scores_BU, chosen_BU, known_BU, Sampled.  Gives: (sum, count); one place outside divides.
May import: errors, params, plugins.             Never: a mean, a process group, a change to its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from torch import Tensor

from xc_core.errors import ConfigError
from xc_core.params import at_least
from xc_core.plugins import Table


@dataclass(frozen=True)
class Sampled:
    """How the labels of a pool were drawn: what losses on samples read besides the masks."""

    weight_BU: Tensor | None = None
    """How much a label counts as a negative of a document (0: not at all); None: 1 where it is no known positive."""
    noise_BU: Tensor | None = None
    """log p_n(label | document) where the label is chosen or has a weight."""
    docs_B: Tensor | None = None
    """Positions of the documents, for losses that remember something of them."""
    labels_U: Tensor | None = None
    """Ids of the labels, for the same."""

    def negatives(self, chosen_BU: Tensor, known_BU: Tensor) -> Tensor:
        """Return the weights as numbers (B x U), made from the masks where none were given."""
        return (~(known_BU | chosen_BU)).float() if self.weight_BU is None else self.weight_BU


PLAIN: Final = Sampled()


class Loss(Protocol):
    """Callable on one mini-batch."""

    separable: bool
    """True where the loss of a batch is the sum of its losses on blocks of labels; it then counts all documents."""

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return the loss summed over the batch and what it counts (both scalars; the sum carries the gradient).

        ``chosen_BU`` (bool) marks the positives to learn from, ``known_BU`` all positives that are known; a known
        positive that is not chosen is neither a positive nor, unless ``sampled`` gives it a weight, a negative. A
        document without a chosen positive, or without a negative, adds nothing to either number (a separable loss
        cannot know, so there it adds what its negatives cost).
        """

    def tensors(self) -> dict[str, Tensor]:
        """Return all state, to be saved."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved state."""


class Stateless:
    """A loss that remembers nothing and needs all labels of a document at once."""

    separable = False

    def tensors(self) -> dict[str, Tensor]:
        """No state."""
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """No state."""


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
    All others: what scores are divided by, above 0."""
    forward: float = 1.0
    """supcon, decoupled-softmax: share of the loss from documents to labels; the rest is from labels to documents."""
    bias: float = 0.0
    """bce, nce: taken from every logit; the same for all labels, so it moves no rank and starts rare ones low."""
    binary: float = 0.0
    """supcon, decoupled-softmax: weight of a binary cross-entropy added on the same scores (UniDEC, table 3)."""
    regulariser: float = 0.0
    """negative-sampling: lambda of the squared unbiased scores (adversarial softmax, equation 6)."""
    decay: float = 0.9
    """augment-reduce: the t-th estimate of a pair's eta is taken in with weight t^-decay."""

    def __post_init__(self) -> None:
        if self.margin < 0 or self.temperature < 0 or self.negatives < 1 or self.positives < 1:
            raise ConfigError(
                f"margin {self.margin}, temperature {self.temperature}, counts {self.negatives}, {self.positives}",
                expected="margin, temperature >= 0 and negatives, positives >= 1",
                do="mend the value",
            )
        at_least(self, binary=0, regulariser=0, decay=0)
        if not 0 <= self.forward <= 1 or (self.temperature == 0 and self.name != "triplet"):
            raise ConfigError(
                f"forward {self.forward}, temperature {self.temperature}",
                expected="forward between 0 and 1, and except for triplet a temperature above 0",
                do="mend the value",
            )

    def build(self) -> Loss:
        """Return the loss."""
        return LOSSES[self.name](self)


LOSSES: Table[Callable[[LossConfig], Loss]] = Table("loss")
