"""Softmax over the labels of a mini-batch with several positives: SupCon, and the decoupled form of UniDEC and DEXML.

Takes: scores_BU, chosen_BU, known_BU.  Gives: (sum, count).
May import: losses.base, losses.bce.    Never: puts a known positive among the negatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from xc_core.losses.base import LOSSES, PLAIN, LossConfig, Sampled, Stateless
from xc_core.losses.bce import BinaryLoss


@dataclass(frozen=True)
class SoftmaxLoss(Stateless):
    """sum_i 1/|P_i| sum_{l in P_i} [ log(sum_{k in D_il} exp(s_ik / t)) - s_il / t ], counted per document i.

    ``P_i``: chosen positives of document i. ``D_il``: l and the labels that are no known positive of i (decoupled: no
    other positive stands in the denominator), or these and all of ``P_i`` (SupCon). t: the temperature.

    With ``forward`` below 1 the loss is forward * (this) + (1 - forward) * (the same from labels to documents), where a
    label's positives are the documents that chose it and its negatives those that do not have it.

    Source: UniDEC (001), sections 3.1 and 3.2, L_PSL and L_D, with the losses of its table 3; decoupled softmax is also
    DEXML's. With one positive a document both are the softmax cross-entropy. The paper sums over both sides alike, so
    the count is the documents'.
    """

    temperature: float
    decoupled: bool
    forward: float = 1.0

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum, number of documents with a chosen positive and a negative)."""
        logits = scores_BU.float() / self.temperature
        negative = ~(known_BU | chosen_BU)
        total, count = self._side(logits, chosen_BU, negative)
        if self.forward == 1.0:
            return total, count
        backward, _ = self._side(logits.T, chosen_BU.T, negative.T)
        return self.forward * total + (1 - self.forward) * backward, count

    def _side(self, logits_BU: Tensor, chosen_BU: Tensor, negative_BU: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of the rows that have a positive and a negative, and their number."""
        counts_B = chosen_BU.any(1) & negative_BU.any(1)
        logits, chosen, negative = logits_BU[counts_B], chosen_BU[counts_B], negative_BU[counts_B]
        against = negative if self.decoupled else negative | chosen
        others_R1 = logits.masked_fill(~against, -torch.inf).logsumexp(1, keepdim=True)
        gap = others_R1 - logits
        each = softplus(gap) if self.decoupled else gap
        return (each.masked_fill(~chosen, 0.0).sum(1) / chosen.sum(1)).sum(), counts_B.sum()


@dataclass(frozen=True)
class WithBinary(Stateless):
    """A softmax loss plus ``weight`` times the binary cross-entropy of the same scores, per document.

    Source: UniDEC (001), table 3: the classifier head's loss of its best row.
    """

    softmax: SoftmaxLoss
    binary: BinaryLoss
    weight: float

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum, number of documents with a chosen positive and a negative)."""
        total, count = self.softmax(scores_BU, chosen_BU, known_BU, sampled)
        own_B = chosen_BU.any(1) & ~(known_BU | chosen_BU).all(1)
        pairs, _ = self.binary(scores_BU[own_B], chosen_BU[own_B], known_BU[own_B])
        return total + self.weight * pairs, count


@LOSSES.register("decoupled-softmax")
def decoupled(config: LossConfig) -> SoftmaxLoss | WithBinary:
    """Return the decoupled softmax of ``config``."""
    return _built(config, decoupled=True)


@LOSSES.register("supcon")
def supcon(config: LossConfig) -> SoftmaxLoss | WithBinary:
    """Return the SupCon loss of ``config``."""
    return _built(config, decoupled=False)


def _built(config: LossConfig, *, decoupled: bool) -> SoftmaxLoss | WithBinary:
    loss = SoftmaxLoss(config.temperature, decoupled=decoupled, forward=config.forward)
    if not config.binary:
        return loss
    return WithBinary(loss, BinaryLoss(config.temperature, config.bias), config.binary)
