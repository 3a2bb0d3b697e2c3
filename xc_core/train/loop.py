"""The training loop. It trains any ``Task``, logs, saves checkpoints and resumes."""

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
    """Length of a training and how often to save it."""

    epochs: float
    """Passes over the documents; may be a fraction."""
    warmup: float
    """Share of the training that warms up."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints, or more if they would take over 5 % of the time; below 0, one after every step.
    Results do not depend on it."""

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ConfigError(f"epochs {self.epochs}", expected="0 or more", do="fix the value")


def fit(task: Task, plan: Plan, checkpoints: Checkpoints) -> History:
    """Train ``task`` as ``plan`` says, from its checkpoint if there is one; return the whole history.

    Raises DivergedError if a loss is not finite; the last checkpoint is kept.
    """
    position, history = checkpoints.restore(task)
    try:
        _run(task, plan, checkpoints, position, history)
    finally:
        checkpoints.wait()
    return history


def _run(task: Task, plan: Plan, checkpoints: Checkpoints, position: Position, history: History) -> None:
    """Train from ``position`` on; extend ``history``."""
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
                if checkpoints.due(plan.checkpoint_seconds):
                    checkpoints.save(task, position, history, beside=plan.checkpoint_seconds >= 0)
            if last < len(batches):
                break
            position.epoch, position.batch = position.epoch + 1, 0


def _open_epoch(task: Task, position: Position, history: History) -> list[I64]:
    """Return the batches of the epoch, after its refresh; a resume within an epoch has the refresh in its state."""
    if position.batch == 0:
        started = time.monotonic()
        figures = task.start_epoch(position.epoch)
        spent = time.monotonic() - started
        history.seconds += spent
        if figures:
            history.refresh_seconds += spent
            history.refreshes.append({"epoch": float(position.epoch), **figures})
            values = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            report(f"{task.name}: refreshed before epoch {position.epoch} in {spent:.1f} s ({values})")
    return task.batches(position.epoch)


def _whole(batches: float) -> int:
    """Return ``batches`` rounded up, ignoring floating-point errors (1.1 - 1 is a little more than 0.1)."""
    return math.ceil(round(batches, 6))


def _step(task: Task, batch: I64, position: Position, history: History, scale: float) -> None:
    loss, count = task.step(batch, position.step, scale)
    mean = loss / count if count else 0.0
    if not math.isfinite(mean):
        raise diverged(f"a loss of {mean}", position.step)
    history.losses.append(mean)
    position.batch += 1
    position.step += 1
