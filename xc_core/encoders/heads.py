"""What stands between a pooled vector and its normalisation, and how two heads share one vector.

Takes: widths.        Gives: modules.
May import: nothing.  Never: normalises (the encoder does, once).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def projection_head(width: int, projection: int) -> nn.Module:
    """Return a bias-free linear map from ``width`` to ``projection``, or the identity where that is 0."""
    if not projection:
        return nn.Identity()
    head = nn.Linear(width, projection, bias=False)
    nn.init.orthogonal_(head.weight)
    return head


def joined(first_BD: Tensor, second_BD: Tensor) -> Tensor:
    """Return one unit vector of two (B x 2D): both over sqrt(2), the one that faces label texts in front."""
    return torch.cat([first_BD, second_BD], dim=1) / math.sqrt(2)


def split(vectors_BD: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return the unit vectors that face label texts and those that face classifier rows; of one head the same."""
    if heads == 1:
        return vectors_BD, vectors_BD
    first, second = (vectors_BD * math.sqrt(2)).chunk(2, dim=1)
    return first, second
