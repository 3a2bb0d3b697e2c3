"""Fingerprints and states of the toy experiment, and changes to an artefact as another run would make them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from xc_core import artifacts, manifests
from xc_core.chain import STAGES, Workspace
from xc_core.chain.dataset import Partition
from xc_core.chain.fingerprints import fingerprint
from xc_core.chain.registry import Stage
from xc_core.chain.status import State, depends, states

Edit = Callable[[Workspace, dict[str, Any]], None]
STAGES_OF: Final = "experiments/toy_ngame/stages"
"""Where params.yaml has the settings of the toy experiment."""
NAMES: Final = [name for name in STAGES if name != "leaderboard"]


def recipe_of(name: str) -> str | None:
    return "ngame" if STAGES[name].scope == "experiment" else None


def partition_of(workspace: Workspace, name: str) -> Partition:
    return workspace.params.partition("toy", recipe_of(name))


def folder_of(workspace: Workspace, name: str) -> Path:
    return workspace.folder(name, "toy", "ngame")


def parts_of(workspace: Workspace, name: str) -> dict[str, str]:
    """Return the digest of each thing that a stage depends on."""
    return depends(workspace, STAGES[name], partition_of(workspace, name))


def print_of(workspace: Workspace, name: str, *, refresh: bool = False) -> str:
    return fingerprint(parts_of(workspace, name), refresh=refresh)


def prints(workspace: Workspace) -> dict[str, str]:
    return {name: print_of(workspace, name) for name in NAMES}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def states_of(workspace: Workspace, *, refresh: bool = False) -> dict[str, State]:
    return states(workspace, workspace.params.experiment("toy", "ngame"), refresh=refresh)


def statuses(workspace: Workspace, *, refresh: bool = False) -> dict[str, str]:
    return {name: state.status.name for name, state in states_of(workspace, refresh=refresh).items()}


def reads(stage: Stage) -> tuple[str, ...]:
    """Return the inputs that a stage reads with the toy recipe, whose M4 has the negatives of its batches."""
    return tuple(dep for dep in stage.deps if (stage.name, dep) != ("classifier", "negatives"))


def readers(name: str) -> set[str]:
    """Return the stages that read the artefact of a stage, without the leaderboard."""
    return {stage.name for stage in STAGES.values() if name in reads(stage)} - {"leaderboard"}


def downstream(name: str) -> list[str]:
    """Return the stages that read a stage, themselves or through others, in order."""
    found: list[str] = []
    for stage in STAGES.values():
        if any(dep == name or dep in found for dep in reads(stage)):
            found.append(stage.name)
    return found


def set_content(folder: Path) -> None:
    """Give an artefact another content: a file more, which its manifest lists."""
    path, manifest = folder / "another.txt", manifests.read_manifest(folder)
    path.write_text(path.read_text() + "more" if path.exists() else "another")
    facts = {"bytes": path.stat().st_size, "sha256": artifacts.sha256_file(path)}
    content = dataclasses.replace(manifest, files={**manifest.files, path.name: facts})
    (folder / manifests.MANIFEST).write_text(content.to_file())


def set_made(folder: Path, **changes: Any) -> None:
    """Change the record of how an artefact was made; its content stays."""
    made = dataclasses.replace(artifacts.read_made(folder), **changes)
    (folder / artifacts.MADE).write_text(made.to_json())


def set_older(folder: Path, part: str) -> None:
    """Let an artefact record that it was made from another ``part`` than there is now."""
    made = artifacts.read_made(folder)
    set_made(folder, fingerprint="another", depends={**made.depends, part: "another"})


def set_fact(folder: Path, name: str, value: Any) -> None:
    set_made(folder, facts={**artifacts.read_made(folder).facts, name: value})


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
