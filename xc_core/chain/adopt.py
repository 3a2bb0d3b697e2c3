"""Takes over the artefact of another experiment, if it is what a stage would make."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from xc_core import artifacts
from xc_core.chain.dataset import Partition
from xc_core.chain.fingerprints import fingerprint
from xc_core.chain.registry import Stage, find_stage
from xc_core.chain.status import depends
from xc_core.chain.workspace import Workspace, working
from xc_core.errors import MissingError
from xc_core.linked import link
from xc_core.locks import locked


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


def share(workspace: Workspace, name: str, dataset: str, recipe: str) -> str | None:
    """Take over what a stage would make from another experiment of the dataset, with its costs; return its recipe.

    Returns None if no other experiment has it, if the stage is up to date already, or if one of its inputs is missing.
    Raises BusyError if the stage is running.
    """
    stage, partition = find_stage(name), workspace.params.partition(dataset, recipe)
    others = {workspace.folder(name, dataset, other): other for other in workspace.params.recipes(dataset)}
    taken = None
    lock = workspace.scratch("lock", stage, dataset, recipe)
    with locked(lock, f"{name} of {dataset}/{recipe}"), working(workspace, dataset), suppress(MissingError):
        taken = adopt(workspace, stage, partition, others)
        if taken is not None:  # checkpoints of a training that was stopped are of no use now
            artifacts.remove(workspace.scratch("run", stage, dataset, recipe))
    if taken is None:
        return None
    theirs, own = (workspace.scratch("cost", stage, dataset, one) for one in (others[taken], recipe))
    if theirs.is_file():
        workspace.write(own, theirs.read_text("utf-8"))
    return others[taken]
