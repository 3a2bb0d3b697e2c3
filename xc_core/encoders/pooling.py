"""Pooling: combine the token vectors of a text (B x T x D) into one (B x D). Padding is never read."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from torch import Tensor


class Pooling(StrEnum):
    """Kinds of pooling."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"


def mean(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean over real tokens; zero for a text without tokens."""
    weights = mask_BT.unsqueeze(-1).to(hidden_BTD.dtype)
    return (hidden_BTD * weights).sum(1) / weights.sum(1).clamp(min=1)


def cls(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the vector of the first token."""
    return hidden_BTD[:, 0]


def last(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the vector of the last real token."""
    position_B = mask_BT.long().sum(1).clamp(min=1) - 1
    return hidden_BTD.gather(1, position_B.view(-1, 1, 1).expand(-1, 1, hidden_BTD.shape[2])).squeeze(1)


POOL: Final[dict[Pooling, Callable[[Tensor, Tensor], Tensor]]] = {
    Pooling.MEAN: mean,
    Pooling.CLS: cls,
    Pooling.LAST: last,
}
