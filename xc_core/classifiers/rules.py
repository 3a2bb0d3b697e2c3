"""Row-wise optimisers: by what a row's gradient is divided; one number and one step count per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

_TINY: Final = 1e-15
"""Lower bound of the root mean square that gradients are divided by: squares of much smaller numbers underflow to 0."""


class RowState:
    """State of the optimiser: ``square_L`` (float32) and how many steps each row has taken, ``steps_L`` (int32)."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.square_L = torch.zeros(rows, device=device)
        self.steps_L = torch.zeros(rows, dtype=torch.int32, device=device)

    def to(self, device: torch.device) -> None:
        """Move the state to ``device``."""
        self.square_L, self.steps_L = self.square_L.to(device), self.steps_L.to(device)


Rule = Callable[[RowState, Tensor | slice, Tensor, float], Tensor | None]
"""(state, rows, mean square gradient of each, decay) -> what each gradient is divided by (U), or None for nothing.

On a card rows whose gradient is 0 are among them: what a rule returns for them must divide 0 to 0, and the caller keeps
their mean square.
"""


def rmsprop(state: RowState, index: Tensor | slice, square_U: Tensor, decay: float) -> Tensor:
    """v <- decay v + (1 - decay) g; divide by sqrt(v / (1 - decay^t)), t counting the row's steps."""
    state.square_L[index] = decay * state.square_L[index] + (1 - decay) * square_U
    unbiased = state.square_L[index] / (1 - decay ** state.steps_L[index].clamp_min(1).float())
    return unbiased.sqrt().clamp_min(_TINY)


def adagrad(state: RowState, index: Tensor | slice, square_U: Tensor, decay: float) -> Tensor:
    """v <- v + g; divide by sqrt(v). Source: Duchi et al. (2011), with one v per row as in FBGEMM and TorchRec."""
    state.square_L[index] += square_U
    return state.square_L[index].sqrt().clamp_min(_TINY)


def sgd(state: RowState, index: Tensor | slice, square_U: Tensor, decay: float) -> None:
    """Divide by nothing."""


RULES: Final[dict[str, Rule]] = {"rmsprop": rmsprop, "adagrad": adagrad, "sgd": sgd}
READ_DECAY: Final = frozenset({"rmsprop"})
"""The rules that read ``decay``; results of the others do not depend on it."""
