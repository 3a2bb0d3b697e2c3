"""Where a training stands and what it has measured.

Takes: losses, figures.       Gives: History, Position, DivergedError, the contract of a Task.
May import: errors, shapes.   Never: holds weights (the task does).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from torch import Tensor

from xc_core.errors import XCError
from xc_core.shapes import I64


@dataclass
class Position:
    """The next batch to be trained on: batch ``batch`` of epoch ``epoch``; ``step`` batches are done in all."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


@dataclass
class History:
    """Loss of every step and figures of every refresh, in order."""

    losses: list[float] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    refreshes: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    """Time spent training, refreshes included, over all starts of this run."""
    refresh_seconds: float = 0.0
    """Time of it spent on refreshes (mining)."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers."""
        return asdict(self)


class DivergedError(XCError):
    """The loss or its gradient is no longer a finite number."""

    exit_code = 70


def diverged(what: str, step: int) -> DivergedError:
    """Return the error of a training whose ``what`` is not finite in ``step``."""
    return DivergedError(
        f"{what} in step {step}",
        expected="finite numbers",
        do="lower lr, or look at the data; the last checkpoint and the last finished model are kept",
    )


class Task(Protocol):
    """One thing to train. All its randomness comes from seeds and step numbers, none from what was drawn before."""

    name: str

    def start_epoch(self, epoch: int) -> dict[str, float]:
        """Refresh what is refreshed between epochs; return figures worth logging."""

    def batches(self, epoch: int) -> list[I64]:
        """Return the batches of ``epoch``."""

    def step(self, docs_B: I64, step: int, scale: float) -> tuple[float, float]:
        """Train on one batch with the schedule's ``scale``; return (loss sum, what it counts).

        A loss that is not finite is returned, and nothing is trained on it.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Return all state, to be saved."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved state."""


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
