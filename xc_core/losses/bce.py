"""Binary cross-entropy over all labels, or over a sample whose weights make it the same in expectation.

Takes: scores_BU, chosen_BU, known_BU, Sampled.  Gives: (sum, count).
May import: losses.base.                         Never: needs two labels at once.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        logits = scores_BU.float() / self.temperature - self.bias
        weight_BU = sampled.negatives(chosen_BU, known_BU)
        total = (softplus(-logits) * chosen_BU + softplus(logits) * weight_BU).sum()
        return total, torch.tensor(len(scores_BU), device=scores_BU.device)


@LOSSES.register("bce")
def build(config: LossConfig) -> BinaryLoss:
    """Return the loss of ``config``."""
    return BinaryLoss(config.temperature, config.bias)
