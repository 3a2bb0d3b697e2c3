"""Decides which artefacts are up to date. Nothing else decides this: DVC records it and Dagster shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from xc_core import artifacts
from xc_core.artifacts import Made
from xc_core.chain.dataset import Partition
from xc_core.chain.depends import depends, differing, fingerprint, inputs, only_inputs
from xc_core.chain.registry import STAGES, Stage, of_scope
from xc_core.chain.workspace import Workspace
from xc_core.errors import CorruptError, MissingError


class Status(StrEnum):
    """State of an artefact."""

    FRESH = "up to date"
    KEPT = "kept"
    """Trained on older data and kept by a refresh, which ``xc train`` trains again; or extended by new labels, which a
    refresh rebuilds."""
    STALE = "out of date"
    MISSING = "missing"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"
    """It is there, but an input is missing or unreadable, as on a machine that only serves."""


@dataclass(frozen=True)
class State:
    """State of one stage's artefact, and why."""

    stage: str
    status: Status
    why: str = ""
    root: str = ""
    """The stage whose own change makes this one stale."""


def states(workspace: Workspace, partition: Partition, *, refresh: bool = False) -> dict[str, State]:
    """Return the state of every stage of a partition and of the dataset's stages that it reads.

    A stage is out of date if its settings, its code or the content of an input changed since it was made, or if a
    stage that it reads is out of date. With ``refresh``, or after one, an encoder that is older than its inputs counts
    as kept.
    """
    recipe = partition.place[1]
    found: dict[str, State] = {}
    stages = of_scope("dataset") + (of_scope("experiment") if recipe is not None else [])
    keep = refresh or (recipe is not None and _made(workspace, "classifier", partition).refreshed)
    for stage in (stage for stage in stages if stage.versioned):
        own = partition if stage.scope == "experiment" else partition.dataset
        found[stage.name] = _state(workspace, stage, own, found, keep=keep)
    return found


def _made(workspace: Workspace, stage: str, partition: Partition) -> Made:
    return artifacts.read_made(workspace.folder(stage, *partition.place))


def _state(workspace: Workspace, stage: Stage, partition: Partition, above: dict[str, State], *, keep: bool) -> State:
    folder = workspace.folder(stage.name, *partition.place)
    try:
        artifacts.check_sizes(folder, artifacts.read_manifest(folder, stage.name))
    except MissingError:
        return State(stage.name, Status.MISSING)
    except CorruptError as error:
        return State(stage.name, Status.DAMAGED, error.found, stage.name)
    made = _made(workspace, stage.name, partition)
    try:
        now = depends(workspace, stage, partition)
    except (MissingError, CorruptError) as error:
        return State(stage.name, Status.UNKNOWN, error.found)
    for dep in (above[dep] for dep in inputs(stage, partition) if dep in above):
        if dep.status is Status.STALE:
            return State(stage.name, Status.STALE, f"{dep.stage} is out of date", dep.root)
    if made.fingerprint == fingerprint(now):
        return State(stage.name, Status.FRESH)
    if made.refreshed and made.fingerprint == fingerprint(now, refresh=True):
        return State(stage.name, Status.KEPT, "trained on older data")
    if made.fingerprint == fingerprint(now, extended=True):
        return State(stage.name, Status.KEPT, "labels were added without a rebuild; a refresh rebuilds it")
    changed = differing(dict(made.depends), now)
    if keep and stage.name == "encoder" and only_inputs(changed):
        return State(stage.name, Status.KEPT, f"trained on older data: {' and '.join(changed)} changed")
    return State(stage.name, Status.STALE, f"{' and '.join(changed) or 'its record'} changed", stage.name)


def usable(workspace: Workspace, partition: Partition, stage: str) -> bool:
    """Return True if there is an artefact of a stage that comparisons may read: neither missing nor out of date."""
    return states(workspace, partition)[stage].status not in (Status.STALE, Status.MISSING, Status.DAMAGED)


def order(stages: dict[str, State]) -> list[State]:
    """Return states in the order of the pipeline."""
    return [stages[name] for name in STAGES if name in stages]
