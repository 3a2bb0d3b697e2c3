"""Shows studies of ``xc tune`` in Dagster: the asset ``study``, a partition per study, reported by a sensor.

Trials run in the command, not in Dagster; each new state of a study is a materialisation with its best trials.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import dagster as dg

from assets.metadata import short
from assets.stages import OWNERS
from xc_core.chain.workspace import Workspace
from xc_core.errors import XCError
from xc_core.tune.record import StudyRecord, record_file, studies
from xc_core.tune.report import command, states, table

STUDIES: Final = dg.DynamicPartitionsDefinition(name="study")
ASSET: Final = dg.AssetSpec(
    "study",
    partitions_def=STUDIES,
    group_name="tuning",
    kinds={"optuna"},
    owners=OWNERS,
    description="Studies of `xc tune`: settings of a recipe, judged on validation documents. Shown here, run by `xc`.",
)


def mark(folder: Path) -> int | None:
    """Return a number that changes with the record of the study in ``folder``; None if the study was deleted."""
    with suppress(FileNotFoundError):
        return record_file(folder).stat().st_mtime_ns
    return None


def changed(workspace: Workspace, previous: Mapping[str, int]) -> tuple[list[StudyRecord], str]:
    """Return the studies whose record changed, given what the last cursor says of each, and the new cursor."""
    marks = {str(folder.relative_to(workspace.root)): mark(folder) for folder in studies(workspace)}
    current = {name: mtime for name, mtime in marks.items() if mtime is not None}
    folders = [workspace.root / name for name, mtime in current.items() if previous.get(name) != mtime]
    return [record for folder in folders if (record := _read_if_possible(folder)) is not None], json.dumps(current)


def _read_if_possible(folder: Path) -> StudyRecord | None:
    """Return the record of a study, None for one that is damaged, of another version or not readable."""
    try:
        return StudyRecord.read(folder)
    except (XCError, OSError):
        return None


def key(record: StudyRecord) -> str:
    """Return the partition of a study."""
    return f"{record.dataset}/{record.name}"


def event(record: StudyRecord) -> dg.AssetMaterialization:
    """Return the event that shows the present state of a study."""
    return dg.AssetMaterialization("study", partition=key(record), metadata=_metadata(record))


def _metadata(record: StudyRecord) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "state": record.state,
        "recipe": str(record.asked["recipe"]),
        "objective": record.metric,
        "trials": ", ".join(f"{number} {state}" for state, number in states(record).items()) or "none",
        "seconds": round(record.seconds, 1),
        "space": dg.MetadataValue.json(dict(record.asked["space"])),
        "changes": dg.MetadataValue.json(dict(record.asked["changes"])),
    }
    best = record.best
    if best is None or best.value is None:
        return shown
    shown |= {"best": short(best.value), **{name: short(value) for name, value in best.figures.items()}}
    shown |= {"best trials": dg.MetadataValue.md(table(record))}
    return shown | ({} if record.winner is None else {"train it": command(record, record.winner)})
