"""Binary cross-entropy over all labels, or over a sample whose weights give the same loss in expectation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from xc_core.losses.base import BIASES, LOSSES, PLAIN, Sampled, Stateless, Tempered
from xc_core.params import within


@LOSSES.register("bce")
@dataclass(frozen=True, kw_only=True)
class Bce(Stateless, Tempered):
    """sum_i [ sum_{l in P_i} log(1 + exp(-z_il)) + sum_l w_il log(1 + exp(z_il)) ],  z = s / t - bias, per document.

    ``P_i``: chosen positives. w: ``Sampled.weight_BU``, or 1 for every label that is not a known positive.

    Source: ASTRA (004), equations (1), all labels, and (2), a sample: weight 1 for a hard negative, (L - k_h) / k_r for
    a uniform one. Over all labels it is the loss of Renee. Each term has one label, so the loss may be computed on
    blocks of labels and added up.
    """

    separable = True
    bias: float = 0.0
    """Subtracted from every logit; -100 to 100. The same for all labels, so no ranking changes; rare labels
    start low."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, bias=BIASES)

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum over documents and labels, number of documents)."""
        masks = (chosen_BU, known_BU, sampled.weight_BU)
        total: Tensor = _Binary.apply(scores_BU, masks, self.temperature, self.bias)  # type: ignore[no-untyped-call]
        return total, torch.full((), len(scores_BU), dtype=torch.int64, device=scores_BU.device)


class _Binary(torch.autograd.Function):
    """Value and gradient in one pass: the gradient is sigma(z) w, minus sigma(-z) at the few positives.

    Autograd through two softplus of the whole matrix would read and write it about ten times more often.
    """

    @staticmethod
    def forward(
        ctx: Any, scores_BU: Tensor, masks: tuple[Tensor, Tensor, Tensor | None], temperature: float, bias: float
    ) -> Tensor:
        chosen_BU, known_BU, weight_BU = masks
        offset = torch.full((), -bias, dtype=torch.float32, device=scores_BU.device)
        z_BU = torch.add(offset, scores_BU.float(), alpha=1 / temperature)
        ctx.scale, ctx.dtype = 1 / temperature, scores_BU.dtype
        if not scores_BU.is_cpu:  # to list the few positives would wait for the card
            weight = (~(known_BU | chosen_BU)).float() if weight_BU is None else weight_BU
            ctx.save_for_backward(z_BU.sigmoid() * weight - (-z_BU).sigmoid() * chosen_BU)
            return (softplus(z_BU) * weight + softplus(-z_BU) * chosen_BU).sum()
        index_P = (known_BU | chosen_BU).nonzero(as_tuple=True)
        z_P, chosen_P = z_BU[index_P], chosen_BU[index_P]
        slope_BU = z_BU.sigmoid()
        if weight_BU is None:  # positives are few: subtract what they added to the sum over all
            cost = softplus(z_BU).sum() - softplus(z_P).sum()
            slope_BU[index_P] = 0.0
        else:
            cost = (softplus(z_BU) * weight_BU).sum()
            slope_BU.mul_(weight_BU)
        slope_BU[index_P] -= (-z_P).sigmoid() * chosen_P
        ctx.save_for_backward(slope_BU)
        return cost + (softplus(-z_P) * chosen_P).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (slope_BU,) = ctx.saved_tensors
        return (slope_BU * (gradients[0] * ctx.scale)).to(ctx.dtype), None, None, None
