"""Ordered SGD: learn from the documents of a mini-batch with the highest losses only."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from xc_core.errors import ConfigError
from xc_core.losses.base import LOSSES, PLAIN, Loss, Sampled, Stateless
from xc_core.losses.triplet import Triplet
from xc_core.params import at_least


@LOSSES.register("ordered")
@dataclass(frozen=True, kw_only=True)
class Ordered(Stateless):
    """sum over i in Q of L_i, counted per document of Q;  Q: the q documents of the batch with the highest L_i.

    L_i is the mean of the wrapped ``loss`` over what it counts of document i. The step divides by |Q|, so its gradient
    is that of (1 / q) sum_{i in Q} L_i; a document outside Q adds nothing. With q at least the number of documents, and
    one positive per document, it is the wrapped loss.

    Source: Kawaguchi and Lu, Ordered SGD (AISTATS 2020), algorithm 1. There q falls as the training accuracy rises;
    here it is constant.
    """

    independent = False  # which documents count depends on the others of the batch
    loss: Loss = field(default_factory=Triplet)
    """The loss whose documents are selected."""
    q: int = 64
    """Documents per mini-batch to learn from."""

    def __post_init__(self) -> None:
        at_least(self, q=1)
        if not (isinstance(self.loss, Stateless) and self.loss.independent) or isinstance(self.loss, Ordered):
            raise ConfigError(
                f"loss {self.loss.kind!r}, which is not a sum over documents without state",
                expected="for instance triplet, bce, or a softmax with forward 1",
                do="choose another loss",
            )

    @property
    def divisor(self) -> float:
        """That of the wrapped loss."""
        return self.loss.divisor

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum over the selected documents, their number)."""
        assert isinstance(self.loss, Stateless)
        loss_B, count_B = self.loss.each(scores_BU, chosen_BU, known_BU, sampled)
        counts_B = count_B > 0
        if not scores_BU.is_cpu:  # to drop documents would wait for the card: one that does not count comes last
            mean_B = torch.where(counts_B, loss_B / count_B.clamp_min(1), -torch.inf)
            highest_Q, index_Q = mean_B.topk(min(self.q, len(mean_B)))
            return torch.where(counts_B[index_Q], highest_Q, 0.0).sum(), counts_B.sum().clamp_max(self.q)
        mean_R = loss_B[counts_B] / count_B[counts_B]
        highest_Q = mean_R.topk(min(self.q, len(mean_R))).values
        return highest_Q.sum(), torch.tensor(len(highest_Q))
