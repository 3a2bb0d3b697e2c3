"""The learning rate schedule of every training, and a check of its weight decay."""

from __future__ import annotations

import math

from xc_core.errors import ConfigError


def check_decay(lr: float, weight_decay: float) -> None:
    """Raise ConfigError if a step would shorten weights by their whole length, or more."""
    if not lr * weight_decay < 1:
        raise ConfigError(
            f"lr {lr} and weight_decay {weight_decay}", expected="a product below 1", do="lower lr or weight_decay"
        )


def schedule(done: float, warmup: float, steps: float = math.inf) -> float:
    """Return the factor in [0, 1] on the learning rate after the share ``done`` of a training of ``steps`` steps.

    It rises linearly to 1 over the share ``warmup`` and falls linearly to 0 at the end. A single step has 1: it is the
    first one of a warm-up, and would learn nothing.
    """
    if steps <= 1:
        return 1.0
    if done < warmup:
        return done / warmup
    return max(1 - done, 0.0) / (1 - warmup)
