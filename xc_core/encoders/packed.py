"""BERT for encoding on a CPU: its forward pass with packed weights, without gradients and without transformers.

It equals the training forward pass up to rounding (``tests/encoders/test_packed.py``). Operations between bf16 and fp32
are avoided: torch's kernels for two number formats are several times slower than a conversion and one format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from xc_core.devices import Device
from xc_core.encoders.base import Encoder, EncoderConfig
from xc_core.encoders.pooling import POOL, Pooling

_BACKBONE: Final = "backbone."
_TOKENS: Final = 16
"""Number of tokens that the layout of packed weights is chosen for; products of any number of tokens use it."""
_WIDE: Final = 64
"""Number of tokens from which a softmax is faster in bf16 than in fp32: its loop is slow on remainders of 32.

Measured on a processor with AMX (docs/lab-notes/2026-11-24-encoding-without-gradients.md)."""
_UNSEEN: Final = -1e30
"""Added to the attention to padding; finite in bf16 too, so that a text without tokens has a vector."""
ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "none": nn.Identity(),
    "gelu": nn.functional.gelu,
    "relu": nn.functional.relu,
}
TensorMap = Callable[[Tensor], Tensor]


def packs(facts: Mapping[str, Any]) -> bool:
    """Return True if ``PackedBert`` can compute a backbone with this configuration (``config.json``)."""
    return (
        facts.get("model_type") == "bert"
        and facts.get("hidden_act") in ACTIVATIONS
        and facts.get("position_embedding_type", "absolute") == "absolute"
        and not facts.get("is_decoder", False)
    )


@cache
def multiplies_packed_bf16() -> bool:
    """Return False if oneDNN has no products in bf16 on this CPU; then ``precision=bf16`` answers in fp32.

    A product of one number is tried once per process: torch has no public function that says so.
    """
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    try:
        with torch.inference_mode():
            packed(one, one[0])(one)
    except RuntimeError:
        return False
    return True


def packed(weight_OI: Tensor, bias_O: Tensor, activation: str = "none") -> TensorMap:
    """Return x -> act(x W^T + b) with W in oneDNN's layout; without oneDNN, torch's own product.

    The product is in the number format of the weights.
    """
    kind = weight_OI.dtype
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        activate = ACTIVATIONS[activation]
        return lambda x: activate(nn.functional.linear(x.to(kind), weight_OI, bias_O))
    layout, product = torch.ops.mkldnn._reorder_linear_weight(weight_OI, _TOKENS), torch.ops.mkldnn._linear_pointwise
    return lambda x: product(x.to(kind), layout, bias_O, activation, [], "none")


class _Norm(NamedTuple):
    """Layer normalisation in fp32."""

    weight_D: Tensor
    bias_D: Tensor
    eps: float

    def __call__(self, hidden_BTD: Tensor) -> Tensor:
        return nn.functional.layer_norm(hidden_BTD, self.weight_D.shape, self.weight_D, self.bias_D, self.eps)


class _Layer(NamedTuple):
    """A layer: attention, then two products; each is added to its input and normalised."""

    heads: int
    qkv_product: TensorMap
    """Queries, keys and values by one product; queries are divided by the root of a head's width."""
    attention_output: TensorMap
    attention_norm: _Norm
    up: TensorMap
    down: TensorMap
    output_norm: _Norm

    def __call__(self, hidden_BTD: Tensor, attention_bias: Tensor | None) -> Tensor:
        rows, tokens, width = hidden_BTD.shape
        qkv = self.qkv_product(hidden_BTD).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = query @ key.transpose(2, 3)
        weights = weights if tokens >= _WIDE else weights.float()
        if attention_bias is not None:
            weights += attention_bias.to(weights.dtype)
        read_BTD = (weights.softmax(-1).to(value.dtype) @ value).transpose(1, 2).reshape(rows, tokens, width)
        hidden_BTD = self.attention_norm(self.attention_output(read_BTD).float().add_(hidden_BTD))
        return self.output_norm(self.down(self.up(hidden_BTD)).float().add_(hidden_BTD))


class PackedBert(Encoder):
    """An encoder that only encodes; it cannot be trained or saved.

    ``facts`` is the configuration of the backbone, ``tensors`` the weights of a trained encoder of family transformer.
    Raises KeyError or RuntimeError for weights of another shape.
    """

    def __init__(self, config: EncoderConfig, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        heads = {name: value.float() for name, value in tensors.items() if not name.startswith(_BACKBONE)}
        with torch.device("meta"):  # no head is allocated before its shape is compared
            super().__init__(config, int(facts["hidden_size"]))
        self.load_state_dict(heads, assign=True)
        self.requires_grad_(False)
        weights = {name.removeprefix(_BACKBONE): value.float() for name, value in tensors.items() if name not in heads}
        _check_shapes(weights, facts)
        self.words_VD = weights["embeddings.word_embeddings.weight"]
        places_TD = weights["embeddings.position_embeddings.weight"]
        self.places_TD = places_TD + weights["embeddings.token_type_embeddings.weight"][0]
        self.norm = _norm(weights, "embeddings.LayerNorm", facts)
        kind = torch.bfloat16 if self.in_bf16 else torch.float32
        numbers = range(int(facts["num_hidden_layers"]))
        self.layers = [_layer(weights, f"encoder.layer.{number}", facts, kind) for number in numbers]

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return Device().torch

    @property
    def in_bf16(self) -> bool:
        """True if products are in bf16, according to ``precision``, and this CPU has such products."""
        return super().in_bf16 and multiplies_packed_bf16()

    @property
    def frozen_width(self) -> int:
        """The hidden size."""
        return self.words_VD.shape[1]

    def pooled(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the pooled last hidden states; no mask is computed for texts of one length."""
        return self.above(self.frozen(ids_BT, mask_BT), mask_BT)

    def frozen(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the states of tokens after the layers that are not trained (B x T x H); any value for padding."""
        hidden_BTD = self.norm(nn.functional.embedding(ids_BT, self.words_VD) + self.places_TD[: ids_BT.shape[1]])
        return self._run_layers(self.layers[: self.config.frozen_layers], hidden_BTD, mask_BT)

    def above(self, states_BTH: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the pooled last hidden states, from the states after the layers that are not trained."""
        hidden_BTD = self._run_layers(self.layers[self.config.frozen_layers :], states_BTH, mask_BT)
        mean = self.config.pooling is Pooling.MEAN and bool(mask_BT.all())
        return hidden_BTD.mean(1) if mean else POOL[self.config.pooling](hidden_BTD, mask_BT)

    def _run_layers(self, layers: list[_Layer], hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        attention_bias = None if bool(mask_BT.all()) else torch.where(mask_BT.bool(), 0.0, _UNSEEN)[:, None, None, :]
        for layer in layers:
            hidden_BTD = layer(hidden_BTD, attention_bias)
        return hidden_BTD

    def shape_facts(self) -> dict[str, Any]:
        """Raise TypeError: it is not saved."""
        raise TypeError("a packed encoder is not saved; save the trained one that it was packed from")


def _check_shapes(weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Raise RuntimeError for a weight of another shape than the configuration says; products would fail on a text."""
    width, intermediate = int(facts["hidden_size"]), int(facts["intermediate_size"])
    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}_embeddings.weight": (int(facts[size]), width) for name, size in tables.items()
    }
    shapes |= {"LayerNorm.weight": (width,), "intermediate.dense.weight": (intermediate, width)}
    shapes |= {"intermediate.dense.bias": (intermediate,), "bias": (width,)}
    shapes |= {f"self.{name}.weight": (width, width) for name in ("query", "key", "value")}
    shapes |= {"attention.output.dense.weight": (width, width), "output.dense.weight": (width, intermediate)}
    for name, value in weights.items():
        expected = next((shape for end, shape in shapes.items() if name.endswith(end)), None)
        if expected is not None and not name.startswith("pooler.") and value.shape != expected:
            raise RuntimeError(f"{name} of shape {tuple(value.shape)}, not {expected}")


def _norm(weights: Mapping[str, Tensor], name: str, facts: Mapping[str, Any]) -> _Norm:
    return _Norm(weights[f"{name}.weight"], weights[f"{name}.bias"], float(facts["layer_norm_eps"]))


def _layer(weights: Mapping[str, Tensor], name: str, facts: Mapping[str, Any], kind: torch.dtype) -> _Layer:
    heads = int(facts["num_attention_heads"])
    scale = 1 / math.sqrt(int(facts["hidden_size"]) // heads)

    def pair(part: str, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        return weights[f"{name}.{part}.weight"] * factor, weights[f"{name}.{part}.bias"] * factor

    def affine(pairs: list[tuple[Tensor, Tensor]], activation: str = "none") -> TensorMap:
        weight_OI, bias_O = (torch.cat(tensors).to(kind) for tensors in zip(*pairs, strict=True))
        return packed(weight_OI, bias_O, activation)

    return _Layer(
        heads,
        affine([pair("attention.self.query", scale), pair("attention.self.key"), pair("attention.self.value")]),
        affine([pair("attention.output.dense")]),
        _norm(weights, f"{name}.attention.output.LayerNorm", facts),
        affine([pair("intermediate.dense")], str(facts["hidden_act"])),
        affine([pair("output.dense")]),
        _norm(weights, f"{name}.output.LayerNorm", facts),
    )
