"""Triplet margin loss on the hardest positives and negatives of a mini-batch (NGAME, equation 1 and appendix C)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xc_core.losses.base import LOSSES, PLAIN, TEMPERATURES, Sampled, Stateless
from xc_core.params import at_least, within


@LOSSES.register("triplet")
@dataclass(frozen=True, kw_only=True)
class Triplet(Stateless):
    """sum_i sum_{l in P_i} sum_{k in N_i} w_ilk [ s_ik - s_il + margin ]_+ , counted per (i, l).

    ``P_i``: the ``positives`` lowest-scored chosen positives of document i; ``N_i``: the ``hardest`` highest-scored
    labels of the batch that are not known positives of i, whatever their weight in the sample; s: scores_BU. The
    weights over the active negatives of (i, l), those inside the margin, are softmax(s_ik / temperature), held constant
    in the gradient, or 1 / |N_i| if the temperature is 0.

    Source: NGAME (WSDM 2023) equation (1), appendix C. The paper uses a plain sum; the softmax weights come from its
    public code, where inactive negatives also get weight because the mask multiplies logits. Here an inactive negative
    has weight 0. With temperature 0, positives U and hardest U it is the paper's sum, each document's part divided by
    |N_i|.
    """

    margin: float = 0.3
    """By how much (cosine) a positive must beat a negative; 0 to 2, the largest difference of two cosines."""
    hardest: int = 10
    """Hardest negatives per document."""
    positives: int = 1
    """Hardest chosen positives per document."""
    temperature: float = 0.1
    """Softmax temperature of the weights over active negatives, 0.001 to 100; 0: equal weights, as in the paper."""

    def __post_init__(self) -> None:
        at_least(self, hardest=1, positives=1)
        within(self, margin=(0, 2))
        if self.temperature:
            within(self, temperature=TEMPERATURES)

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return (sum over documents and positives, number of (document, positive) pairs that have a negative)."""
        terms_BPN, is_pair_BP = self._terms(scores_BU, chosen_BU, known_BU)
        return terms_BPN.sum(), is_pair_BP.sum()

    def each(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        """Return sum and count of each document (both B)."""
        terms_BPN, is_pair_BP = self._terms(scores_BU, chosen_BU, known_BU)
        return terms_BPN.sum((1, 2)), is_pair_BP.sum(1)

    def _terms(self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted hinges (B x positives x hardest) and the pairs that count (B x positives)."""
        scores = scores_BU.float()
        width = scores.shape[1]
        negative_BN = scores.masked_fill(known_BU | chosen_BU, -torch.inf).topk(min(self.hardest, width)).values
        # Negated, so that topk sees a score that is not a number first.
        positive_BP = -(-scores).masked_fill(~chosen_BU, -torch.inf).topk(min(self.positives, width)).values
        is_pair_BP = (positive_BP != torch.inf) & (negative_BN[:, :1] != -torch.inf)
        gap_BPN = negative_BN[:, None, :] - positive_BP[:, :, None] + self.margin
        # A masked score makes the gap -inf, so it is inactive; nan <= 0 is false, so a broken score shows in the sum.
        active_BPN = ~(gap_BPN <= 0) & is_pair_BP[:, :, None]
        hinge_BPN = torch.where(active_BPN, gap_BPN, 0.0)
        return hinge_BPN * self._weights(negative_BN, active_BPN), is_pair_BP

    def _weights(self, negative_BN: Tensor, active_BPN: Tensor) -> Tensor:
        if self.temperature == 0:
            return (negative_BN != -torch.inf).sum(1).clamp(min=1).reciprocal()[:, None, None]
        logits_BPN = (negative_BN.detach() / self.temperature)[:, None, :].masked_fill(~active_BPN, -torch.inf)
        return torch.nan_to_num(logits_BPN.softmax(2))
