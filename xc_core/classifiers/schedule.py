"""The learning rate schedule of every training."""

from __future__ import annotations


def schedule(done: float, warmup: float) -> float:
    """Return the factor in [0, 1] on the learning rate after the share ``done`` of a training.

    It rises linearly to 1 over the share ``warmup`` and falls linearly to 0 at the end.
    """
    if done < warmup:
        return done / warmup
    return max(1 - done, 0.0) / (1 - warmup)
