"""The contract of an encoder (token ids in, unit vectors out), and how one is built, saved and loaded."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from xc_core.devices import CPU, Device
from xc_core.encoders.heads import joined, projection_head, split
from xc_core.encoders.pooling import Pooling
from xc_core.encoders.unallocated import unallocated
from xc_core.errors import ConfigError, CorruptError, MissingError, XCError, first_line
from xc_core.params import at_least, at_most, below
from xc_core.plugins import HasOutside, HasUnused, Table
from xc_core.pretrained import BAG, FROM_CORPUS, model_files
from xc_core.seeds import seed_torch

_LARGEST_SIZE: Final = 65_536
"""Largest width of vectors and length of texts."""
_OF_MODELS: Final = "transformer"
"""The family of encoders whose name is that of a model."""


class Precision(StrEnum):
    """Number format of an encoder's matrix products; weights and reductions are fp32."""

    AUTO = "auto"
    BF16 = "bf16"
    FP32 = "fp32"


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(HasUnused, HasOutside):
    """Settings of an encoder."""

    name: str = "minilm"
    """"bag", a packaged encoder ("minilm"), a folder, or a name on the Hugging Face hub."""
    pooling: Pooling = Pooling.MEAN
    """How the vectors of tokens are combined into one: "mean", "cls" or "last"."""
    projection: int = 0
    """Width of a linear projection after the pooling; 0 for none (ASTRA: 64 above 3 million labels)."""
    heads: int = 1
    """1, or 2 for a second projection whose vectors are scored against classifier rows (UniDEC)."""
    max_length: int = 64
    """Largest number of tokens of a text that are read, special tokens included."""
    frozen_layers: int = 0
    """Lowest layers of a transformer that are not trained; above 0, no embeddings are trained either."""
    width: int = 256
    """Width of the vectors of ``bag``; a transformer has its own."""
    precision: Precision = Precision.AUTO
    """"bf16", "fp32", or "auto": bf16 if the device multiplies it faster, which is measured."""
    tokens_per_pass: int = 2048
    """Padded tokens per forward pass, at most: more need more memory, fewer need more passes."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        object.__setattr__(self, "pooling", Pooling(self.pooling))
        object.__setattr__(self, "precision", Precision(self.precision))
        at_least(self, max_length=1, width=1, tokens_per_pass=1, projection=0, frozen_layers=0, heads=1)
        below(self, heads=3)
        at_most(self, projection=_LARGEST_SIZE, width=_LARGEST_SIZE, max_length=_LARGEST_SIZE, tokens_per_pass=1 << 24)

    def unused(self) -> frozenset[str]:
        """Return the settings that the encoder's family does not read."""
        return ENCODERS[_family(self)].unused

    def outside(self) -> dict[str, list[Path]]:
        """Return the files of a local model folder, by a name for people."""
        return {} if self.name in ENCODERS else model_files(self.name)

    @property
    def tokenizer(self) -> str:
        """Name of the tokenizer of this encoder."""
        return FROM_CORPUS if self.name == BAG else self.name


class Group(NamedTuple):
    """Texts of similar length whose tokens are given without padding."""

    tokens_M: Tensor
    """Ids of the tokens of all texts, one text after the other."""
    mask_BT: Tensor
    """The mask that the texts have with padding."""
    places_M: Tensor
    """Position of each token in the flattened mask; to find them on a card would wait for it."""


class Encoder(nn.Module, ABC):
    """Base of encoders: maps token ids (B x T) and their mask to unit vectors (B x D), float32."""

    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.pooled_width = width
        self.head = projection_head(width, config.projection)
        head_width = config.projection or width
        self.second = projection_head(width, head_width) if config.heads == 2 else None
        self.width = head_width * config.heads
        self.tokens_per_pass = config.tokens_per_pass
        """Padded tokens per forward pass on the present device, at most."""
        self.pass_cost = CPU.pass_cost
        """Fixed cost of a pass on the present device, in tokens; None: passes are filled."""

    @abstractmethod
    def pooled(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return one vector per text, before projection and normalisation."""

    @abstractmethod
    def shape_facts(self) -> dict[str, Any]:
        """Return what ``Family.rebuild`` needs to build an encoder of this shape without pretrained weights."""

    @property
    def frozen_width(self) -> int:
        """Width of a token's state after the layers that are not trained; 0 if layers are not computed apart."""
        return 0

    def frozen(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the states of tokens after the layers that are not trained (B x T x H); any value for padding."""
        raise NotImplementedError(f"{type(self).__name__} does not compute its layers apart")

    def above(self, states_BTH: Tensor, mask_BT: Tensor) -> Tensor:
        """Return one vector per text, as ``pooled`` does, from the states after the layers that are not trained."""
        raise NotImplementedError(f"{type(self).__name__} does not compute its layers apart")

    @property
    def skips_padding(self) -> bool:
        """True if ``unpadded`` is faster than ``pooled`` on the present device."""
        return False

    def unpadded(self, groups: Sequence[Group]) -> Tensor:
        """Return one vector per text of all groups, as ``pooled`` does, without computing padding."""
        raise NotImplementedError(f"{type(self).__name__} computes padding")

    def forward(self, ids_BT: Tensor, mask_BT: Tensor, states_BTH: Tensor | None = None) -> Tensor:
        """Return unit vectors (B x D), float32 even under autocast; the vector of a text without tokens may be zero.

        With two heads, each half is a unit vector over sqrt(2): the first for label texts, the second for rows. If the
        states after the layers that are not trained are given, only the layers above are computed.
        """
        pooled = self.pooled(ids_BT, mask_BT) if states_BTH is None else self.above(states_BTH, mask_BT)
        return self._unit(pooled.float(), len(mask_BT))

    def forward_unpadded(self, groups: Sequence[Group]) -> Tensor:
        """Return the unit vectors of the texts of all groups, in order; only for an encoder that skips padding."""
        return self._unit(self.unpadded(groups), sum(len(group.mask_BT) for group in groups))

    def _unit(self, pooled: Tensor, texts: int) -> Tensor:
        """Return the unit vectors of pooled ones."""
        if pooled.shape != (texts, self.pooled_width):
            raise XCError(
                f"pooled vectors of the encoder {type(self).__name__} of the shape {tuple(pooled.shape)}",
                expected=f"a vector per text, of the width that the encoder gave: {(texts, self.pooled_width)}",
                do="fix the method pooled of the encoder, or the width",
            )
        first = nn.functional.normalize(self.head(pooled).float(), dim=1)
        if self.second is None:
            return first
        second = nn.functional.normalize(self.second(pooled).float(), dim=1)
        return joined(first, second)

    def views(self, vectors_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unit vectors to score against label texts and those against rows; equal with one head."""
        return split(vectors_BD, self.config.heads)

    def as_label(self, vectors_BD: Tensor) -> Tensor:
        """Return vectors of label texts for a search; with two heads: the first half as a unit vector, then zeros."""
        return self.as_texts(self.views(vectors_BD)[0])

    def as_texts(self, first_BD: Tensor) -> Tensor:
        """Return vectors to score documents against label texts, for a search; with two heads: then zeros."""
        return first_BD if self.second is None else torch.cat([first_BD, torch.zeros_like(first_BD)], dim=1)

    def as_rows(self, rows_LD: Tensor) -> Tensor:
        """Return classifier rows for a search; with two heads: zeros, then the row."""
        return rows_LD if self.second is None else torch.cat([torch.zeros_like(rows_LD), rows_LD], dim=1)

    def on(self, device: Device) -> Self:
        """Move the encoder to ``device``, with the attention and the size of a pass that are fast there."""
        self.to(device.torch)
        self.use_attention(device.attention)
        self.tokens_per_pass = device.tokens_per_pass(
            self.config.tokens_per_pass, self.bytes_per_token(), padding=not self.skips_padding
        )
        self.pass_cost = device.pass_cost
        return self

    def learns(self) -> bool:
        """Return True if its vectors depend on a weight that is trained. A text of three tokens is encoded."""
        with torch.enable_grad():
            return bool(self(*_three_tokens(self.device)).requires_grad)

    def without_gradients(self) -> Encoder:
        """Return an encoder with the present weights that encodes faster if no gradient is needed, or this one.

        Its vectors are those of this encoder up to rounding.
        """
        return self

    def use_attention(self, kind: str) -> None:
        """Choose "eager" or "sdpa"; an encoder without attention does nothing."""
        return

    def bytes_per_token(self) -> int:
        """Return about how much memory the activations of a token take in a training, in bytes."""
        return 16 * self.width

    @property
    def device(self) -> torch.device:
        """The device that the weights are on."""
        return next(self.parameters()).device

    @property
    def in_bf16(self) -> bool:
        """True if matrix products are in bf16, according to ``precision``."""
        precision = self.config.precision
        if precision is Precision.AUTO:
            return Device(str(self.device)).multiplies_bf16()
        return precision is Precision.BF16

    def autocast(self) -> torch.autocast:
        """Return the context to call the encoder in, according to its ``precision``."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bf16)


@dataclass(frozen=True)
class Family:
    """Two ways to build an encoder of a family: a new one, or one of a saved shape whose weights are loaded later."""

    build: Callable[[EncoderConfig, int], Encoder]
    rebuild: Callable[[EncoderConfig, dict[str, Any]], Encoder]
    answers: Callable[[EncoderConfig, dict[str, Any], dict[str, Tensor]], Encoder | None] = lambda *_: None
    """Builds an encoder that only answers, of a saved shape and weights; None if ``rebuild`` is to be used."""
    unused: frozenset[str] = frozenset()
    """Settings that encoders of this family do not read."""


ENCODERS: Table[Family] = Table("encoder family")


def build_encoder(config: EncoderConfig, vocabulary_size: int, seed: int) -> Encoder:
    """Return a new encoder, pretrained unless it is "bag"; new weights are drawn from ``seed``."""
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
    tensors = {name: value.contiguous().to(CPU.torch, copy=True) for name, value in encoder.state_dict().items()}
    save_file(tensors, folder / "encoder.safetensors")


def load_encoder(folder: Path, *, to_answer: bool = False) -> Encoder:
    """Return the encoder saved in ``folder``, in evaluation mode; no network, no pickle.

    With ``to_answer`` it may be one that is faster on a few texts, but cannot be trained, saved or moved to a device.
    Raises MissingError, CorruptError.
    """
    path = folder / "encoder.json"
    if not path.is_file():
        raise MissingError(f"no {path}", expected="a saved encoder", do="run the stage encoder")
    try:
        facts = json.loads(path.read_text("utf-8"))
        encoder = _load(facts, load_file(folder / "encoder.safetensors"), to_answer).eval()
        with torch.no_grad():  # a setting that does not fit may fail in the first text only
            encoder(*_three_tokens(encoder.device))
    except (XCError, MemoryError):
        raise
    except Exception as error:  # transformers and safetensors raise errors of many types for wrong content
        raise CorruptError(
            f"an encoder in {folder} that cannot be loaded ({type(error).__name__}: {first_line(error)})",
            expected="encoder.json and the encoder.safetensors saved with it",
            do="run the stage encoder again",
        ) from error
    return encoder


def _three_tokens(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and mask of a text of three tokens, for any vocabulary."""
    ids_BT = torch.zeros((1, 3), dtype=torch.long, device=device)
    return ids_BT, torch.ones_like(ids_BT, dtype=torch.bool)


def _load(facts: dict[str, Any], tensors: dict[str, Tensor], to_answer: bool) -> Encoder:
    family = ENCODERS[facts["family"]]
    try:
        config = EncoderConfig(**facts["config"])
    except ConfigError as error:  # of a file that nobody writes by hand
        raise ValueError(error.found) from error
    answering = family.answers(config, facts["shape"], tensors) if to_answer else None
    if answering is not None:
        return answering
    with unallocated():  # compare all shapes before allocating any
        family.rebuild(config, facts["shape"]).load_state_dict(tensors, assign=True)
    encoder = family.rebuild(config, facts["shape"])
    encoder.load_state_dict(tensors)
    return encoder


def _family(config: EncoderConfig) -> str:
    return config.name if config.name in ENCODERS else _OF_MODELS


def _check_name(name: str) -> None:
    """Raise ConfigError for a name that stands for something else than an encoder."""
    reserved = {FROM_CORPUS: "the tokenizer of bag", _OF_MODELS: "the family of all named models"}
    if not name.strip() or name in reserved:
        raise ConfigError(
            f"name {name!r}" + (f", {reserved[name]}" if name in reserved else ""),
            expected="an encoder: bag, minilm, a folder, or a name on the Hugging Face hub",
            do="set name to bag for an encoder without pretrained weights, or to a model",
        )
