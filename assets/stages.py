"""Every stage as a Dagster asset: runs ``xc run STAGE`` in its own process, records it in DVC, logs it to MLflow."""

import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import dagster as dg

from assets import inbox, staleness
from assets.checks import GATE
from assets.metadata import Shown, summary
from assets.partitions import DATASETS, EXPERIMENTS, split_key
from assets.release.model import release
from assets.release.origin import project_checkout
from assets.resources import Dvc, Project, Tracking
from assets.shown import SHOWN
from assets.tracking import StageRun, curves, flat, log_stage
from xc_core.artifacts import Made, read_made, read_manifest
from xc_core.chain.registry import STAGES, Stage
from xc_core.chain.runner import read_costs

warnings.filterwarnings("ignore", category=dg.PreviewWarning, message=".*expected_writer_count")
# Dagster 1.13 warns of a preview inside its own Pipes client; nothing here calls it.

OWNERS: Final = ["team:xc"]
MODE_TAG: Final = "xc/mode"
"""Run tag: "refresh" for a job that adds new data without training."""
POOL: Final = "gpu"
"""Pool of the stages that train; dagster.yaml lets one of them run at a time."""
_EXIT_CODE: Final = re.compile(r"process failed with code (-?\d+)")
_EXPLAINED: Final = range(64, 79)
"""Exit codes of errors with a message: the command would fail again in the same way."""
After = Callable[[dg.AssetExecutionContext, Project, Tracking], tuple[Mapping[str, Any], Sequence[dg.AssetCheckResult]]]
AFTER: Final[dict[str, tuple[After, dg.AssetCheckSpec]]] = {"model": (release, GATE)}
"""What an asset does after its stage, by stage, and the check that it decides; it returns metadata and the result."""


def asset_of(stage: Stage) -> dg.AssetsDefinition:
    """Return the asset of a stage."""

    @dg.asset(
        name=stage.name,
        deps=list(stage.deps),
        partitions_def=DATASETS if stage.scope == "dataset" else EXPERIMENTS,
        group_name=stage.group,
        kinds=set(stage.kinds),
        owners=OWNERS,
        description=stage.does,
        code_version=stage.code_version,
        pool=POOL if stage.trains else None,
        retry_policy=dg.RetryPolicy(max_retries=1, delay=30) if stage.trains else None,
        check_specs=_specs(stage),
    )
    def _stage(
        context: dg.AssetExecutionContext,
        project: Project,
        pipes: dg.PipesSubprocessClient,
        dvc: Dvc,
        tracking: Tracking,
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster refuses MaterializeResult[Any] with checks
        dataset, recipe = split_key(context.partition_key)
        _run(context, pipes, project, stage)
        folder = project.workspace.folder(stage.name, dataset, recipe)
        if stage.needs_source:
            dvc.track_source(project.workspace.raw(dataset))
        digest = read_manifest(folder).digest()
        md5 = dvc.record(stage.name, dataset, recipe)
        shown = summary(folder, read_made(folder), SHOWN.get(stage.name))
        run = _stage_run(context, project, stage, read_made(folder), shown)
        run.tags.update({"xc.artefact": digest, "xc.dvc_md5": md5 or digest})
        with tracking.client() as client:
            log_stage(client, tracking.artifacts, run)
        extra, decided = AFTER[stage.name][0](context, project, tracking) if stage.name in AFTER else ({}, [])
        metadata = {**shown.metadata, **extra, "path": dg.MetadataValue.path(str(folder)), "dvc_md5": md5 or digest}
        checks = [*([staleness.fresh()] if stage.versioned else []), *decided]
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(digest), check_results=checks)

    return _stage


def _specs(stage: Stage) -> list[dg.AssetCheckSpec]:
    """Return the checks whose results the asset itself returns."""
    own = [staleness.spec(stage)] if stage.versioned else []
    return [*own, AFTER[stage.name][1]] if stage.name in AFTER else own


def _run(context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient, project: Project, stage: Stage) -> None:
    """Run ``xc run STAGE`` in a subprocess; if the run was started for an inbox, ingest that first."""
    dataset, recipe = split_key(context.partition_key)
    state = context.run.tags.get(inbox.INBOX_TAG) if stage.needs_source else None
    if state:
        inbox.check(project.workspace, dataset, state, time.time())
        _call(context, pipes, project, inbox.ingest_arguments(project.workspace, dataset))
        inbox.archive(project.workspace, dataset, state)
    arguments = ["run", stage.name, "--dataset", dataset]
    if recipe and stage.scope == "experiment":
        arguments += ["--recipe", recipe]
        arguments += ["--refresh"] if context.run.tags.get(MODE_TAG) == "refresh" else []
    _call(context, pipes, project, arguments)


def _call(
    context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient, project: Project, arguments: list[str]
) -> None:
    """Run ``xc`` with ``arguments``.

    Raises Failure if it fails. A failure with a message (exit code 64 to 78) is not retried, a killed process is.
    """
    command = [sys.executable, "-m", "assets.worker", *arguments]
    try:
        pipes.run(command=command, context=context, cwd=project.root, env={"XC_ROOT": project.root})
    except Exception as error:  # Dagster's error for a failed process has no public name
        code = _EXIT_CODE.search(str(error))
        if code is None:
            raise
        message = f"`xc {' '.join(arguments)}` {_ended(int(code[1]))}; the log says why"
        raise dg.Failure(message, allow_retries=int(code[1]) not in _EXPLAINED) from error


def _ended(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"


def _stage_run(context: dg.AssetExecutionContext, project: Project, stage: Stage, made: Made, shown: Shown) -> StageRun:
    """Return what is logged to MLflow: parameters, metrics, costs, curves, plots, and the commit of the code."""
    dataset, recipe = split_key(context.partition_key)
    costs, code = read_costs(project.workspace, stage, dataset, recipe), project_checkout(project.workspace.root)
    return StageRun(
        stage=stage.name,
        dataset=dataset,
        recipe=recipe,
        dagster_run=context.run_id,
        tags={"xc.git": code.commit, "xc.git_changed": ", ".join(code.changed)[:5000] or "nothing"},
        params=flat(made.settings),
        metrics={**shown.metrics, **{f"cost_{key}": value for key, value in costs.items()}},
        series=curves(project.workspace.folder(stage.name, dataset, recipe)),
        files=shown.files,
    )


ASSETS: Final = [asset_of(stage) for stage in STAGES.values()]
"""The assets of all stages."""
