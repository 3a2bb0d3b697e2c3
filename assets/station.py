"""One station as a Dagster asset: run the stage's one writer in a process of its own, record it in DVC, tell MLflow.

Takes: a stage's name, what to show of it.                 Gives: an asset definition.
May import: dagster, assets.*, xc_core (light rooms).      Never: computes; holds an artefact in memory.
"""

import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg

from assets import inbox
from assets.metadata import Shown, summary
from assets.partitions import DATASETS, EXPERIMENTS, split_key
from assets.resources import Dvc, Project, Tracking
from assets.tracking import StageRun, curves, flat, log_stage
from xc_core.artifacts import Manifest, read_manifest
from xc_core.stages.registry import STAGES, Stage
from xc_core.stages.runner import read_costs

warnings.filterwarnings("ignore", category=dg.PreviewWarning, message=".*expected_writer_count")
# Dagster 1.13 warns of a preview inside its own Pipes client; nothing here calls it.

OWNERS = ["team:xc"]
MODE_TAG = "xc/mode"
"""Run tag: "refresh" where a job re-embeds and re-indexes without training."""
POOL = "gpu"


def station(
    name: str,
    *,
    kinds: set[str],
    show: Callable[[Path, Manifest], Shown] | None = None,
    after: Callable[[dg.AssetExecutionContext, Project, Tracking, Manifest], Mapping[str, Any]] | None = None,
) -> dg.AssetsDefinition:
    """Return the asset of the stage ``name``; ``show`` picks metadata of its artefact, ``after`` does a last step."""
    stage = STAGES[name]

    @dg.asset(
        name=name,
        deps=list(stage.deps),
        partitions_def=DATASETS if stage.scope == "dataset" else EXPERIMENTS,
        group_name=stage.group,
        kinds=kinds,
        owners=OWNERS,
        description=stage.does,
        code_version=stage.code_version,
        pool=POOL if stage.trains else None,
        retry_policy=dg.RetryPolicy(max_retries=1, delay=30) if stage.trains else None,
    )
    def _station(
        context: dg.AssetExecutionContext,
        project: Project,
        pipes: dg.PipesSubprocessClient,
        dvc: Dvc,
        tracking: Tracking,
    ) -> dg.MaterializeResult[Any]:
        dataset, recipe = split_key(context.partition_key)
        _run(context, pipes, project, stage)
        folder = project.workspace.folder(name, dataset, recipe)
        manifest = read_manifest(folder)
        if stage.needs_source:
            dvc.track_source(project.workspace.raw(dataset))
        version = dvc.record(name, dataset, recipe) or manifest.digest()
        shown = summary(stage, folder, manifest, show)
        run = _stage_run(context, project, stage, manifest, shown)
        run.tags["xc.dvc_md5"] = version
        with tracking.client() as client:
            log_stage(client, tracking.artifacts, run)
        extra = after(context, project, tracking, manifest) if after else {}
        metadata = {**shown.metadata, **extra, "path": dg.MetadataValue.path(str(folder)), "dvc_md5": version}
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(version))

    return _station


def _run(context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient, project: Project, stage: Stage) -> None:
    """Run ``xc run STAGE`` in a subprocess; its lines reach the event log as they are said."""
    dataset, recipe = split_key(context.partition_key)
    taken = context.run.tags.get(inbox.INBOX_TAG) if stage.needs_source else None
    if taken:
        inbox.check(project.workspace, dataset, taken, time.time())
        _call(context, pipes, project, inbox.ingest_arguments(project.workspace, dataset))
        inbox.put_away(project.workspace, dataset, taken)
    arguments = ["run", stage.name, "--dataset", dataset]
    arguments += ["--recipe", recipe] if recipe and stage.scope == "experiment" else []
    arguments += ["--refresh"] if stage.name == "classifier" and context.run.tags.get(MODE_TAG) == "refresh" else []
    _call(context, pipes, project, arguments)


def _call(
    context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient, project: Project, arguments: list[str]
) -> None:
    """Run ``xc`` with ``arguments``; an error it explains (exit code 64 to 78) is not retried, a lost process is."""
    command = [sys.executable, "-m", "assets.worker", *arguments]
    try:
        pipes.run(command=command, context=context, cwd=project.root, env={"XC_ROOT": project.root})
    except dg.DagsterError as error:
        code = re.search(r"code (\d+)", str(error))
        explained = code is not None and 64 <= int(code[1]) <= 78
        told = f"`xc {' '.join(arguments)}` ended with exit code {code[1] if code else 'unknown'}; the log says why"
        raise dg.Failure(told, allow_retries=not explained) from error


def _stage_run(
    context: dg.AssetExecutionContext, project: Project, stage: Stage, manifest: Manifest, shown: Shown
) -> StageRun:
    """Return what MLflow is told: parameters, metrics, costs, curves, pictures, and tags that lead back to the code."""
    dataset, recipe = split_key(context.partition_key)
    costs = read_costs(project.workspace, stage, dataset, recipe)
    return StageRun(
        stage=stage.name,
        dataset=dataset,
        recipe=recipe,
        dagster_run=context.run_id,
        tags={"xc.git": git_commit(project.root), "xc.artefact": manifest.digest()},
        params=flat(json.loads(json.dumps(manifest.facts.get("config")))),
        metrics={**shown.metrics, **{f"cost_{key}": value for key, value in costs.items()}},
        series=curves(project.workspace.folder(stage.name, dataset, recipe)),
        files=shown.files,
    )


@cache
def git_commit(root: str) -> str:
    """Return the commit of the project's code, with "-dirty" where files differ from it; "none" outside git."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "none"
