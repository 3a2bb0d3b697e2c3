"""Losses on a few sampled labels that replace a softmax over all: logistic, NCE, one-vs-each, augment-and-reduce.

All four read z = s / t. If ``Sampled`` has no weights, every label that is not a known positive counts as drawn once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import softplus

from xc_core.devices import put
from xc_core.losses.base import (
    BIASES,
    LOSSES,
    PLAIN,
    BatchLoss,
    OnHost,
    Sampled,
    Stateless,
    Tempered,
)
from xc_core.losses.slots import Slots
from xc_core.params import within
from xc_core.shapes import I64


@dataclass(frozen=True)
class _Rows:
    """The documents that have a chosen positive and a negative. Every loss here sums over these alone."""

    logits_RU: Tensor
    chosen_RU: Tensor
    weight_RU: Tensor
    noise_RU: Tensor
    host: OnHost

    @classmethod
    def of(cls, scores_BU: Tensor, temperature: float, masks: tuple[Tensor, Tensor], sampled: Sampled) -> _Rows:
        """Select the rows; the noise is 0 if there is none."""
        chosen_BU, known_BU = masks
        weight_BU, host = sampled.negatives(chosen_BU, known_BU), sampled.on_host(chosen_BU, known_BU)
        rows_R = host.rows()
        selected = put(rows_R, scores_BU.device)
        logits = scores_BU.float()[selected] / temperature
        noise = torch.zeros_like(logits) if sampled.noise_BU is None else sampled.noise_BU[selected].float()
        return cls(logits, chosen_BU[selected], weight_BU[selected], noise, host.documents(rows_R))

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Return row and column of each chosen pair."""
        row_P, column_P = self.host.pairs
        return put(row_P, self.logits_RU.device), put(column_P, self.logits_RU.device)

    def ids(self) -> tuple[I64, I64] | None:
        """Return the document and the label of each chosen pair; None if the sample does not name them."""
        docs_R, labels_U = self.host.docs_B, self.host.labels_U
        if docs_R is None or labels_U is None:
            return None
        row_P, column_P = self.host.pairs
        return docs_R[row_P], labels_U[column_P]


@dataclass(frozen=True, kw_only=True)
class _OnRows(Stateless, Tempered):
    """A loss that sums over the selected rows and counts their chosen pairs."""

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum, number of chosen pairs)."""
        rows = _Rows.of(scores_BU, self.temperature, (chosen_BU, known_BU), sampled)
        return self.total(rows), rows.chosen_RU.sum()

    def total(self, rows: _Rows) -> Tensor:
        """Return the sum."""
        raise NotImplementedError


@LOSSES.register("negative-sampling")
@dataclass(frozen=True, kw_only=True)
class NegativeSampling(_OnRows):
    """sum over chosen (i, l) of [ log(1 + exp(-z_il)) + lambda (z_il + n_il)^2 ]
    + sum over drawn (i, k) of w_ik [ log(1 + exp(z_ik)) + lambda (z_ik + n_ik)^2 ],  n = log p_n.

    Source: Bamler and Mandt (2020), equations (2) and (6). Its optimum is z_il = log p(l | i) - log p_n(l | i) + const,
    so z + n ranks as a softmax does (equation 5); the score ``noise`` adds n at prediction.
    """

    regulariser: float = 0.0
    """lambda, the weight of the squared unbiased scores (equation 6); 0 to 100."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, regulariser=(0, 100))

    def total(self, rows: _Rows) -> Tensor:
        """Return the sum."""
        logits, chosen, weight = rows.logits_RU, rows.chosen_RU, rows.weight_RU
        total = (softplus(-logits) * chosen + softplus(logits) * weight).sum()
        if self.regulariser:
            unbiased = (logits + rows.noise_RU).square()
            total = total + self.regulariser * (unbiased * (chosen + weight)).sum()
        return total


@LOSSES.register("nce")
@dataclass(frozen=True, kw_only=True)
class NoiseContrastive(_OnRows):
    """Noise-contrastive estimation: the logistic loss of z_il - bias - n_il - log k, with k draws per chosen positive.

    Source: Gutmann and Hyvaerinen (2010), as Bamler and Mandt (2020), section 5, use it with the tree as p_n. Its
    optimum is z_il - bias = log p(l | i), so nothing is added at prediction, and the model has to learn all that the
    noise distribution already knows. The bias is the same for all labels; with log L, a label that was never drawn is
    as unlikely as an average label, and a larger one gave better figures.
    """

    unbiased = True
    bias: float = 0.0
    """Subtracted from every logit; -100 to 100."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, bias=BIASES)

    def total(self, rows: _Rows) -> Tensor:
        """Return the sum."""
        draws_R1 = rows.weight_RU.sum(1, keepdim=True) / rows.chosen_RU.sum(1, keepdim=True)
        logits = rows.logits_RU - self.bias - rows.noise_RU - draws_R1.log()
        return (softplus(-logits) * rows.chosen_RU + softplus(logits) * rows.weight_RU).sum()


@LOSSES.register("one-vs-each")
@dataclass(frozen=True, kw_only=True)
class OneVsEach(_OnRows):
    """sum over chosen (i, l), drawn k of w_ik log(1 + exp(z_ik - z_il)) / sum_k w_ik.

    Source: Titsias (2016), a product of pairwise probabilities that bounds the softmax from below. A mean over uniform
    draws replaces the sum over all k (a constant factor).
    """

    def total(self, rows: _Rows) -> Tensor:
        """Return the sum."""
        row, column = rows.pairs()
        gaps = rows.logits_RU[row] - rows.logits_RU[row, column][:, None]
        share = rows.weight_RU / rows.weight_RU.sum(1, keepdim=True)
        return (softplus(gaps) * share[row]).sum()


@LOSSES.register("augment-reduce")
@dataclass(frozen=True, kw_only=True)
class AugmentReduce(Tempered):
    """Settings of ``AugmentReduceLoss``."""

    code_version = "2"  # a document whose draws were all its own positive took the gradient of its batch away
    decay: float = 0.9
    """The t-th estimate of a pair's eta gets weight t^-decay; 0 to 1. Above 1 the first estimates would stay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, decay=(0, 1))

    def build(self) -> BatchLoss:
        """Return the loss, without estimates."""
        return AugmentReduceLoss(self.temperature, self.decay)


@dataclass
class AugmentReduceLoss:
    """sum over chosen (i, l) of [ log(1 + eta_il) + (S_il - eta_il) / (1 + eta_il) ],
    S_il = sum over drawn or other chosen k of w_ik exp(z_ik - z_il).

    eta_il is a running estimate of S_il, one number per pair: the t-th estimate gets weight t^-decay, the first one
    weight 1. Because log(1 + a) <= log(1 + b) + (a - b) / (1 + b), the value is an upper bound of the softmax loss for
    any eta and equals it at the right one. eta is constant in the gradient, which therefore always raises the positive:
    each label k is pushed down by w_ik exp(z_ik - z_il) / (1 + eta_il), and l is pushed up by the sum of these.

    Source: Ruiz et al., "Augment and Reduce" (2018), the softmax case; its public code has ``decay`` 0.9.
    """

    temperature: float
    decay: float
    separable: bool = False
    slots: Slots = field(default_factory=Slots)
    """Position of each pair (document, label) in the two tensors, which may be longer."""
    log_eta_M: Tensor = field(default_factory=lambda: torch.zeros(0))
    seen_M: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Number of estimates behind each pair's eta."""

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum, number of chosen pairs); update eta if ``sampled`` names the documents and labels."""
        rows = _Rows.of(scores_BU, self.temperature, (chosen_BU, known_BU), sampled)
        row, column = rows.pairs()
        gaps_PU = rows.logits_RU[row] - rows.logits_RU[row, column][:, None]
        weight_PU = torch.where(rows.chosen_RU, 1.0, rows.weight_RU)[row]
        weight_PU.scatter_(1, column[:, None], 0.0)
        # The lowest number in place of log 0: if all draws of a document are its positive itself, the sum is 0, and the
        # gradient of a sum of -inf alone would be nan.
        log_weight_PU = weight_PU.log().clamp_min(torch.finfo(torch.float32).min)
        log_sum_P = (gaps_PU + log_weight_PU).logsumexp(1)
        log_eta_P = self._update_eta(log_sum_P.detach(), rows.ids())
        log_total_P = softplus(log_eta_P)
        bounds_P = log_total_P + (log_sum_P - log_total_P).exp() - log_eta_P.sigmoid()
        return bounds_P.sum(), rows.chosen_RU.sum()

    def _update_eta(self, log_sum_P: Tensor, pairs: tuple[I64, I64] | None) -> Tensor:
        """Return log eta of each pair after adding the present estimate; the estimate itself if pairs are unknown."""
        if pairs is None or not len(pairs[0]):
            return log_sum_P
        slot_P, device = put(self.slots.numbered(*pairs), log_sum_P.device), log_sum_P.device
        if self.seen_M.device != device:  # at the first step, and after a resume
            self.log_eta_M, self.seen_M = (m.to(device, non_blocking=True) for m in (self.log_eta_M, self.seen_M))
        if self.slots.size > len(self.seen_M):  # twice as many as needed, so a step need not copy all
            extra = 2 * self.slots.size - len(self.seen_M)
            self.log_eta_M = torch.cat([self.log_eta_M, log_sum_P.new_full((extra,), -torch.inf)])
            self.seen_M = torch.cat([self.seen_M, log_sum_P.new_zeros(extra)])
        self.seen_M[slot_P] += 1
        share_P = self.seen_M[slot_P] ** -self.decay
        mixed_P = torch.logaddexp(self.log_eta_M[slot_P] + (1 - share_P).log(), log_sum_P + share_P.log())
        self.log_eta_M[slot_P] = mixed_P
        return mixed_P

    def tensors(self) -> dict[str, Tensor]:
        """Return every eta and the pair it belongs to."""
        pairs, size = torch.from_numpy(self.slots.pairs()), self.slots.size
        return {"eta_pairs": pairs, "log_eta": self.log_eta_M[:size], "eta_seen": self.seen_M[:size]}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore every eta."""
        self.slots = Slots()
        self.slots.numbered(*tensors["eta_pairs"].numpy().T)
        self.log_eta_M, self.seen_M = tensors["log_eta"].clone(), tensors["eta_seen"].clone()
