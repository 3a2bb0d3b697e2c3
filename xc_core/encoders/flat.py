"""BERT on the tokens of many texts without their padding, with gradient: what a card computes.

It equals the model of transformers up to rounding. Only attention reads texts with their padding; queries, keys and
values are one product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm, linear, scaled_dot_product_attention

from xc_core.encoders.packed import AFTER


def hidden_states(backbone: Any, ids_BT: Tensor, mask_BT: Tensor, places_N: Tensor, kind: torch.dtype) -> Tensor:
    """Return the last hidden states (B x T x D, float32); zero for padding.

    ``places_N`` are the places of the N tokens that are no padding in the flattened ``mask_BT``; a count of them would
    wait for the card. Products are in ``kind``, sums and normalisations in fp32, as under autocast.
    """
    given = backbone.embeddings
    tokens_N = ids_BT.flatten().index_select(0, places_N)
    at_TD = given.position_embeddings.weight + given.token_type_embeddings.weight[0]
    hidden_ND = embedding(tokens_N, given.word_embeddings.weight) + embedding(places_N % ids_BT.shape[1], at_TD)
    hidden_ND = _normed(given.LayerNorm, hidden_ND)
    after = AFTER[backbone.config.hidden_act]
    for layer in backbone.encoder.layer:
        read_ND = attended(_asked(layer.attention.self, hidden_ND.to(kind)), mask_BT, places_N, backbone.config)
        hidden_ND = _normed(layer.attention.output.LayerNorm, _dense(layer.attention.output.dense, read_ND) + hidden_ND)
        wide_NW = after(_dense(layer.intermediate.dense, hidden_ND.to(kind)))
        hidden_ND = _normed(layer.output.LayerNorm, _dense(layer.output.dense, wide_NW) + hidden_ND)
    return _padded(hidden_ND, mask_BT, places_N)


def _asked(own: Any, hidden_ND: Tensor) -> Tensor:
    """Return queries, keys and values, side by side (N x 3 D)."""
    parts = (own.query, own.key, own.value)
    weight, bias = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
    return linear(hidden_ND, weight.to(hidden_ND.dtype), bias.to(hidden_ND.dtype))


def attended(asked_NC: Tensor, mask_BT: Tensor, places_N: Tensor, config: Any) -> Tensor:
    """Return what each token reads of its text (N x D)."""
    texts, longest = mask_BT.shape
    asked = _padded(asked_NC, mask_BT, places_N).view(texts, longest, 3, config.num_attention_heads, -1)
    query, key, value = asked.permute(2, 0, 3, 1, 4).unbind(0)
    read = scaled_dot_product_attention(query, key, value, attn_mask=mask_BT[:, None, None, :])
    return read.transpose(1, 2).reshape(texts * longest, -1).index_select(0, places_N)


def _padded(values_NC: Tensor, mask_BT: Tensor, places_N: Tensor) -> Tensor:
    """Return the values of tokens at their places in padded texts (B x T x C)."""
    empty = values_NC.new_zeros((mask_BT.numel(), values_NC.shape[1]))
    return empty.index_copy(0, places_N, values_NC).view(*mask_BT.shape, -1)


def _dense(module: nn.Linear, values: Tensor) -> Tensor:
    return linear(values, module.weight.to(values.dtype), module.bias.to(values.dtype))


def _normed(module: nn.LayerNorm, values: Tensor) -> Tensor:
    return layer_norm(values, module.weight.shape, module.weight, module.bias, module.eps)
