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
from xc_core.encoders.packed import ACTIVATIONS


def hidden_states(backbone: Any, groups: Sequence[Group], kind: torch.dtype) -> list[Tensor]:
    """Return the last hidden states of each group (B x T x D, float32); zero for padding.

    Products are in ``kind``, sums and normalisations in fp32, as under autocast.
    """
    embeddings, sizes = backbone.embeddings, [len(group.places_M) for group in groups]
    position_TD = embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0]
    tokens_N = torch.cat([group.tokens_M for group in groups])
    position_N = torch.cat([group.places_M % group.mask_BT.shape[1] for group in groups])
    hidden_ND = embedding(tokens_N, embeddings.word_embeddings.weight) + embedding(position_N, position_TD)
    hidden_ND = _normed(embeddings.LayerNorm, hidden_ND)
    activation = ACTIVATIONS[backbone.config.hidden_act]
    for layer in backbone.encoder.layer:
        qkv = torch.split(_project_qkv(layer.attention.self, hidden_ND.to(kind)), sizes)
        parts = zip(qkv, groups, strict=True)
        attended_ND = torch.cat([_attend(part, group, backbone.config) for part, group in parts])
        output = layer.attention.output
        hidden_ND = _normed(output.LayerNorm, _dense(output.dense, attended_ND) + hidden_ND)
        wide_NW = activation(_dense(layer.intermediate.dense, hidden_ND.to(kind)))
        hidden_ND = _normed(layer.output.LayerNorm, _dense(layer.output.dense, wide_NW) + hidden_ND)
    return [_padded(part, group) for part, group in zip(torch.split(hidden_ND, sizes), groups, strict=True)]


def _project_qkv(attention: Any, hidden_ND: Tensor) -> Tensor:
    """Return queries, keys and values, side by side (N x 3 D)."""
    maps = (attention.query, attention.key, attention.value)
    weight, bias = torch.cat([m.weight for m in maps]), torch.cat([m.bias for m in maps])
    return linear(hidden_ND, weight.to(hidden_ND.dtype), bias.to(hidden_ND.dtype))


def _attend(qkv_MC: Tensor, group: Group, config: Any) -> Tensor:
    """Return what each token of a group reads of its text (M x D)."""
    texts, longest = group.mask_BT.shape
    qkv = _padded(qkv_MC, group).view(texts, longest, 3, config.num_attention_heads, -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    attended = scaled_dot_product_attention(query, key, value, attn_mask=group.mask_BT[:, None, None, :])
    return attended.transpose(1, 2).reshape(texts * longest, -1).index_select(0, group.places_M)


def _padded(values_MC: Tensor, group: Group) -> Tensor:
    """Return the values of tokens at their places in padded texts (B x T x C)."""
    empty = values_MC.new_zeros((group.mask_BT.numel(), values_MC.shape[1]))
    return empty.index_copy(0, group.places_M, values_MC).view(*group.mask_BT.shape, -1)


def _dense(module: nn.Linear, values: Tensor) -> Tensor:
    return linear(values, module.weight.to(values.dtype), module.bias.to(values.dtype))


def _normed(module: nn.LayerNorm, values: Tensor) -> Tensor:
    return layer_norm(values, module.weight.shape, module.weight, module.bias, module.eps)
