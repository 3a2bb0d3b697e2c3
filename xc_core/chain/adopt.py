"""Takes over the artefact of another experiment, if it is what a stage would make."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from xc_core import artifacts
from xc_core.chain.dataset import Partition
from xc_core.chain.depends import depends, fingerprint
from xc_core.chain.registry import Stage
from xc_core.chain.workspace import Workspace
from xc_core.linked import link


def adopt(workspace: Workspace, stage: Stage, partition: Partition, folders: Iterable[Path]) -> Path | None:
    """Put the first artefact of ``folders`` that has the stage's fingerprint in the stage's place; return its folder.

    The fingerprint is a hash of everything that the result depends on, so the settings in use, the code version and the
    content of all inputs are the same. Returns None if there is no such artefact, or if the stage is up to date
    already. Raises MissingError if an input of the stage is missing.
    """
    wanted = fingerprint(depends(workspace, stage, partition))
    own = workspace.folder(stage.name, *partition.place)
    if artifacts.read_made(own).fingerprint == wanted:
        return None
    same = (folder for folder in folders if folder != own and artifacts.read_made(folder).fingerprint == wanted)
    return next((folder for folder in same if link(folder, own)), None)
