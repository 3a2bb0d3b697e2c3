"""A bag of word pieces: the weighted mean of learnt token vectors. Trains on a CPU in seconds, without pretraining.

Word order does not count.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from xc_core.encoders.base import ENCODERS, Encoder, EncoderConfig, Family
from xc_core.pretrained import BAG


class BagEncoder(Encoder):
    """Token vectors and one learnt weight per token; a softmax over the text lets a few important words dominate."""

    def __init__(self, config: EncoderConfig, vocabulary_size: int) -> None:
        super().__init__(config, config.width)
        self.tokens = nn.Embedding(vocabulary_size, config.width)
        self.importance = nn.Embedding(vocabulary_size, 1)
        nn.init.normal_(self.tokens.weight, std=config.width**-0.5)
        nn.init.zeros_(self.importance.weight)

    def pooled(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the weighted mean of the token vectors; zero for a text without tokens."""
        logits_BT = self.importance(ids_BT).squeeze(-1).masked_fill(~mask_BT, torch.finfo(torch.float32).min)
        weights_BT = logits_BT.softmax(1) * mask_BT
        # not einsum, which multiplies texts of one token without a product of matrices, so in fp32 under autocast
        return torch.bmm(weights_BT.unsqueeze(1), self.tokens(ids_BT)).squeeze(1)

    def shape_facts(self) -> dict[str, Any]:
        """Return the size of the vocabulary."""
        return {"vocabulary_size": self.tokens.num_embeddings}


def _rebuild(config: EncoderConfig, facts: dict[str, Any]) -> BagEncoder:
    return BagEncoder(config, int(facts["vocabulary_size"]))


ENCODERS.add(BAG, Family(BagEncoder, _rebuild, unused=frozenset({"pooling", "frozen_layers"})))
