"""The projection after the pooling, and how the vectors of two heads are stored as one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def projection_head(width: int, projection: int) -> nn.Module:
    """Return a bias-free linear map from ``width`` to ``projection``, or the identity if that is 0."""
    if not projection:
        return nn.Identity()
    head = nn.Linear(width, projection, bias=False)
    nn.init.orthogonal_(head.weight)
    return head


def joined(first_BD: Tensor, second_BD: Tensor) -> Tensor:
    """Return one unit vector of two (B x 2D): both over sqrt(2), the one for label texts first."""
    return torch.cat([first_BD, second_BD], dim=1) / math.sqrt(2)


def split(vectors_BD: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return the unit vectors for label texts and those for classifier rows; with one head they are the same."""
    if heads == 1:
        return vectors_BD, vectors_BD
    first, second = (vectors_BD * math.sqrt(2)).chunk(2, dim=1)
    return first, second
