"""Binary cross-entropy over all labels, or over a sample whose weights make it the same in expectation.

Takes: scores_BU, chosen_BU, known_BU, Sampled.  Gives: (sum, count).
May import: losses.base.                         Never: needs two labels at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from xc_core.losses.base import LOSSES, PLAIN, LossConfig, Sampled, Stateless


@dataclass(frozen=True)
class BinaryLoss(Stateless):
    """sum_i [ sum_{l in P_i} log(1 + exp(-z_il)) + sum_l w_il log(1 + exp(z_il)) ],  z = s / t - bias, per document.

    ``P_i``: chosen positives. w: ``Sampled.weight_BU``, or 1 for every label that is no known positive.

    Source: ASTRA (004), equations (1), all labels, and (2), a sample: weight 1 for a hard negative, (L - k_h) / k_r for
    a uniform one. Over all labels it is the loss of Renee. A sum of terms of one label each, so it may be computed on
    blocks of labels and added up.
    """

    temperature: float
    bias: float

    separable = True

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum over documents and labels, number of documents)."""
        masks = (chosen_BU, known_BU, sampled.weight_BU)
        total: Tensor = _Binary.apply(scores_BU, masks, self.temperature, self.bias)  # type: ignore[no-untyped-call]
        return total, torch.tensor(len(scores_BU), device=scores_BU.device)


class _Binary(torch.autograd.Function):
    """Value and gradient in one sweep: sigma(z) w, less sigma(-z) at the few positives, is all there is to go back for.

    Autograd through two softplus of the whole matrix would read and write it some ten times more.
    """

    @staticmethod
    def forward(
        ctx: Any, scores_BU: Tensor, masks: tuple[Tensor, Tensor, Tensor | None], temperature: float, bias: float
    ) -> Tensor:
        chosen_BU, known_BU, weight_BU = masks
        z_BU = torch.add(scores_BU.new_tensor(-bias, dtype=torch.float32), scores_BU.float(), alpha=1 / temperature)
        at = (known_BU | chosen_BU).nonzero(as_tuple=True)
        z_P, chosen_P = z_BU[at], chosen_BU[at]
        slope_BU = z_BU.sigmoid()
        if weight_BU is None:  # positives are few: what they added to the sum of all is taken out again
            cost = softplus(z_BU).sum() - softplus(z_P).sum()
            slope_BU[at] = 0.0
        else:
            cost = (softplus(z_BU) * weight_BU).sum()
            slope_BU.mul_(weight_BU)
        slope_BU[at] -= (-z_P).sigmoid() * chosen_P
        ctx.save_for_backward(slope_BU)
        ctx.scale, ctx.dtype = 1 / temperature, scores_BU.dtype
        return cost + (softplus(-z_P) * chosen_P).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (slope_BU,) = ctx.saved_tensors
        return (slope_BU * (gradients[0] * ctx.scale)).to(ctx.dtype), None, None, None


@LOSSES.register("bce")
def build(config: LossConfig) -> BinaryLoss:
    """Return the loss of ``config``."""
    return BinaryLoss(config.temperature, config.bias)
