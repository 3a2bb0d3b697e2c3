"""Places that may still hold what was forgotten, because ``xc forget`` cannot reach into them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

from xc_core.chain.incoming import closed
from xc_core.chain.names import ACCEPTANCE
from xc_core.chain.workspace import Workspace
from xc_core.data.acceptance import GIVEN, AcceptanceSet
from xc_core.errors import CorruptError, MissingError, bare, first_line

GROUP = "xc.places"
"""Entry points: functions of a workspace and a dataset that return more places, such as MLflow and DVC."""


@dataclass(frozen=True)
class Place:
    """A place, and what to do there."""

    name: str
    do: str
    commands: tuple[str, ...] = ()
    """To be run in the project's folder, in this order."""


def places(workspace: Workspace, dataset: str) -> list[Place]:
    """Return the places of a project, those of other packages included.

    It is called also when all is deleted, so what fails becomes a place to look at.
    """
    listed = [*_given_acceptance_set(workspace, dataset), *_foreign_scratch_folders(workspace)]
    for entry in metadata.entry_points(group=GROUP):
        listed += _package_places(entry, workspace, dataset)
    if (workspace.root / ".git").exists():
        listed.append(
            Place(
                "the history of git",
                "params.yaml and dvc.lock hold no texts; if raw files were committed, rewrite the history",
            )
        )
    return listed


def _package_places(entry: metadata.EntryPoint, workspace: Workspace, dataset: str) -> list[Place]:
    """Return the places that a package adds; if it fails, one that names the package and the error."""
    try:
        return list(entry.load()(workspace, dataset))
    except Exception as error:  # a package may raise anything
        package = entry.dist.name if entry.dist else entry.name
        do = f"they could not be listed ({type(error).__name__}: {first_line(error)}); look there yourself"
        return [Place(f"the places that the package {package} knows", do)]


def _foreign_scratch_folders(workspace: Workspace) -> list[Place]:
    """Return the folders in which commands of another user work, or were killed."""
    do = "any xc command of that user deletes it, once the command that made it has ended"
    return [Place(f"{folder}, of another user, which may hold a dataset", do) for folder in closed(workspace)]


def _given_acceptance_set(workspace: Workspace, dataset: str) -> list[Place]:
    """Return the acceptance set if it was given: its documents have texts and uids of their own."""
    folder = workspace.home(dataset) / ACCEPTANCE
    try:
        if not folder.exists() or AcceptanceSet.open(folder).facts.source != GIVEN:
            return []
    except (CorruptError, MissingError) as error:
        return [Place("the acceptance set", f"it cannot be read ({bare(error.found)}); delete {folder}")]
    return [
        Place(
            "the acceptance set, if the given file had them under another uid and in other words",
            f"xc acceptance --dataset {dataset} --given FILE replaces it",
        )
    ]
