"""What a step of M1 keeps in memory for its gradient, as a formula: layers, width, tokens and texts of a batch.

``xc_core.train.activations`` counts it in one pass of the encoder, before the first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from xc_core.devices import CPU
from xc_core.encoders import ENCODERS, EncoderConfig
from xc_core.encoders.base import Precision
from xc_core.encoders.pretrained_model import configuration, num_layers
from xc_core.planning.stage_costs import Case
from xc_core.train.activations import BESIDE, PEAK, is_enough

_STATES: Final = 8
"""States of a layer's width that its gradient needs of a token: its input, query, key, value, what attention gives, and
the inputs and outputs of its normalisations (docs/lab-notes/2026-11-30-memory-of-a-step.md)."""
_INNER: Final = 2
"""The same of the inner width: before and after the activation function."""
_FP32: Final = (4.0, 4.0)
_BF16: Final = (2.5, 2.0)
"""Bytes of a number of a state, of which some stay in fp32 under autocast, and of an attention weight."""
PADDING: Final = 1.1
"""Padding of the passes, and tokens of long texts, which attend to more than the mean one (1.09 to 1.21 on three
datasets, docs/lab-notes/2026-11-30-memory-of-a-step.md)."""
PROCESS_BYTES: Final = 600 << 20
"""Bytes that a process with torch holds before it reads anything (measured: 570 to 680 MB)."""


@dataclass(frozen=True)
class Layers:
    """The layers of an encoder that are trained."""

    number: int
    width: int
    inner: int
    heads: int

    def bytes_per_token(self, length: float, *, bf16: bool = False) -> float:
        """Return the bytes that a token keeps in a text of ``length`` tokens: it attends to each of them."""
        state, weight = _BF16 if bf16 else _FP32
        states = _STATES * self.width + _INNER * self.inner
        return self.number * (state * states + weight * self.heads * length)


@lru_cache
def trained_layers(config: EncoderConfig) -> Layers | None:
    """Return the layers of a model whose configuration is on this machine; None for any other encoder."""
    number = None if config.name in ENCODERS else num_layers(config.name)
    if number is None:
        return None
    shape = configuration(config.name)
    width, heads = (getattr(shape, name, None) for name in ("hidden_size", "num_attention_heads"))
    if not isinstance(width, int) or not isinstance(heads, int):
        return None
    inner = getattr(shape, "intermediate_size", 4 * width)
    return Layers(max(number - config.frozen_layers, 0), width, inner, heads)


def activation_bytes(case: Case) -> float:
    """Return the bytes that a step keeps of texts that are encoded once, in each process of a training on CPUs.

    0 if nothing is trained, and for an encoder whose layers are not known.
    """
    settings = case.recipe.encoder
    layers = trained_layers(settings.encoder) if settings.epochs else None
    if layers is None:
        return 0.0
    texts = [] if settings.cache else [(case.batch, case.encoded(1, 0))]
    if settings.scorer.reads_texts and not getattr(settings.scorer, "cache", False):
        texts.append((case.pool, case.encoded(0, 1)))
    kept = sum(number * _text_bytes(settings.encoder, layers, length) for number, length in texts)
    return PADDING * kept / case.processes


def keeps_activations(case: Case) -> bool:
    """Return False if M1 will encode texts twice, because a step does not fit into ``case.memory`` (GradCache)."""
    return case.processes > 1 or is_enough(activation_bytes(case), case.memory)


def step_bytes(case: Case, states: float) -> float:
    """Return the bytes of a step of M1: its activations, or those of one pass, and what comes and goes beside them.

    ``states``: bytes of the states after the frozen layers, which are counted elsewhere, but were measured with the
    rest. A small encoder has less beside its activations (a guess: no more than they take).
    """
    activations = activation_bytes(case)
    if keeps_activations(case):
        return PEAK * activations + min(activations, max(BESIDE - PROCESS_BYTES - states, 0.0))
    config = case.recipe.encoder.encoder
    layers = trained_layers(config)
    one_text = 0.0 if layers is None else _text_bytes(config, layers, config.max_length)
    return one_text * config.tokens_per_pass / config.max_length


def _text_bytes(config: EncoderConfig, layers: Layers, length: float) -> float:
    bf16 = CPU.multiplies_bf16() if config.precision is Precision.AUTO else config.precision is Precision.BF16
    return length * layers.bytes_per_token(length, bf16=bf16)
