"""The label table: one row a label, of which a step reads and writes only those it touches.

Takes: initial rows, gradients of touched rows.  Gives: LabelTable.
May import: errors, shapes.                      Never: a gradient or optimiser state of the table's full width.

Memory: 4 (D + 2) bytes a label. A step costs O(U D) for U touched rows, whatever L is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from xc_core.errors import ConfigError

_TINY: Final = 1e-15
"""Least root of a mean square that a gradient is divided by; the square of a smaller one underflows to 0."""


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """How rows start, are compared and are updated."""

    start: str = "text"
    """"text": at the vectors of the labels' texts (NGAME's M3); "zero": at nothing."""
    unit: bool = True
    """Compare rows by direction alone, as cosines; False: their length counts too (logits of logistic losses)."""

    lr: float = 0.01
    """Step size at full schedule, as a root mean square change per coordinate."""
    decay: float = 0.99
    """Forgetting factor of a row's running mean square gradient."""

    def __post_init__(self) -> None:
        if self.start not in ("text", "zero") or (self.unit and self.start == "zero"):
            raise ConfigError(
                f"start {self.start!r}, unit {self.unit}", expected="text, or zero with unit false", do="mend the value"
            )
        if self.lr <= 0 or not 0 <= self.decay < 1:
            raise ConfigError(
                f"lr {self.lr}, decay {self.decay}", expected="lr > 0, 0 <= decay < 1", do="mend the value"
            )


class LabelTable:
    """L rows of width D (float32) with a row-wise RMSProp: one running mean square and one step count a row.

    The direction of a row's gradient is kept, its length normalised by the row's own history; a rare label therefore
    moves as far in its few steps as a frequent one does in as many, which a mean square per coordinate would also give,
    at D times the memory.
    """

    def __init__(self, rows_LD: Tensor, config: TableConfig) -> None:
        self.config = config
        self.rows_LD = rows_LD.detach().clone().float()
        if config.start == "zero":
            self.rows_LD.zero_()
        self.square_L = torch.zeros(len(rows_LD), device=rows_LD.device)
        self.steps_L = torch.zeros(len(rows_LD), dtype=torch.int32, device=rows_LD.device)

    def take(self, labels_U: Tensor) -> Tensor:
        """Return the rows ``labels_U`` (distinct, rising) to collect a gradient: a copy, or a view where they touch."""
        return self.rows_LD[_place(labels_U)].detach().requires_grad_(True)

    def vectors(self, rows_UD: Tensor) -> Tensor:
        """Return ``rows_UD`` as documents are scored against them."""
        return torch.nn.functional.normalize(rows_UD, dim=1) if self.config.unit else rows_UD

    def released(self, temperature: float) -> Tensor:
        """Return all rows as serving scores them: unit vectors, or rows whose products are logits."""
        return self.vectors(self.rows_LD) if self.config.unit else self.rows_LD / temperature

    def update(self, labels_U: Tensor, gradient_UD: Tensor, scale: float) -> None:
        """Move the rows ``labels_U`` (distinct) against their gradient; ``scale`` in [0, 1] is the schedule.

        g = mean square over the row; v <- decay v + (1 - decay) g; w <- w - lr scale grad / sqrt(v / (1 - decay^t)).
        A row whose gradient is 0 stays, and its history too.
        """
        square_U = gradient_UD.square().mean(1)
        moved = square_U > 0
        at, gradient, square = _place(labels_U), gradient_UD, square_U
        if not moved.all():
            at, gradient, square = labels_U[moved], gradient_UD[moved], square_U[moved]
        self.steps_L[at] += 1
        self.square_L[at] = self.config.decay * self.square_L[at] + (1 - self.config.decay) * square
        unbiased = self.square_L[at] / (1 - self.config.decay ** self.steps_L[at].float())
        self.rows_LD[at] -= (self.config.lr * scale) * gradient / unbiased.sqrt().clamp_min(_TINY).unsqueeze(1)

    def tensors(self) -> dict[str, Tensor]:
        """Return all state, to be saved."""
        return {"rows": self.rows_LD, "square": self.square_L, "steps": self.steps_L}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved state."""
        device = self.rows_LD.device
        own = (tensors[name].clone().to(device) for name in ("rows", "square", "steps"))
        self.rows_LD, self.square_L, self.steps_L = own


def _place(labels_U: Tensor) -> Tensor | slice:
    """Return where the rows ``labels_U`` (distinct, rising) are: a slice where they touch, which is neither gathered
    nor scattered."""
    if not len(labels_U) or int(labels_U[-1] - labels_U[0]) + 1 != len(labels_U):
        return labels_U
    return slice(int(labels_U[0]), int(labels_U[-1]) + 1)
