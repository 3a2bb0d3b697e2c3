"""A Hugging Face transformer with pooling and an optional projection; a local folder needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from xc_core.causes import shortage
from xc_core.devices import Device
from xc_core.encoders.base import ENCODERS, Encoder, EncoderConfig, Family, Group
from xc_core.encoders.flat import hidden_states
from xc_core.encoders.packed import PackedBert, packs
from xc_core.encoders.pooling import POOL
from xc_core.encoders.pretrained_model import log_errors_only, pretrained_model
from xc_core.errors import ConfigError
from xc_core.params import at_most
from xc_core.pretrained import locate, too_large

_KERNELS: Final = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels of attention on a card. On texts of 32 tokens the one of cuDNN, torch's choice, took three times as long
(docs/lab-notes/2026-11-27-first-day-on-a-card.md)."""


class TransformerEncoder(Encoder):
    """``backbone`` is any encoder-only model of transformers; its token embeddings are never trained.

    Their dense gradient would cost a tenth of a training step, and short texts use few of their rows. Dropout is off:
    M1 of ``house`` gained nothing from it on WordNetMini (docs/lab-notes/2026-11-27-rows-in-m1-of-house.md), and
    without it a result does not depend on how texts are divided into passes.
    """

    def __init__(self, config: EncoderConfig, backbone: Any) -> None:
        super().__init__(config, int(backbone.config.hidden_size))
        self.backbone: Any = backbone.float()
        self.attention = "eager"
        self._is_bert = type(self).pooled is TransformerEncoder.pooled and packs(self.shape_facts())
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self._freeze(config.frozen_layers)

    def _freeze(self, layers: int) -> None:
        self.backbone.get_input_embeddings().weight.requires_grad_(False)
        if not layers:
            return
        stack = _layers(self.backbone)
        if layers > len(stack):
            raise ConfigError(
                f"frozen_layers {layers}",
                expected=f"at most {len(stack)}, the number of layers",
                do="lower the value",
            )
        for module in [self.backbone.embeddings, *stack[:layers]]:
            module.requires_grad_(False)

    def pooled(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the pooled last hidden states."""
        # a mask of four dimensions is used as it is; transformers would read one of two dimensions to see if it is full
        attention_mask = mask_BT.long() if self.attention == "eager" else mask_BT[:, None, None, :].bool()
        hidden_BTD = self.backbone(input_ids=ids_BT, attention_mask=attention_mask).last_hidden_state
        return POOL[self.config.pooling](hidden_BTD.float(), mask_BT)

    @property
    def frozen_width(self) -> int:
        """The hidden size, if the backbone is BERT and some of its layers are not trained."""
        return int(self.backbone.config.hidden_size) if self.config.frozen_layers and self._is_bert else 0

    def above(self, states_BTH: Tensor, mask_BT: Tensor) -> Tensor:
        """Return what ``pooled`` returns, up to rounding, from the states after the layers that are not trained."""
        attention_mask = mask_BT[:, None, None, :].bool()
        if self.attention == "eager":  # it adds the mask to the scores
            attention_mask = torch.where(attention_mask, 0.0, torch.finfo(torch.float32).min)
        for layer in self.backbone.encoder.layer[self.config.frozen_layers :]:
            states_BTH = layer(states_BTH, attention_mask)
        return POOL[self.config.pooling](states_BTH.float(), mask_BT)

    @property
    def skips_padding(self) -> bool:
        """True on a card if the backbone is BERT."""
        return self._is_bert and self.device.type != "cpu"

    def unpadded(self, groups: Sequence[Group]) -> Tensor:
        """Return what ``pooled`` returns, up to rounding."""
        kind = torch.bfloat16 if self.in_bf16 else torch.float32
        with torch.autocast(self.device.type, enabled=False), sdpa_kernel(_KERNELS):
            hidden = hidden_states(self.backbone, groups, kind)
        pool = POOL[self.config.pooling]
        return torch.cat([pool(group_BTD, group.mask_BT) for group_BTD, group in zip(hidden, groups, strict=True)])

    def use_attention(self, kind: str) -> None:
        """Choose "eager" (plain matrix products, which is faster on short texts on a CPU) or "sdpa" (fused).

        A model without this kind keeps its own, and gets a mask of two dimensions, as with "eager".
        """
        with log_errors_only(), suppress(ValueError):  # transformers warns if the model keeps its own
            self.backbone.set_attn_implementation(kind)
        self.attention = str(self.backbone.config._attn_implementation)

    def without_gradients(self) -> Encoder:
        """Return a packed encoder if the weights are on the CPU and the backbone is BERT."""
        if self.device.type != "cpu" or not self._is_bert:
            return self
        packed = PackedBert(self.config, self.shape_facts(), self.state_dict())
        packed.tokens_per_pass, packed.pass_cost = self.tokens_per_pass, self.pass_cost
        return packed.eval()

    def bytes_per_token(self) -> int:
        """Return the bytes of a token's activations in bf16: 34 D per layer without the matrix of attention weights.

        Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4.
        """
        return 34 * int(self.backbone.config.hidden_size) * max(int(self.backbone.config.num_hidden_layers), 1)

    def shape_facts(self) -> dict[str, Any]:
        """Return the configuration of the backbone."""
        facts = self.backbone.config.to_dict()
        facts.pop("_name_or_path", None)
        return dict(facts)


def _layers(backbone: Any) -> list[nn.Module]:
    """Return the stack of layers: the longest ModuleList of the model.

    A list of one module is a stack if the model has one layer; ALBERT has one module that is used as many layers.
    """
    lists = [list(m) for m in backbone.modules() if isinstance(m, nn.ModuleList)]
    stacks = [stack for stack in lists if len(stack) > 1 or len(stack) == backbone.config.num_hidden_layers]
    if not stacks or not hasattr(backbone, "embeddings"):
        raise ConfigError(
            f"frozen_layers for a {type(backbone).__name__}",
            expected="a model with embeddings and one stack of layers",
            do="set frozen_layers to 0",
        )
    return max(stacks, key=len)


def build(config: EncoderConfig, vocabulary_size: int) -> TransformerEncoder:
    """Load pretrained weights as fp32; attention is "eager" (plain matrix products), which is faster on short texts.

    Raises the errors of ``pretrained_model``, and ConfigError if the model has fewer positions than ``max_length``.
    """
    backbone = pretrained_model(config.name, locate(config.name), vocabulary_size)
    _check_length(config, backbone)
    return TransformerEncoder(config, backbone)


def _check_length(config: EncoderConfig, backbone: Any) -> None:
    """Raise ConfigError if the model has fewer positions than ``max_length``.

    A model that declares fewer and has no table of positions is tried: some compute positions at any distance.
    """
    table = getattr(getattr(backbone, "embeddings", None), "position_embeddings", None)
    if isinstance(table, nn.Embedding):
        places = table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
        at_most(config, max_length=places)
        return
    declared = getattr(backbone.config, "max_position_embeddings", None) or config.max_length
    if 0 < declared < config.max_length and not _encodes(backbone, config.max_length):
        at_most(config, max_length=declared)


def _encodes(backbone: Any, length: int) -> bool:
    """Return True if the model encodes a text of ``length`` tokens."""
    ids_BT = torch.zeros((1, length), dtype=torch.long)
    try:
        with torch.no_grad():
            backbone(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT))
    except (RuntimeError, IndexError, ValueError) as error:
        if short := shortage(error):
            raise short from error
        return False
    return True


def rebuild(config: EncoderConfig, facts: dict[str, Any]) -> TransformerEncoder:
    """Build an encoder of a saved shape; the caller loads its weights.

    Raises ValueError for whole numbers that ``read_config`` refuses, errors of many types for another wrong shape.
    """
    from transformers import AutoConfig, AutoModel

    if large := too_large(facts):
        raise ValueError("{} = {:,}, more than {:,}".format(*large))
    shape = AutoConfig.for_model(**facts)
    return TransformerEncoder(
        config, AutoModel.from_config(shape, attn_implementation="eager", trust_remote_code=False)
    )


def answering(config: EncoderConfig, facts: dict[str, Any], tensors: dict[str, Tensor]) -> PackedBert | None:
    """Return a packed encoder if the backbone is BERT and there is no GPU to answer on."""
    return PackedBert(config, facts, tensors) if packs(facts) and Device.chosen().is_cpu else None


ENCODERS.add("transformer", Family(build, rebuild, answering, unused=frozenset({"width"})))
