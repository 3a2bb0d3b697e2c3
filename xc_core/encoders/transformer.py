"""A transformer of the Hugging Face library with pooling and an optional projection.

Takes: a packaged encoder, a folder or a hub name.  Gives: Encoder.
May import: errors, pretrained, encoders.base, .pooling.  Never: reaches a network for a local folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from xc_core.encoders.base import ENCODERS, Encoder, EncoderConfig, Family
from xc_core.encoders.pooling import POOL
from xc_core.errors import ConfigError, MissingError, UnavailableError
from xc_core.pretrained import locate


class TransformerEncoder(Encoder):
    """``backbone`` is any encoder-only model of transformers; its token embeddings are never trained.

    Fine-tuning leaves the token embeddings as they were: their dense gradient costs a tenth of a training step and
    short texts touch few of their rows. Dropout is off: contrastive fine-tuning of a pretrained encoder over a few
    epochs gains nothing from it, and packed passes stay deterministic.
    """

    def __init__(self, config: EncoderConfig, backbone: Any) -> None:
        super().__init__(config, int(backbone.config.hidden_size))
        self.backbone: Any = backbone.float()
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
                expected=f"at most {len(stack)}, the layers there are",
                do="lower the value",
            )
        for module in [self.backbone.embeddings, *stack[:layers]]:
            module.requires_grad_(False)

    def pooled(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the pooled last hidden states."""
        hidden_BTD = self.backbone(input_ids=ids_BT, attention_mask=mask_BT.long()).last_hidden_state
        return POOL[self.config.pooling](hidden_BTD.float(), mask_BT)

    def shape_facts(self) -> dict[str, Any]:
        """Return the backbone's configuration."""
        facts = self.backbone.config.to_dict()
        facts.pop("_name_or_path", None)
        return dict(facts)


def _layers(backbone: Any) -> list[nn.Module]:
    """Return the stack of layers, wherever this kind of model keeps it."""
    stacks = [list(m) for m in backbone.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    if not stacks or not hasattr(backbone, "embeddings"):
        raise ConfigError(
            f"frozen_layers for a {type(backbone).__name__}",
            expected="a model with embeddings and one stack of layers",
            do="set frozen_layers to 0",
        )
    return max(stacks, key=len)


def build(config: EncoderConfig, vocabulary_size: int) -> TransformerEncoder:
    """Load pretrained weights as fp32; attention by plain matrix products, which trains faster on short texts.

    Only safetensors are read: a pickled checkpoint could run code.
    Raises MissingError for a folder without a model, UnavailableError where a hub cannot be reached.
    """
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    place = locate(config.name)
    try:
        backbone = AutoModel.from_pretrained(
            place, dtype=torch.float32, attn_implementation="eager", use_safetensors=True
        )
    except (OSError, ValueError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        if isinstance(place, Path):
            raise MissingError(
                f"no usable model in {place} ({first})",
                expected="config.json and model.safetensors",
                do="save the model there with save_pretrained",
            ) from error
        raise UnavailableError(
            f"no model {config.name!r} on this machine or on the model hub ({first})",
            expected="a name the hub knows and a network, or a local folder",
            do="download the model where there is a network and give its folder instead of its name",
        ) from error
    return TransformerEncoder(config, backbone)


def rebuild(config: EncoderConfig, facts: dict[str, Any]) -> TransformerEncoder:
    """Make an encoder of a saved shape; its weights are filled by the caller."""
    from transformers import AutoConfig, AutoModel

    shape = AutoConfig.for_model(**facts)
    return TransformerEncoder(config, AutoModel.from_config(shape, attn_implementation="eager"))


ENCODERS.add("transformer", Family(build, rebuild))
