"""Losses on a few drawn labels that stand for a softmax over all: logistic, NCE, one-vs-each, augment-and-reduce.

Takes: scores_BU, chosen_BU, known_BU, Sampled.  Gives: (sum, count) of chosen pairs.
May import: losses.base.                         Never: draws.

All four read z = s / t. Where ``Sampled`` gives no weights, every label that is no known positive is drawn once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import softplus

from xc_core.losses.base import LOSSES, PLAIN, Sampled, Stateless


@dataclass(frozen=True)
class _Rows:
    """The documents that have a chosen positive and a negative: what every loss here starts from."""

    logits_RU: Tensor
    chosen_RU: Tensor
    weight_RU: Tensor
    noise_RU: Tensor
    own_B: Tensor

    @classmethod
    def of(cls, scores_BU: Tensor, temperature: float, masks: tuple[Tensor, Tensor], sampled: Sampled) -> _Rows:
        """Select the rows; noise is 0 where none was given."""
        chosen_BU, known_BU = masks
        weight_BU = sampled.negatives(chosen_BU, known_BU)
        own_B = chosen_BU.any(1) & (weight_BU > 0).any(1)
        logits = scores_BU.float()[own_B] / temperature
        noise = torch.zeros_like(logits) if sampled.noise_BU is None else sampled.noise_BU[own_B].float()
        return cls(logits, chosen_BU[own_B], weight_BU[own_B], noise, own_B)


@dataclass(frozen=True)
class _OnRows(Stateless):
    """A loss that is a sum over the rows that count, and counts their chosen pairs."""

    temperature: float

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum, number of chosen pairs)."""
        rows = _Rows.of(scores_BU, self.temperature, (chosen_BU, known_BU), sampled)
        return self.total(rows), rows.chosen_RU.sum()

    def total(self, rows: _Rows) -> Tensor:
        """Return the sum."""
        raise NotImplementedError


@dataclass(frozen=True)
class NegativeSamplingLoss(_OnRows):
    """sum over chosen (i, l) of [ log(1 + exp(-z_il)) + lambda (z_il + n_il)^2 ]
    + sum over drawn (i, k) of w_ik [ log(1 + exp(z_ik)) + lambda (z_ik + n_ik)^2 ],  n = log p_n.

    Source: Bamler and Mandt (2020), equations (2) and (6). Its optimum is z_il = log p(l | i) - log p_n(l | i) + const,
    so z + n ranks as a softmax does (equation 5); the fusion feature ``noise`` adds n at prediction.
    """

    regulariser: float

    def total(self, rows: _Rows) -> Tensor:
        """Return the sum."""
        logits, chosen, weight = rows.logits_RU, rows.chosen_RU, rows.weight_RU
        total = (softplus(-logits) * chosen + softplus(logits) * weight).sum()
        if self.regulariser:
            unbiased = (logits + rows.noise_RU).square()
            total = total + self.regulariser * (unbiased * (chosen + weight)).sum()
        return total


@dataclass(frozen=True)
class ContrastiveLoss(_OnRows):
    """Noise-contrastive estimation: the logistic loss of z_il - bias - n_il - log k, k the draws of a chosen positive.

    Source: Gutmann and Hyvaerinen (2010), as Bamler and Mandt (2020), section 5, use it with the tree as p_n. Its
    optimum is z_il - bias = log p(l | i), so nothing is added at prediction and the noise's knowledge is learnt anew.
    The bias, the same for all labels, lets a label that was never drawn start as unlikely as labels are (log L).
    """

    bias: float

    def total(self, rows: _Rows) -> Tensor:
        """Return the sum."""
        draws_R1 = rows.weight_RU.sum(1, keepdim=True) / rows.chosen_RU.sum(1, keepdim=True)
        logits = rows.logits_RU - self.bias - rows.noise_RU - draws_R1.log()
        return (softplus(-logits) * rows.chosen_RU + softplus(logits) * rows.weight_RU).sum()


@dataclass(frozen=True)
class OneVsEachLoss(_OnRows):
    """sum over chosen (i, l), drawn k of w_ik log(1 + exp(z_ik - z_il)) / sum_k w_ik.

    Source: Titsias (2016), a product of pairwise probabilities that bounds the softmax from below; uniform draws stand
    for all k, and their mean for the sum (a constant factor).
    """

    def total(self, rows: _Rows) -> Tensor:
        """Return the sum."""
        row, column = rows.chosen_RU.nonzero(as_tuple=True)
        gaps = rows.logits_RU[row] - rows.logits_RU[row, column][:, None]
        share = rows.weight_RU / rows.weight_RU.sum(1, keepdim=True)
        return (softplus(gaps) * share[row]).sum()


@dataclass
class AugmentReduceLoss:
    """sum over chosen (i, l) of [ -z_il + log Z_i + (1 / Z_i) sum_{k drawn or chosen} w_ik exp(z_ik) - 1 ].

    Z_i is document i's normaliser as remembered: Z_i <- (1 - memory) Z_i + memory * (the present sum). By log a <=
    log b + a / b - 1 the value is an upper bound of the softmax loss for any Z_i, and equal to it at the right one; its
    gradient is nearly unbiased where the weights are: Z_i is held constant, but a share of it is the present draw.

    Source: Ruiz et al., "Augment and Reduce" (2018), the softmax case: their eta of a pair is Z_i exp(-z_il).
    """

    temperature: float
    memory: float
    separable: bool = False
    log_z_N: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum, number of chosen pairs); remember the normalisers of ``sampled.docs_B``."""
        rows = _Rows.of(scores_BU, self.temperature, (chosen_BU, known_BU), sampled)
        part = (rows.logits_RU + rows.weight_RU.log()).masked_fill(rows.chosen_RU, -torch.inf)
        log_now_R = torch.cat([part, rows.logits_RU.masked_fill(~rows.chosen_RU, -torch.inf)], 1).logsumexp(1)
        log_z_R = self._remembered(log_now_R.detach(), sampled.docs_B, rows.own_B)
        chosen_R = rows.chosen_RU.sum(1)
        bound_R = log_z_R + (log_now_R - log_z_R).exp() - 1
        return (chosen_R * bound_R).sum() - (rows.logits_RU * rows.chosen_RU).sum(), chosen_R.sum()

    def _remembered(self, log_now_R: Tensor, docs_B: Tensor | None, own_B: Tensor) -> Tensor:
        """Return log Z of each row after taking in the present estimate; the estimate itself for unknown documents."""
        if docs_B is None or not len(log_now_R):
            return log_now_R
        docs_R = docs_B[own_B]
        self.log_z_N = self.log_z_N.to(log_now_R)
        missing = int(docs_R.max()) + 1 - len(self.log_z_N)
        if missing > 0:
            self.log_z_N = torch.cat([self.log_z_N, log_now_R.new_full((missing,), torch.nan)])
        old_R = self.log_z_N[docs_R]
        mixed_R = torch.logaddexp(old_R + _log(1 - self.memory), log_now_R + _log(self.memory))
        self.log_z_N[docs_R] = torch.where(old_R.isnan(), log_now_R, mixed_R)
        return self.log_z_N[docs_R]

    def tensors(self) -> dict[str, Tensor]:
        """Return the remembered normalisers."""
        return {"log_z": self.log_z_N}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over the remembered normalisers."""
        self.log_z_N = tensors["log_z"].clone()


def _log(share: float) -> float:
    return math.log(share) if share else -math.inf


LOSSES.add("negative-sampling", lambda config: NegativeSamplingLoss(config.temperature, config.regulariser))
LOSSES.add("nce", lambda config: ContrastiveLoss(config.temperature, config.bias))
LOSSES.add("one-vs-each", lambda config: OneVsEachLoss(config.temperature))
LOSSES.add("augment-reduce", lambda config: AugmentReduceLoss(config.temperature, config.memory))
