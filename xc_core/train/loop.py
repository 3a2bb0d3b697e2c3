"""The one training loop.

Takes: Task, Plan, Checkpoints.                           Gives: History; the task is trained in place.
May import: errors, progress, seeds, train.*.             Never: knows what is trained.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from xc_core.errors import ConfigError
from xc_core.progress import Meter, report
from xc_core.shapes import I64
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.optim import schedule
from xc_core.train.state import History, Position, Task, diverged


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to train and how often to save."""

    epochs: float
    """Passes over the documents; a fraction ends within an epoch."""
    warmup: float
    """Share of the training that warms up."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints; the results do not depend on it."""

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ConfigError(f"epochs {self.epochs}", expected="0 or more", do="mend the value")


def fit(task: Task, plan: Plan, checkpoints: Checkpoints) -> History:
    """Train ``task`` after ``plan``, from its checkpoint where there is one; return the whole history.

    Raises DivergedError where the loss is no longer finite; the last checkpoint stays.
    """
    position, history = checkpoints.restore(task)
    saved = time.monotonic()
    with Meter(f"training {task.name}", 1, "steps", already=position.step) as meter:
        while position.epoch < plan.epochs:
            batches = _open_epoch(task, position, history)
            last = _whole(len(batches) * min(plan.epochs - position.epoch, 1.0))
            meter.total = position.step - position.batch + _whole(len(batches) * (plan.epochs - position.epoch))
            while position.batch < last:
                started = time.monotonic()
                share = position.epoch + position.batch / len(batches)
                _step(
                    task,
                    batches[position.batch],
                    position,
                    history,
                    schedule(share / plan.epochs, plan.warmup),
                )
                history.epochs.append(position.epoch + position.batch / len(batches))
                history.seconds += time.monotonic() - started
                meter.update(1, f"loss {history.losses[-1]:.4f}")
                if time.monotonic() - saved > plan.checkpoint_seconds:
                    checkpoints.save(task, position, history)
                    saved = time.monotonic()
            if last < len(batches):
                break
            position.epoch, position.batch = position.epoch + 1, 0
    return history


def _open_epoch(task: Task, position: Position, history: History) -> list[I64]:
    """Refresh before the first batch of an epoch; a resume inside an epoch finds the refresh in its state."""
    if position.batch == 0:
        started = time.monotonic()
        figures = task.start_epoch(position.epoch)
        spent = time.monotonic() - started
        history.seconds += spent
        if figures:
            history.refresh_seconds += spent
            history.refreshes.append({"epoch": float(position.epoch), **figures})
            told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            report(f"{task.name}: refreshed before epoch {position.epoch} in {spent:.1f} s ({told})")
    return task.batches(position.epoch)


def _whole(batches: float) -> int:
    """Return ``batches`` rounded up, rounding noise (1.1 epochs less 1 are not 0.1) aside."""
    return math.ceil(round(batches, 6))


def _step(task: Task, batch: I64, position: Position, history: History, scale: float) -> None:
    loss, count = task.step(batch, position.step, scale)
    mean = loss / count if count else 0.0
    if not math.isfinite(mean):
        raise diverged(f"a loss of {mean}", position.step)
    history.losses.append(mean)
    position.batch += 1
    position.step += 1
