"""Start stages on request, each in a fresh process that is killed (kill -9) at a given moment, or runs to its end.

Reads lines of JSON, [workspace, stage, moment]. A moment is "step:N" (before training step N), "again:N" (before step N
of the stage's second training), "save:N" (in the middle of the Nth checkpoint that this start writes: its files are
there, its exchange is not done), or "end" (not at all).
Answers each with a line of JSON: the step it began with, how the process ended, and what it reported. The processes are
forked from this one, which has imported everything and computed nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from xc_core import artifacts, progress
from xc_core.chain import Workspace, run_stage
from xc_core.chain.registry import find_stage
from xc_core.chain.runner import code
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierTask
from xc_core.train.encoder import EncoderTask


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watch_steps(kill_at: int, training: int, began: Callable[[int], None]) -> None:
    """Report the first step of this process, and die before step ``kill_at`` of the stage's training of that number."""
    first, trainings = [True], [0]
    restore = Checkpoints.restore

    def restored(self: Checkpoints, task: Any) -> Any:
        trainings[0] += 1
        return restore(self, task)

    Checkpoints.restore = restored  # type: ignore[method-assign]

    def watched(kind: type[Any]) -> None:
        plain = kind.step

        def step(self: Any, docs: Any, number: int, scale: float, ready: Any) -> tuple[float, float]:
            if first[0]:
                began(number)
                first[0] = False
            if number == kill_at and trainings[0] == training:
                die()
            done: tuple[float, float] = plain(self, docs, number, scale, ready)
            return done

        kind.step = step

    watched(EncoderTask)
    watched(ClassifierTask)


def watch_saves(kill_at: int) -> None:
    """Die in the middle of checkpoint number ``kill_at``."""
    plain, saves = artifacts._exchange, [0]

    def exchange(new: Path, old: Path) -> None:
        checkpoint = "run" in [above.name for above in old.parents][:3]  # .xc/run/STAGE[/FOLD][/LINK]
        saves[0] += checkpoint
        if saves[0] == kill_at and checkpoint:
            die()
        plain(new, old)

    artifacts._exchange = exchange


def warm_up() -> None:
    """Import what torch imports at an optimiser's first step; otherwise it costs every start a second."""
    weight = torch.zeros(1, requires_grad=True)
    weight.sum().backward()
    torch.optim.AdamW([weight], fused=True).step()


def start(root: str, stage: str, moment: str, out: int) -> None:
    """Run the stage in this process, to be killed at ``moment``; write what happens to the descriptor ``out``."""
    kind, _, number = moment.partition(":")

    def write(**facts: object) -> None:
        os.write(out, (json.dumps(facts) + "\n").encode())

    progress.listen(lambda line: write(said=line))
    kill_at = int(number) if kind in ("step", "again") else -1
    watch_steps(kill_at, 2 if kind == "again" else 1, lambda step: write(began=step))
    if kind == "save":
        watch_saves(int(number))
    run_stage(Workspace(Path(root)), stage, "toy", "ngame")


def forked(root: str, stage: str, moment: str) -> dict[str, Any]:
    """Return what a process that runs ``start`` reported and how it ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        start(root, stage, moment, writer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        facts = [json.loads(line) for line in stream]
    _, status = os.waitpid(child, 0)
    began = [one["began"] for one in facts if "began" in one]
    return {
        "moment": moment,
        "began": began[0] if began else None,
        "ended": os.waitstatus_to_exitcode(status),
        "said": [one["said"] for one in facts if "said" in one],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None  # slow, and only for power cuts: what a killed process wrote stays written
    for name in ("encoder", "classifier"):
        code(find_stage(name), "run")
    warm_up()
    for request in sys.stdin:
        print(json.dumps(forked(*json.loads(request))), flush=True)
