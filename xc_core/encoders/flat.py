"""BERT on the tokens of many texts without their padding, with gradient: what a card computes.

It equals the model of transformers up to rounding. Only attention, and the pooling of the result, read texts with their
padding, in groups of similar length. Queries, keys and values are one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm, linear, scaled_dot_product_attention

from xc_core.encoders.base import Group
from xc_core.encoders.packed import AFTER


def hidden_states(backbone: Any, groups: Sequence[Group], kind: torch.dtype) -> list[Tensor]:
    """Return the last hidden states of each group (B x T x D, float32); zero for padding.

    Products are in ``kind``, sums and normalisations in fp32, as under autocast.
    """
    given, sizes = backbone.embeddings, [len(group.places_M) for group in groups]
    at_TD = given.position_embeddings.weight + given.token_type_embeddings.weight[0]
    tokens_N = torch.cat([group.tokens_M for group in groups])
    at_N = torch.cat([group.places_M % group.mask_BT.shape[1] for group in groups])
    hidden_ND = embedding(tokens_N, given.word_embeddings.weight) + embedding(at_N, at_TD)
    hidden_ND = _normed(given.LayerNorm, hidden_ND)
    after = AFTER[backbone.config.hidden_act]
    for layer in backbone.encoder.layer:
        asked = torch.split(_asked(layer.attention.self, hidden_ND.to(kind)), sizes)
        read_ND = torch.cat([_read(own, group, backbone.config) for own, group in zip(asked, groups, strict=True)])
        hidden_ND = _normed(layer.attention.output.LayerNorm, _dense(layer.attention.output.dense, read_ND) + hidden_ND)
        wide_NW = after(_dense(layer.intermediate.dense, hidden_ND.to(kind)))
        hidden_ND = _normed(layer.output.LayerNorm, _dense(layer.output.dense, wide_NW) + hidden_ND)
    return [_padded(own, group) for own, group in zip(torch.split(hidden_ND, sizes), groups, strict=True)]


def _asked(own: Any, hidden_ND: Tensor) -> Tensor:
    """Return queries, keys and values, side by side (N x 3 D)."""
    parts = (own.query, own.key, own.value)
    weight, bias = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
    return linear(hidden_ND, weight.to(hidden_ND.dtype), bias.to(hidden_ND.dtype))


def _read(asked_MC: Tensor, group: Group, config: Any) -> Tensor:
    """Return what each token of a group reads of its text (M x D)."""
    texts, longest = group.mask_BT.shape
    asked = _padded(asked_MC, group).view(texts, longest, 3, config.num_attention_heads, -1)
    query, key, value = asked.permute(2, 0, 3, 1, 4).unbind(0)
    read = scaled_dot_product_attention(query, key, value, attn_mask=group.mask_BT[:, None, None, :])
    return read.transpose(1, 2).reshape(texts * longest, -1).index_select(0, group.places_M)


def _padded(values_MC: Tensor, group: Group) -> Tensor:
    """Return the values of tokens at their places in padded texts (B x T x C)."""
    empty = values_MC.new_zeros((group.mask_BT.numel(), values_MC.shape[1]))
    return empty.index_copy(0, group.places_M, values_MC).view(*group.mask_BT.shape, -1)


def _dense(module: nn.Linear, values: Tensor) -> Tensor:
    return linear(values, module.weight.to(values.dtype), module.bias.to(values.dtype))


def _normed(module: nn.LayerNorm, values: Tensor) -> Tensor:
    return layer_norm(values, module.weight.shape, module.weight, module.bias, module.eps)
