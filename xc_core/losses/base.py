"""The contract of a loss: it maps scores of B documents against U labels, and two masks, to (sum, count).

A loss never changes its arguments and never divides by the count; only the training step divides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from xc_core.errors import XCError
from xc_core.params import within
from xc_core.plugins import Part, Table
from xc_core.shapes import F32, I64, Bool, spans


@dataclass(frozen=True)
class OnHost:
    """A batch's masks (B x U), weights and ids in the memory of the processor.

    A loss that selects documents or pairs selects here: to ask a card how many there are would wait for it.
    """

    chosen_BU: Bool
    known_BU: Bool
    weight_BU: F32 | None
    docs_B: I64 | None
    labels_U: I64 | None

    def rows(self) -> I64:
        """Return the documents that have a chosen positive and a negative, as positions in the batch."""
        negative_BU = ~(self.known_BU | self.chosen_BU) if self.weight_BU is None else self.weight_BU > 0
        return np.flatnonzero(self.chosen_BU.any(1) & negative_BU.any(1))

    @cached_property
    def pairs(self) -> tuple[I64, I64]:
        """Position of document and label of each chosen pair."""
        row_P, column_P = np.nonzero(self.chosen_BU)
        return row_P, column_P

    def documents(self, rows: I64 | Bool | slice) -> OnHost:
        """Return what belongs to the documents ``rows``: positions, a mask (B) or a slice."""
        weight = None if self.weight_BU is None else self.weight_BU[rows]
        docs = None if self.docs_B is None else self.docs_B[rows]
        return OnHost(self.chosen_BU[rows], self.known_BU[rows], weight, docs, self.labels_U)


@dataclass(frozen=True)
class Sampled:
    """How the labels of a pool were sampled; losses on samples read this besides the masks."""

    weight_BU: Tensor | None = None
    """Weight of a label as a negative of a document (0: not a negative); None: 1 unless it is a known positive."""
    noise_BU: Tensor | None = None
    """log p_n(label | document) of labels that are chosen or have a weight."""
    docs_B: Tensor | None = None
    """Positions of the documents, for losses that keep state per document."""
    labels_U: Tensor | None = None
    """Ids of the labels, for losses that keep state per label."""
    host: Callable[[], OnHost] | None = None
    """Returns the same, and the masks that the loss is called with, on the processor."""

    def negatives(self, chosen_BU: Tensor, known_BU: Tensor) -> Tensor:
        """Return the weights (B x U); if there are none, compute them from the masks."""
        return (~(known_BU | chosen_BU)).float() if self.weight_BU is None else self.weight_BU

    def on_host(self, chosen_BU: Tensor, known_BU: Tensor) -> OnHost:
        """Return the batch on the processor; without ``host`` it is copied there, which waits for a card."""
        if self.host is not None:
            return self.host()
        weight = None if self.weight_BU is None else self.weight_BU.cpu().numpy()
        docs, labels = (None if ids is None else ids.long().cpu().numpy() for ids in (self.docs_B, self.labels_U))
        return OnHost(chosen_BU.cpu().numpy(), known_BU.cpu().numpy(), weight, docs, labels)

    def documents(self, rows: Tensor | slice) -> Sampled:
        """Return the sample of the documents ``rows``, a mask (B) or a slice."""
        tensors = (self.weight_BU, self.noise_BU, self.docs_B)
        weight, noise, docs = (None if tensor is None else tensor[rows] for tensor in tensors)
        if (host := self.host) is None:
            return Sampled(weight, noise, docs, self.labels_U)
        index = rows if isinstance(rows, slice) else rows.cpu().numpy()
        return Sampled(weight, noise, docs, self.labels_U, lambda: host().documents(index))


PLAIN: Final = Sampled()


class BatchLoss(Protocol):
    """A loss that is ready to be called on mini-batches."""

    @property
    def separable(self) -> bool:
        """True if the loss of a batch is the sum of its losses on blocks of labels; all documents then count."""

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return the loss summed over the batch, and its count (both scalars; the sum carries the gradient).

        ``chosen_BU`` (bool) marks the positives to learn from, ``known_BU`` all known positives. A known positive that
        is not chosen is neither a positive nor, unless ``sampled`` gives it a weight, a negative. A document without a
        chosen positive, or without a negative, adds nothing to either number. (A separable loss does not see all labels
        of a document at once, so it always counts the document and adds the cost of its negatives.)
        """

    def tensors(self) -> dict[str, Tensor]:
        """Return all state, to be saved."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore saved state."""


LOSSES: Table[type[Loss]] = Table("loss")


class Loss(Part):
    """Settings of a loss; ``build`` returns the loss itself."""

    table = LOSSES
    unbiased: ClassVar[bool] = False
    """True if its optimum has no bias from the noise distribution that negatives are drawn from, so that prediction
    does not need this distribution."""

    @property
    def divisor(self) -> float:
        """The number that the loss divides scores by; rows that are released as logits are divided by it too."""
        return 1.0

    def build(self) -> BatchLoss:
        """Return the loss with these settings."""
        raise NotImplementedError


def summed(
    loss: BatchLoss, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
) -> tuple[Tensor, Tensor]:
    """Call ``loss``; raise XCError unless it returns a sum and a count, both tensors without dimensions.

    A sum over documents that does not lead back to ``scores_BU`` is an error too, because nothing would be learnt.
    """
    result = loss(scores_BU, chosen_BU, known_BU, sampled)
    if isinstance(result, tuple) and [getattr(item, "shape", None) for item in result] == [(), ()]:
        if scores_BU.requires_grad and not result[0].requires_grad and result[1] > 0:
            raise XCError(
                f"a loss {type(loss).__name__} whose sum has no gradient",
                expected="a sum computed from the scores by operations of torch, without detach() or item()",
                do="fix the method __call__ of the loss; python -m pytest tests/contracts -k KIND tests it",
            )
        return result
    items = result if isinstance(result, tuple) else (result,)
    kinds = [f"a tensor {tuple(i.shape)}" if isinstance(i, Tensor) else f"a {type(i).__name__}" for i in items]
    raise XCError(
        f"a loss {type(loss).__name__} that returns {', '.join(kinds)}",
        expected="two tensors without dimensions: the sum of the loss and its count",
        do="fix the method __call__ of the loss; python -m pytest tests/contracts -k KIND tests it",
    )


TEMPERATURES: Final = (1e-3, 100.0)
"""Range of temperatures. CLIP learns one of at least 0.01, scores that are logits have 1. Below the
range the rounding of a cosine in bf16 (4e-3) is several logits; above it all labels are equally likely."""
BIASES: Final = (-100.0, 100.0)
"""Range of biases of a logit. log L, the bias at which an average label has the probability 1 / L, is below 20; a
sigmoid beyond the range is 0 or 1 in float32, so nothing is learnt."""


@dataclass(frozen=True, kw_only=True)
class Tempered(Loss):
    """Base of losses that divide scores by a temperature."""

    temperature: float = 0.05
    """Divides the scores; 0.001 to 100."""

    def __post_init__(self) -> None:
        within(self, temperature=TEMPERATURES)

    @property
    def divisor(self) -> float:
        """The temperature."""
        return self.temperature


class Stateless(Loss):
    """Base of losses without state: the settings are the loss. Subclasses define ``__call__``.

    One that compares documents with each other sets ``independent = False``: a large step calls others on parts of the
    batch.
    """

    separable: ClassVar[bool] = False

    @property
    def independent(self) -> bool:
        """True if the loss of a batch is the sum of the losses of its documents."""
        return True

    def build(self) -> BatchLoss:
        """Return the loss itself."""
        return self

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum, count); see ``BatchLoss``."""
        raise NotImplementedError

    def each(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return sum and count of each document (both B); only for a loss that is ``independent``.

        One call per document; a loss may override it with a faster way to the same numbers.
        """
        if not len(scores_BU):
            return scores_BU.float().sum(1), torch.zeros(0, dtype=torch.int64, device=scores_BU.device)
        rows = spans(len(scores_BU), 1)
        results = [self(scores_BU[row], chosen_BU[row], known_BU[row], sampled.documents(row)) for row in rows]
        return torch.stack([total for total, _ in results]), torch.stack([count for _, count in results])

    def tensors(self) -> dict[str, Tensor]:
        """Return no state."""
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """There is no state."""
