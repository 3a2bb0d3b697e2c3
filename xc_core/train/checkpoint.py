"""Checkpoints: all state of a training as one artefact, from which a killed training resumes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from safetensors.torch import load_file, save_file

from xc_core import artifacts
from xc_core.errors import XCError
from xc_core.progress import report
from xc_core.train.state import History, Position, Task

KIND: Final = "checkpoint"
_STATE: Final = "state.safetensors"
_HISTORY: Final = "history.json"
_POSITION: Final = "position.json"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoint of one training in ``folder``; ``fingerprint`` identifies its inputs and parameters."""

    folder: Path
    fingerprint: str

    def save(self, task: Task, position: Position, history: History) -> None:
        """Write the checkpoint, replacing the one before."""
        with artifacts.building(self.folder, kind=KIND) as build:
            save_file(
                {name: t.contiguous().clone() for name, t in task.tensors().items()},
                build.path / _STATE,
            )
            build.json(_HISTORY, history.as_dict())
            state = {"fingerprint": self.fingerprint, "position": asdict(position), "task": task.name}
            build.json(_POSITION, state)

    def restore(self, task: Task) -> tuple[Position, History]:
        """Load the last checkpoint into ``task`` and return its position and history.

        If there is none, or it is damaged or of another training, return those of the beginning.
        """
        try:
            artifacts.verify(self.folder, kind=KIND)
        except XCError as error:
            if self.folder.exists():
                report(f"{task.name}: the checkpoint cannot be used, starting from the beginning ({error.found})")
            return Position(), History()
        state = json.loads((self.folder / _POSITION).read_text("utf-8"))
        if state["fingerprint"] != self.fingerprint or state["task"] != task.name:
            report(f"{task.name}: the checkpoint is of other parameters or inputs, starting from the beginning")
            return Position(), History()
        task.load(load_file(self.folder / _STATE))
        position = Position(**state["position"])
        report(f"{task.name}: resuming at epoch {position.epoch}, batch {position.batch} (step {position.step})")
        return position, History(**json.loads((self.folder / _HISTORY).read_text("utf-8")))

    def clear(self) -> None:
        """Delete the checkpoint, after the result of the training was saved."""
        artifacts.remove(self.folder)
