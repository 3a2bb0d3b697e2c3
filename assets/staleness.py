"""Shows in Dagster which artefacts are out of date: the check ``up_to_date`` of each asset repeats ``xc status``.

Dagster's own staleness does not see changed settings, so ``xc`` decides.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dagster as dg

from assets.dagster_internals import LAUNCHED_BY, MAX_RETRIES, PARTITION, CancelledError
from assets.partitions import experiment_key, partitions_of
from assets.processes import STOPPED, own_tags
from xc_core.chain.registry import STAGES, Stage
from xc_core.chain.status import Status
from xc_core.chain.workspace import Workspace
from xc_core.errors import UnavailableError
from xc_core.manifests import MANIFEST
from xc_core.plugins import plugin_files
from xc_core.pretrained import model_files, tokenizer_files

CHECK: Final = "up_to_date"
SENSOR: Final = "staleness"
_SECONDS: Final = 60.0
"""Limit of the time that ``xc status`` takes; it hashes new source files."""


def spec(stage: Stage) -> dg.AssetCheckSpec:
    """Return the declaration of the check for a stage's asset."""
    return dg.AssetCheckSpec(
        CHECK,
        asset=stage.name,
        partitions_def=partitions_of(stage),
        description="The settings, code and inputs have not changed since the artefact was made (xc status).",
    )


def fresh() -> dg.AssetCheckResult:
    """Return the result of the check for an artefact that a run has just made or found up to date."""
    return dg.AssetCheckResult(
        passed=True, check_name=CHECK, severity=dg.AssetCheckSeverity.WARN, metadata={"status": Status.FRESH.value}
    )


@dataclass(frozen=True)
class PartitionState:
    """The state of an artefact of one partition, as ``xc status`` prints it."""

    stage: str
    partition: str
    status: Status
    why: str

    @property
    def key(self) -> str:
        """The stage and partition, as one name."""
        return f"{self.stage}@{self.partition}"

    @property
    def text(self) -> str:
        """The status and its reason."""
        return f"{self.status}: {self.why}"

    @property
    def missing(self) -> bool:
        """True if there is no such artefact."""
        return self.status is Status.MISSING

    @property
    def evaluation(self) -> dg.AssetCheckEvaluation:
        """The check result that Dagster records."""
        return dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey(self.stage),
            check_name=CHECK,
            passed=self.status.usable,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"status": self.status.value, "why": self.why or "-"},
            blocking=False,
            partition=self.partition,
        )


def partition_states(workspace: Workspace) -> list[PartitionState]:
    """Return the state of every artefact of the project, from ``xc status`` in a subprocess (it imports torch).

    Raises UnavailableError if the command fails or takes too long.
    """
    rows = {(row["stage"], _partition(row)): row for row in map(json.loads, _status_lines(workspace.root).splitlines())}
    return [
        PartitionState(stage, partition, Status(row["status"]), row["why"]) for (stage, partition), row in rows.items()
    ]


def being_recorded(instance: dg.DagsterInstance, states: list[PartitionState]) -> set[str]:
    """Return the keys of up-to-date artefacts that a run has made and not yet recorded, as during the gate of a model.

    The run reports them itself. Dagster shows a report from before the record as one on an earlier artefact: "Not
    Evaluated".
    """
    made = [state for state in states if state.status is Status.FRESH]
    found = set[str]()
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])) if made else ():
        ended = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
        recorded = {event.dagster_event.asset_key for event in ended if event.dagster_event}
        for state in made:
            asset = dg.AssetKey(state.stage)
            planned = not run.asset_selection or asset in run.asset_selection
            if planned and run.tags.get(PARTITION) == state.partition and asset not in recorded:
                found.add(state.key)
    return found


def report(instance: dg.DagsterInstance, states: list[PartitionState]) -> None:
    """Record states as results of the check ``up_to_date``, in one short run of this process.

    Dagster 1.13 can store only one result per partition outside of runs: its table of check results has one row for
    each run and partition. A run whose process is killed is not retried: the sensor's next tick reports the same.
    """

    @dg.op(name="report", out={})
    def _report() -> Iterator[dg.AssetCheckEvaluation]:
        yield from (state.evaluation for state in states)

    @dg.job(name=SENSOR)
    def _job() -> None:
        _report()

    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    tags = {LAUNCHED_BY: SENSOR, MAX_RETRIES: "0", **own_tags()}
    _job.execute_in_process(run_config=quiet, instance=instance, tags=tags)


def _status_lines(root: Path) -> str:
    command = [sys.executable, "-m", "xc_core.cli.main", "status", "--json"]
    environment = {**os.environ, "XC_ROOT": str(root)}
    try:
        ended = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"xc status still running after {_SECONDS:.0f} s",
            expected="an answer within this time",
            do="run xc status by hand once: it stores the hashes of new source files",
        ) from error
    if ended.returncode in STOPPED:
        raise CancelledError("xc status stopped, as the servers probably are")
    if ended.returncode:
        raise UnavailableError(f"xc status failing: {ended.stderr[-400:]}", expected="exit code 0", do="run xc doctor")
    return ended.stdout


def _partition(row: dict[str, Any]) -> str:
    scoped = STAGES[row["stage"]].scope == "experiment"
    return str(experiment_key(row["dataset"], row["recipe"])) if scoped else str(row["dataset"])


def _encoders(content: Mapping[str, Any]) -> list[str]:
    """Return the encoders of params.yaml; every experiment's is among the tokenizers of its dataset."""
    configs = ((entry or {}).get("tokens") or {} for entry in (content.get("datasets") or {}).values())
    return sorted({str(name) for tokens in configs for name in tokens.get("tokenizers") or ()})


def mark(workspace: Workspace) -> str:
    """Return a cheap hash that changes if a file changes that ``xc status`` reads; empty if one is being deleted.

    These are params.yaml, recipes, plug-ins, artefacts, raw files, and local folders of models.
    """
    try:
        entries = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in _watched(workspace)]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]


def _watched(workspace: Workspace) -> list[Path]:
    content = workspace.params.read()
    entries = [*(content.get("datasets") or {}).values(), *(content.get("experiments") or {}).values()]
    sources = {entry["source"] for entry in entries if entry and entry.get("source")}
    paths = [workspace.params.path, *plugin_files(), *(workspace.root / source for source in sorted(sources))]
    paths += [*sorted(workspace.data.glob("*/raw/**/*")), *sorted(workspace.data.glob(f"**/{MANIFEST}"))]
    for name in _encoders(content):
        paths += [path for files in (model_files(name) | tokenizer_files(name)).values() for path in files]
    return [path for path in paths if path.is_file()]
