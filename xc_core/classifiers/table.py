"""The label table: one row per label; a step reads and writes only the rows that it scores.

Memory: 4 (D + 2) bytes per label, and 4 (D + 1) more while rows are averaged. A step on U rows costs O(U D),
independent of L.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from xc_core.classifiers.average import TailMean
from xc_core.errors import ConfigError
from xc_core.params import at_least, later

_TINY: Final = 1e-15
"""Lower bound of the root mean square that gradients are divided by: squares of much smaller numbers underflow to 0."""


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """How rows are initialised, scored and updated."""

    start: str = "text"
    """Initial rows: "text" for the vectors of the labels' texts (NGAME's M3), or "zero"."""
    unit: bool = True
    """Scores are cosines: the length of a row does not count. False: products with rows (logits of logistic losses)."""

    lr: float = 0.01
    """Learning rate after the warm-up: about the root mean square change per coordinate in a step."""
    decay: float = 0.99
    """Decay of a row's running mean square gradient."""
    weight_decay: float = later(0.0, was=0.0)
    """Decoupled weight decay: in a step, a row that moves is first shortened by this times the learning rate."""

    def __post_init__(self) -> None:
        if self.start not in ("text", "zero") or (self.unit and self.start == "zero"):
            raise ConfigError(
                f"start {self.start!r}, unit {self.unit}", expected="text, or zero with unit false", do="fix the value"
            )
        if self.lr <= 0 or not 0 <= self.decay < 1:
            raise ConfigError(
                f"lr {self.lr}, decay {self.decay}", expected="lr > 0, 0 <= decay < 1", do="fix the value"
            )
        at_least(self, weight_decay=0)


class LabelTable:
    """L rows of width D (float32) with a row-wise RMSProp: one running mean square and one step count per row.

    A row's gradient is divided by the root of the row's own running mean square, so a rare label moves as far per step
    as a frequent one. A mean square per coordinate would do the same with D times the memory.
    """

    def __init__(self, rows_LD: Tensor, config: TableConfig) -> None:
        self.config = config
        self.rows_LD = rows_LD.detach().clone().float()
        if config.start == "zero":
            self.rows_LD.zero_()
        self.square_L = torch.zeros(len(rows_LD), device=rows_LD.device)
        self.steps_L = torch.zeros(len(rows_LD), dtype=torch.int32, device=rows_LD.device)
        self.mean: TailMean | None = None
        """The mean of the rows since ``average``."""

    def to(self, device: torch.device) -> None:
        """Move the table, which has not been averaged yet, to ``device``."""
        moved = (tensor.to(device) for tensor in (self.rows_LD, self.square_L, self.steps_L))
        self.rows_LD, self.square_L, self.steps_L = moved

    def take(self, labels_U: Tensor) -> Tensor:
        """Return the rows ``labels_U`` (distinct, rising) as a leaf of a graph: a view if contiguous, else a copy."""
        return self.rows_LD[_index(labels_U)].detach().requires_grad_(True)

    def vectors(self, rows_UD: Tensor) -> Tensor:
        """Return ``rows_UD`` as documents are scored against them: normalised if ``unit``."""
        return torch.nn.functional.normalize(rows_UD, dim=1) if self.config.unit else rows_UD

    def released(self, temperature: float) -> Tensor:
        """Return all rows as they are served: unit vectors, or rows whose products with documents are logits.

        Training divides products by ``temperature``; served rows that are no unit vectors are divided by it already.
        """
        rows_LD = self.rows_LD if self.mean is None else self.mean.of(self.rows_LD)
        return self.vectors(rows_LD) if self.config.unit else rows_LD / temperature

    def average(self) -> None:
        """Serve the mean of the rows after each of the following steps, not the rows after the last one."""
        self.mean = self.mean or TailMean(self.rows_LD)

    def finish_step(self) -> None:
        """Count a step, after all of its updates."""
        if self.mean is not None:
            self.mean.steps += 1

    def update(self, labels_U: Tensor, gradient_UD: Tensor, scale: float) -> None:
        """Take one step on the rows ``labels_U`` (distinct, rising); ``scale`` in [0, 1] is the schedule's factor.

        g = mean square of the row's gradient; v <- decay v + (1 - decay) g;
        w <- (1 - lr scale weight_decay) w - lr scale gradient / sqrt(v / (1 - decay^t)), t counting the row's steps.
        A row whose gradient is 0 keeps its value, v and t.
        """
        if not gradient_UD.is_cpu:
            self._update_unread(labels_U, gradient_UD, scale)
            return
        square_U = gradient_UD.square().mean(1)
        moved = square_U > 0
        at, gradient, square = _index(labels_U), gradient_UD, square_U
        if not moved.all():
            at, gradient, square = labels_U[moved], gradient_UD[moved], square_U[moved]
        if self.mean is not None:
            self.mean.leave(at, self.rows_LD[at])
        self.steps_L[at] += 1
        self.square_L[at] = self.config.decay * self.square_L[at] + (1 - self.config.decay) * square
        unbiased = self.square_L[at] / (1 - self.config.decay ** self.steps_L[at].float())
        if self.config.weight_decay:
            self.rows_LD[at] *= 1 - self.config.lr * scale * self.config.weight_decay
        self.rows_LD[at] -= (self.config.lr * scale) * gradient / unbiased.sqrt().clamp_min(_TINY).unsqueeze(1)

    def _update_unread(self, at: Tensor, gradient_UD: Tensor, scale: float) -> None:
        """Take the step of ``update`` on a card: rows that do not move are kept by a mask, so that nothing is read."""
        square_U = gradient_UD.square().mean(1)
        moved = square_U > 0
        if self.mean is not None:
            self.mean.leave(at, self.rows_LD[at])
        before_U, steps_U, decay = self.square_L[at], self.steps_L[at] + moved, self.config.decay
        running_U = torch.where(moved, decay * before_U + (1 - decay) * square_U, before_U)
        self.steps_L[at], self.square_L[at] = steps_U, running_U
        unbiased_U = running_U / (1 - decay ** steps_U.clamp_min(1).float())
        kept_U = 1 - moved * (self.config.lr * scale * self.config.weight_decay)
        step_UD = (self.config.lr * scale) * gradient_UD / unbiased_U.sqrt().clamp_min(_TINY).unsqueeze(1)
        self.rows_LD[at] = self.rows_LD[at] * kept_U.unsqueeze(1) - step_UD

    def tensors(self) -> dict[str, Tensor]:
        """Return all state, to be saved."""
        mean = {} if self.mean is None else {f"mean/{name}": t for name, t in self.mean.tensors().items()}
        return {"rows": self.rows_LD, "square": self.square_L, "steps": self.steps_L, **mean}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore saved state."""
        saved = (tensors[name].clone().to(self.rows_LD.device) for name in ("rows", "square", "steps"))
        self.rows_LD, self.square_L, self.steps_L = saved
        mean = {name.removeprefix("mean/"): t for name, t in tensors.items() if name.startswith("mean/")}
        self.mean = TailMean.load(mean, self.rows_LD.device) if mean else None


def _index(labels_U: Tensor) -> Tensor | slice:
    """Return an index for the rows ``labels_U`` (distinct, rising): a slice if they are contiguous, else the ids.

    A slice is read and written without a copy. On a card it is always the ids: to look at them would wait for it.
    """
    if not labels_U.is_cpu:
        return labels_U
    if not len(labels_U) or int(labels_U[-1] - labels_U[0]) + 1 != len(labels_U):
        return labels_U
    return slice(int(labels_U[0]), int(labels_U[-1]) + 1)
