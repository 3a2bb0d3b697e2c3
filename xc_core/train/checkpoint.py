"""All state of a training as one artefact, so that kill -9 costs at most the time since the last one.

Takes: Task, Position, History.               Gives: a folder; the same back.
May import: artifacts, errors, train.state.   Never: pickles; leaves a half-written state.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file

from xc_core import artifacts
from xc_core.errors import XCError
from xc_core.progress import report
from xc_core.train.state import History, Position, Task

KIND = "checkpoint"


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of one training in ``folder``; ``fingerprint`` names its inputs and parameters."""

    folder: Path
    fingerprint: str

    def save(self, task: Task, position: Position, history: History) -> None:
        """Replace the checkpoint."""
        with artifacts.building(self.folder, kind=KIND) as build:
            save_file(
                {name: t.contiguous().clone() for name, t in task.tensors().items()},
                build.path / "state.safetensors",
            )
            build.json("history.json", history.as_dict())
            build.facts |= {"fingerprint": self.fingerprint, "position": asdict(position), "task": task.name}

    def restore(self, task: Task) -> tuple[Position, History]:
        """Load the last checkpoint into ``task``; anew where there is none, one of other inputs, or a damaged one."""
        import json

        try:
            manifest = artifacts.verify(self.folder, kind=KIND)
        except XCError as error:
            if self.folder.exists():
                report(f"{task.name}: the checkpoint cannot be used, starting anew ({error.found})")
            return Position(), History()
        if manifest.facts["fingerprint"] != self.fingerprint or manifest.facts["task"] != task.name:
            report(f"{task.name}: the checkpoint is of other parameters or inputs, starting anew")
            return Position(), History()
        task.load(load_file(self.folder / "state.safetensors"))
        position = Position(**manifest.facts["position"])
        report(f"{task.name}: going on at epoch {position.epoch}, batch {position.batch} (step {position.step})")
        return position, History(**json.loads((self.folder / "history.json").read_text("utf-8")))

    def clear(self) -> None:
        """Delete the checkpoint: the training is done and its result is an artefact."""
        artifacts.remove(self.folder)
