"""What every encoder is: token ids in, unit vectors out; and how one is built, saved and loaded.

Takes: EncoderConfig, a tokenizer's facts.      Gives: Encoder.
May import: errors, params, plugins, seeds, encoders.pooling, .heads.  Never: knows documents from labels.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from xc_core.encoders.heads import joined, projection_head, split
from xc_core.encoders.pooling import Pooling
from xc_core.errors import CorruptError, MissingError
from xc_core.params import at_least, below
from xc_core.plugins import Table
from xc_core.seeds import seed_torch


class Precision(StrEnum):
    """Number format of an encoder's matrix products; weights and reductions stay fp32."""

    AUTO = "auto"
    BF16 = "bf16"
    FP32 = "fp32"


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Which encoder, and how a text becomes a vector."""

    name: str = "minilm"
    """"bag", a packaged encoder ("minilm"), a folder, or a name on the Hugging Face hub."""
    pooling: Pooling = Pooling.MEAN
    """How token vectors become one."""
    projection: int = 0
    """Width of a linear projection behind the pooling; 0 for none. (ASTRA: 64 above 3 million labels.)"""
    heads: int = 1
    """1, or 2: a projection of its own for the classifier rows, its vector standing behind the other (UniDEC)."""
    max_length: int = 64
    """Tokens of a text that are read, special tokens included."""
    frozen_layers: int = 0
    """Lowest layers of a transformer that are not trained (the token embeddings too, where above 0)."""
    width: int = 256
    """Width of the vectors of ``bag``; a transformer brings its own."""
    precision: Precision = Precision.AUTO
    """"bf16", "fp32", or "auto": bf16 where the processor multiplies it natively."""
    tokens_per_pass: int = 2048
    """Padded tokens encoded at a time: larger needs more memory, smaller wastes start-up time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pooling", Pooling(self.pooling))
        object.__setattr__(self, "precision", Precision(self.precision))
        at_least(self, max_length=1, width=1, tokens_per_pass=1, projection=0, frozen_layers=0, heads=1)
        below(self, heads=3)

    @property
    def tokenizer(self) -> str:
        """Name of the tokenizer whose ids this encoder reads."""
        return "wordpiece" if self.name == "bag" else self.name


class Encoder(nn.Module, ABC):
    """Token ids (B x T) and their mask to unit vectors (B x D), float32."""

    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.head = projection_head(width, config.projection)
        own = config.projection or width
        self.second = projection_head(width, own) if config.heads == 2 else None
        self.width = own * config.heads

    @abstractmethod
    def pooled(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return one vector a text, before projection and normalisation."""

    @abstractmethod
    def shape_facts(self) -> dict[str, Any]:
        """Return what ``rebuild`` needs to make an encoder of this shape without pretrained weights."""

    def forward(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return unit vectors (B x D, float32 inside an autocast too); a text without any token may be zero.

        With two heads the halves are unit vectors over sqrt(2): one for label texts, one for classifier rows.
        """
        pooled = self.pooled(ids_BT, mask_BT).float()
        first = nn.functional.normalize(self.head(pooled).float(), dim=1)
        if self.second is None:
            return first
        second = nn.functional.normalize(self.second(pooled).float(), dim=1)
        return joined(first, second)

    def views(self, vectors_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unit vectors that face label texts and those that face classifier rows (the same of one head)."""
        return split(vectors_BD, self.config.heads)

    def as_label(self, vectors_BD: Tensor) -> Tensor:
        """Return what a label's text is searched by: with two heads its first half alone, as a unit vector."""
        if self.second is None:
            return vectors_BD
        first, second = self.views(vectors_BD)
        return torch.cat([first, torch.zeros_like(second)], dim=1)

    def as_rows(self, rows_LD: Tensor) -> Tensor:
        """Return what a classifier row is searched by: with two heads it stands in the second half."""
        return rows_LD if self.second is None else torch.cat([torch.zeros_like(rows_LD), rows_LD], dim=1)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def autocast(self) -> torch.autocast:
        """Return the context in which to call the encoder, after its ``precision``."""
        kind = self.device.type
        wanted = self.config.precision
        fits = wanted is Precision.BF16 or (wanted is Precision.AUTO and multiplies_bf16(kind))
        return torch.autocast(kind, torch.bfloat16, enabled=fits)


@dataclass(frozen=True)
class Family:
    """How one family of encoders is made: with pretrained weights, or from saved facts to be filled."""

    build: Callable[[EncoderConfig, int], Encoder]
    rebuild: Callable[[EncoderConfig, dict[str, Any]], Encoder]


ENCODERS: Table[Family] = Table("encoder family")


def multiplies_bf16(device: str) -> bool:
    """True where bf16 matrix products run natively on ``device`` ("cpu" or "cuda")."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(probe and probe())


def build_encoder(config: EncoderConfig, vocabulary_size: int, seed: int) -> Encoder:
    """Return a new encoder, pretrained where its name says so; new weights are drawn from ``seed``."""
    seed_torch(seed, "encoder-weights")
    return ENCODERS[_family(config)].build(config, vocabulary_size)


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write ``encoder.json`` and ``encoder.safetensors`` into ``folder``."""
    facts = {
        "family": _family(encoder.config),
        "config": asdict(encoder.config),
        "width": encoder.width,
        "shape": encoder.shape_facts(),
    }
    (folder / "encoder.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", "utf-8")
    tensors = {name: value.contiguous().clone() for name, value in encoder.state_dict().items()}
    save_file(tensors, folder / "encoder.safetensors")


def load_encoder(folder: Path) -> Encoder:
    """Return the encoder saved in ``folder``, in evaluation mode; no network, no pickle.

    Raises MissingError, CorruptError.
    """
    path = folder / "encoder.json"
    if not path.is_file():
        raise MissingError(f"no {path}", expected="a saved encoder", do="run the stage encoder")
    try:
        facts = json.loads(path.read_text("utf-8"))
        encoder = ENCODERS[facts["family"]].rebuild(EncoderConfig(**facts["config"]), facts["shape"])
        encoder.load_state_dict(load_file(folder / "encoder.safetensors"))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CorruptError(
            f"an encoder in {folder} that cannot be loaded ({type(error).__name__}: {str(error).splitlines()[0]})",
            expected="encoder.json and the encoder.safetensors saved with it",
            do="run the stage encoder again",
        ) from error
    return encoder.eval()


def _family(config: EncoderConfig) -> str:
    return config.name if config.name in ENCODERS else "transformer"
