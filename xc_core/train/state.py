"""The contract of a training (``Task``), its position and its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from xc_core.classifiers import LabelTable
from xc_core.errors import DivergedError
from xc_core.shapes import I64

Number: TypeAlias = float | Tensor


@dataclass
class Position:
    """The next batch: number ``batch`` of epoch ``epoch``, after ``step`` batches in all epochs."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


@dataclass
class History:
    """The loss of every step and the figures of every refresh, in order."""

    losses: list[float] = field(default_factory=list)
    """Mean loss of each step."""
    epochs: list[float] = field(default_factory=list)
    """Epochs that were completed after each step, with fractions."""
    refreshes: list[dict[str, float]] = field(default_factory=list)
    """Figures of each refresh, and the epoch before which it was."""
    seconds: float = 0.0
    """Training time, refreshes included, in all processes of this training."""
    refresh_seconds: float = 0.0
    """Part of it that was spent on refreshes (mining)."""

    def results(self) -> dict[str, Any]:
        """Return what is equal in every run: losses and figures of refreshes, no times."""
        return {"losses": self.losses, "epochs": self.epochs, "refreshes": self.refreshes}


def diverged(found: str, step: int) -> DivergedError:
    """Return the error of a training in which ``found``, for instance "a loss of nan", occurred in ``step``."""
    return DivergedError(
        f"{found} in step {step}",
        expected="finite numbers",
        do="lower lr; in step 0, look at the weights of the encoder and the settings of the loss instead. The last "
        "checkpoint and the last finished model are kept",
    )


class Task(Protocol):
    """A training. Its random draws depend on seeds and on epoch and step numbers, never on earlier draws."""

    name: str

    def start_epoch(self, epoch: int) -> dict[str, float]:
        """Refresh what changes between epochs; return figures to log (empty if nothing was done)."""

    def batches(self, epoch: int) -> list[I64]:
        """Return the batches of ``epoch``."""

    def learnable(self, docs_B: I64, step: int) -> bool:
        """Return True if a document of the batch has a positive to learn from and a negative. Changes nothing."""

    def prepare(self, docs_B: I64, step: int) -> Any:
        """Return what the step needs of a batch: its pool, and tokens on the device. Called ahead, in another thread.

        It depends on the seed, ``step`` and the last refresh, and changes nothing.
        """

    def step(self, docs_B: I64, step: int, scale: float, ready: Any = None) -> tuple[Number, Number]:
        """Train on one batch; return (sum of the loss, what it counts): numbers, or scalars on the task's device.

        ``scale`` is the schedule's factor on the learning rate, ``ready`` the result of ``prepare``; None prepares the
        batch now. A loss that is not finite is returned without a step.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Return all state, to be saved."""

    def tables(self) -> dict[str, LabelTable]:
        """Return the label tables by the prefix of their tensors' names; checkpoints write only their changed rows."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore saved state; what a table has per row may be the table's own tensors."""


def tensors_under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with ``prefix``, by their names without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
