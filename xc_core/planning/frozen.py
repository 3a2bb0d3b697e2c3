"""The layers of an encoder that are not trained: their share of the time of encoding, and of a step of M1."""

from __future__ import annotations

from functools import cache
from typing import Final

from xc_core.encoders.pretrained_model import num_layers
from xc_core.train.encoder_settings import EncoderSettings

_ASSUMED_LAYERS: Final = 6
"""Layers of an encoder whose configuration is not on this machine: those of ``minilm``."""


def frozen_share(settings: EncoderSettings) -> float:
    """Return the share of the time of encoding that is spent in the layers that are not trained; 0 without layers."""
    encoder = settings.encoder
    return min(encoder.frozen_layers / _layers(encoder.name), 1.0) if freezes_layers(settings) else 0.0


def freezes_layers(settings: EncoderSettings) -> bool:
    """Return True if the encoder has layers that are not trained."""
    encoder = settings.encoder
    return encoder.frozen_layers > 0 and "frozen_layers" not in encoder.unused()


@cache
def _layers(name: str) -> int:
    """Return the number of layers of an encoder; read once, because a packaged encoder is verified each time."""
    return num_layers(name) or _ASSUMED_LAYERS


def passes(settings: EncoderSettings) -> float:
    """Return how many forward passes a step of M1 costs: of 6 operations per weight 2 forward, 4 in trained layers."""
    return 3 - 2 * frozen_share(settings)
