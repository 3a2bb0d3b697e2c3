"""The training loop. It trains any ``Task``, logs, saves checkpoints and resumes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from xc_core.classifiers import schedule
from xc_core.devices import Device
from xc_core.distributed import ALONE, World
from xc_core.errors import ConfigError
from xc_core.memory import give_back
from xc_core.progress import Meter, report_paced
from xc_core.shapes import I64
from xc_core.train.ahead import prepared
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.state import History, Number, Position, Task, diverged

_READ_TOGETHER: Final = 64
"""Steps between two readings of the loss by several processes, which exchange their parts of it (a guess)."""
_GIVE_BACK: Final = 120.0
"""Seconds after which free memory is returned to the system, which takes about one second with MiniLM."""
Combine = Callable[[list[tuple[float, float]]], list[tuple[float, float]]]


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

    read_every: int = 1
    """Steps between two readings of the loss; 1 on a CPU. Results do not depend on it."""
    ahead: int = 0
    """Batches that a thread prepares ahead of the step; 0: each is prepared when it is due."""
    combine: Combine = list
    """Adds up losses of which each process has a part; called when losses are read."""

    @classmethod
    def on(
        cls, device: Device, epochs: float, warmup: float, checkpoint_seconds: float, world: World = ALONE,
        combine: Combine = list,
    ) -> Plan:  # fmt: skip
        """Return a plan that keeps ``device`` busy, and processes apart as long as losses need not be read."""
        return cls(
            epochs=epochs,
            warmup=warmup,
            checkpoint_seconds=checkpoint_seconds,
            read_every=device.read_every if world.size == 1 else _READ_TOGETHER,
            ahead=device.ahead,
            combine=combine,
        )

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ConfigError(f"epochs {self.epochs}", expected="0 or more", do="fix the value")


def fit(task: Task, plan: Plan, checkpoints: Checkpoints) -> History:
    """Train ``task`` as ``plan`` says, from its checkpoint if there is one; return the whole history.

    Raises DivergedError if a loss is not finite, and what the check of ``checkpoints`` raises; the last checkpoint is
    kept.
    """
    position, history = checkpoints.restore(task)
    run = _Run(task, plan, checkpoints, position, history)
    try:
        _train(run)
    finally:
        checkpoints.wait()
    return history


def _train(run: _Run) -> None:
    """Train up to the end of the plan; raise ConfigError, before the first step, if there is nothing to learn."""
    task, plan, position, history = run.task, run.plan, run.position, run.history
    with Meter(f"training {task.name}", 1, "steps", already=position.step) as meter:
        while position.epoch < plan.epochs:
            with meter.other_work():  # a refresh can take longer than many steps
                batches = _open_epoch(task, position, history)
            end = _round_up(len(batches) * min(plan.epochs - position.epoch, 1.0))
            meter.total = position.step - position.batch + _round_up(len(batches) * (plan.epochs - position.epoch))
            if not position.step:
                _check_learnable(task, batches[:end], plan.epochs)
            run.steps(batches, end, meter)
            if end < len(batches):
                break
            position.epoch, position.batch = position.epoch + 1, 0


@dataclass
class _Run:
    """A training under way: its position, and the losses of steps that were not read yet."""

    task: Task
    plan: Plan
    checkpoints: Checkpoints
    position: Position
    history: History
    unread: list[tuple[Number, Number]] = field(default_factory=list)
    """Loss and count of the last steps."""
    ends: list[float] = field(default_factory=list)
    """Epochs completed after each of these steps."""
    memory_freed: float = field(default_factory=time.monotonic)
    """When free memory was last returned to the system."""

    def steps(self, batches: list[I64], end: int, meter: Meter) -> None:
        """Train on the batches of an epoch from the present position up to ``end``; read the loss, save if due."""
        position, plan = self.position, self.plan
        step_offset = position.step - position.batch

        def prepare(number: int) -> Any:
            return self.task.prepare(batches[number], step_offset + number)

        started = time.monotonic()
        with closing(prepared(prepare, range(position.batch, end), plan.ahead)) as queue:
            for ready in queue:
                progress = (position.epoch + position.batch / len(batches)) / plan.epochs
                scale = schedule(progress, plan.warmup, meter.total)
                self.unread.append(self.task.step(batches[position.batch], position.step, scale, ready))
                position.batch, position.step = position.batch + 1, position.step + 1
                self.ends.append(position.epoch + position.batch / len(batches))
                reads = len(self.unread) >= plan.read_every or position.batch == end
                save_due = self._save_due(reads)
                if save_due or reads:
                    self._read_losses()
                if time.monotonic() - self.memory_freed > _GIVE_BACK:
                    give_back()
                    self.memory_freed = time.monotonic()
                self.history.seconds += time.monotonic() - started
                meter.update(1, f"loss {self.history.losses[-1]:.4f}" if self.history.losses else "")
                if save_due:
                    self.checkpoints.world.by_first(self.checkpoints.check)
                    self.checkpoints.save(self.task, position, self.history, beside=plan.checkpoint_seconds >= 0)
                started = time.monotonic()  # the wait for the next batch counts, a checkpoint does not

    def _save_due(self, reads: bool) -> bool:
        """Return True if a checkpoint is due. Several processes save in the same step: they ask when they read."""
        world, seconds = self.checkpoints.world, self.plan.checkpoint_seconds
        if world.size == 1:
            return self.checkpoints.due(seconds)
        return reads and world.of_first(self.checkpoints.due(seconds))

    def _read_losses(self) -> None:
        """Add the losses that were not read yet to the history; raise DivergedError if one is not finite."""
        first = self.position.step - len(self.unread)
        for number, (loss, count) in enumerate(self.plan.combine(_as_floats(self.unread))):
            mean = loss / count if count else loss
            if not math.isfinite(mean):
                raise diverged(f"a loss of {mean}", first + number)
            self.history.losses.append(mean if count else 0.0)
            self.history.epochs.append(self.ends[number])
        self.unread.clear()
        self.ends.clear()


def _check_learnable(task: Task, batches: list[I64], epochs: float) -> None:
    """Raise ConfigError if there is no batch, or none in which a document has a positive and a negative."""
    if not batches:
        raise ConfigError(
            f"epochs {epochs:g} of {task.name}, too few for one step",
            expected="a step at least, or 0 for no training",
            do="raise epochs",
        )
    if not any(task.learnable(docs_B, step) for step, docs_B in enumerate(batches)):
        raise ConfigError(
            f"{len(batches):,} batches of {task.name} in which no document has a label to learn and a negative",
            expected="negatives in the batches",
            do="raise batch_size, choose other negatives, or check that the dataset has several labels",
        )


def _as_floats(pairs: list[tuple[Number, Number]]) -> list[tuple[float, float]]:
    """Return the numbers of all pairs; those on a card are read at once."""
    if all(isinstance(value, Tensor) and not value.is_cpu for pair in pairs for value in pair):
        stacked = torch.stack([torch.stack(pair) for pair in pairs])  # type: ignore[arg-type]
        return [(loss, count) for loss, count in stacked.cpu().tolist()]
    return [(float(loss), float(count)) for loss, count in pairs]


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
            values = ", ".join(f"{name} {value:.4g}" for name, value in figures.items() if math.isfinite(value))
            line = f"{task.name}: refreshed before epoch {position.epoch} in {spent:.1f} s ({values})"
            report_paced(f"refresh of {task.name}", line)  # the history has the figures of all
    return task.batches(position.epoch)


def _round_up(batches: float) -> int:
    """Return ``batches`` rounded up, ignoring floating-point errors (1.1 - 1 is a little more than 0.1)."""
    return math.ceil(round(batches, 6))
