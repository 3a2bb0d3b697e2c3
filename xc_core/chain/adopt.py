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
    target = fingerprint(depends(workspace, stage, partition))
    own_folder = workspace.folder(stage.name, *partition.key)
    if artifacts.read_made(own_folder).fingerprint == target:
        return None
    others = (folder for folder in folders if folder != own_folder)
    matching = (folder for folder in others if artifacts.read_made(folder).fingerprint == target)
    return next((folder for folder in matching if link(folder, own_folder)), None)


def share(workspace: Workspace, name: str, dataset: str, recipe: str) -> str | None:
    """Take over what a stage would make from another experiment of the dataset, with its costs; return its recipe.

    Returns None if no other experiment has it, if the stage is up to date already, or if one of its inputs is missing.
    Raises BusyError if the stage is running.
    """
    stage, partition = find_stage(name), workspace.params.partition(dataset, recipe)
    recipe_of = {workspace.folder(name, dataset, other): other for other in workspace.params.recipes(dataset)}
    adopted = None
    lock = workspace.scratch("lock", name, dataset, recipe)
    with locked(lock, f"{name} of {dataset}/{recipe}"), working(workspace, dataset), suppress(MissingError):
        adopted = adopt(workspace, stage, partition, recipe_of)
        if adopted is not None:  # checkpoints of a training that was stopped are of no use now
            artifacts.remove(workspace.scratch("run", name, dataset, recipe))
    if adopted is None:
        return None
    source_cost, own_cost = (workspace.scratch("cost", name, dataset, owner) for owner in (recipe_of[adopted], recipe))
    if source_cost.is_file():
        workspace.write(own_cost, source_cost.read_text("utf-8"))
    return recipe_of[adopted]
