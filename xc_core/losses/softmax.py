"""Softmax over the labels of a mini-batch with several positives: SupCon, and UniDEC's and DEXML's decoupled form."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from xc_core.errors import ConfigError
from xc_core.losses.base import LOSSES, PLAIN, Sampled, Stateless, Tempered
from xc_core.losses.bce import Bce
from xc_core.params import within


@dataclass(frozen=True, kw_only=True)
class _Softmax(Stateless, Tempered):
    """sum_i 1/|P_i| sum_{l in P_i} [ log(sum_{k in D_il} exp(s_ik / t)) - s_il / t ], counted per document i.

    ``P_i``: chosen positives of document i. ``D_il``: l and the labels that are not known positives of i (decoupled:
    the other positives stay out of the denominator), or these and all of ``P_i`` (SupCon). t: the temperature. If
    labels were sampled with weights, a negative is in the denominator as often as its weight says, which estimates the
    sum over all labels.

    If ``forward`` is below 1, the loss is forward * (this) + (1 - forward) * (the same from labels to documents), where
    a label's positives are the documents that chose it and its negatives those that do not have it.

    Source: UniDEC (001), L_PSL (section 3.1), L_D (3.2), and the two losses of section 4.3; DEXML uses the decoupled
    softmax too. With one positive per document both are the softmax cross-entropy. The paper sums both sides over the
    batch alike, so the count is the number of documents.
    """

    decoupled: ClassVar[bool]
    forward: float = 1.0
    """Share of the loss from documents to labels; the rest is from labels to documents."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, forward=(0, 1))

    @property
    def independent(self) -> bool:
        """False if labels are compared with documents too, because they are then compared across the batch."""
        return self.forward == 1.0

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum, number of documents with a chosen positive and a negative)."""
        logits = scores_BU.float() / self.temperature
        weight = sampled.negatives(chosen_BU, known_BU)
        total, count = self._one_direction(logits, chosen_BU, weight)
        if self.forward == 1.0:
            return total, count
        backward, _ = self._one_direction(logits.T, chosen_BU.T, weight.T)
        return self.forward * total + (1 - self.forward) * backward, count

    def _one_direction(self, logits_BU: Tensor, chosen_BU: Tensor, weight_BU: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of the rows that have a positive and a negative, and their number."""
        counts_B = chosen_BU.any(1) & (weight_BU > 0).any(1)
        if logits_BU.is_cpu:
            logits, chosen, weight = logits_BU[counts_B], chosen_BU[counts_B], weight_BU[counts_B]
        else:  # to drop rows would wait for the card: one that does not count gets no positive and a negative
            logits, chosen = logits_BU, chosen_BU & counts_B[:, None]
            weight = torch.where(counts_B[:, None], weight_BU, 1.0)
        denominator = weight if self.decoupled else weight.masked_fill(chosen, 1.0)
        log_denominator_R1 = (logits + denominator.log()).logsumexp(1, keepdim=True)
        gap = log_denominator_R1 - logits
        terms = softplus(gap) if self.decoupled else gap
        return (terms.masked_fill(~chosen, 0.0).sum(1) / chosen.sum(1).clamp_min(1)).sum(), counts_B.sum()


@LOSSES.register("decoupled-softmax")
@dataclass(frozen=True, kw_only=True)
class DecoupledSoftmax(_Softmax):
    """Softmax loss that leaves a document's other positives out of the denominator; the formula is in ``_Softmax``."""

    decoupled = True


@LOSSES.register("supcon")
@dataclass(frozen=True, kw_only=True)
class SupCon(_Softmax):
    """Softmax loss with all of a document's chosen positives in the denominator; the formula is in ``_Softmax``."""

    decoupled = False


@LOSSES.register("softmax-and-bce")
@dataclass(frozen=True, kw_only=True)
class WithBinary(Stateless):
    """A softmax loss plus ``weight`` times the binary cross-entropy of the same scores, counted per document.

    Source: UniDEC (001), table 3: the loss of the classifier head in the row with the best P@1.
    """

    softmax: DecoupledSoftmax | SupCon = field(default_factory=DecoupledSoftmax)
    binary: Bce = field(default_factory=Bce)
    weight: float = 0.1
    """Weight of the binary cross-entropy; 0 to 100."""

    def __post_init__(self) -> None:
        within(self, weight=(0, 100))
        for name, types in (("softmax", (DecoupledSoftmax, SupCon)), ("binary", (Bce,))):
            if not isinstance(loss := getattr(self, name), types):
                kinds = " or ".join(kind.kind for kind in types)
                raise ConfigError(f"{name} {loss.kind!r}", expected=kinds, do="fix the value")

    @property
    def divisor(self) -> float:
        """The temperature of the softmax."""
        return self.softmax.temperature

    @property
    def independent(self) -> bool:
        """Whether the softmax is."""
        return self.softmax.independent

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum, number of documents with a chosen positive and a negative)."""
        total, count = self.softmax(scores_BU, chosen_BU, known_BU, sampled)
        weight_BU = sampled.negatives(chosen_BU, known_BU)
        counts_B = chosen_BU.any(1) & (weight_BU > 0).any(1)
        if not scores_BU.is_cpu:
            weighted = replace(sampled, weight_BU=weight_BU * counts_B[:, None], host=None)
            pairs, _ = self.binary(scores_BU, chosen_BU & counts_B[:, None], known_BU, weighted)
            return total + self.weight * pairs, count
        pairs, _ = self.binary(
            scores_BU[counts_B], chosen_BU[counts_B], known_BU[counts_B], sampled.documents(counts_B)
        )
        return total + self.weight * pairs, count
