"""Places that may still hold what was forgotten, because ``xc forget`` cannot reach into them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

from xc_core.chain.names import ACCEPTANCE
from xc_core.chain.workspace import Workspace
from xc_core.data.acceptance import GIVEN, AcceptanceSet

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
    """Return the places of a project, those of other packages included."""
    found = [*_given(workspace, dataset)]
    for entry in metadata.entry_points(group=GROUP):
        found += entry.load()(workspace, dataset)
    if (workspace.root / ".git").exists():
        found.append(
            Place(
                "the history of git",
                "params.yaml and dvc.lock hold no texts; if raw files were committed, rewrite the history",
            )
        )
    return found


def _given(workspace: Workspace, dataset: str) -> list[Place]:
    """Return the acceptance set if it was given: its documents have texts and uids of their own."""
    folder = workspace.data / dataset / ACCEPTANCE
    if not folder.exists() or AcceptanceSet.open(folder).facts.source != GIVEN:
        return []
    return [
        Place(
            "the acceptance set, if the given file had them under another uid and in other words",
            f"xc acceptance --dataset {dataset} --given FILE replaces it",
        )
    ]
