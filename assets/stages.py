"""Every stage as a Dagster asset: runs ``xc run STAGE`` in its own process, records it in DVC, logs it to MLflow."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import dagster as dg

from assets import inbox, links, staleness
from assets.cards import POOL
from assets.checks import GATE
from assets.dagster_internals import CancelledError
from assets.metadata import Shown, link, plots, summary
from assets.partitions import partitions_of, split_key
from assets.processes import ProcessFailedError, StageProcesses
from assets.release.model import release
from assets.resources import Dvc, Project, Tracking
from assets.shown import SHOWN
from assets.tracking import DataVersion, Logged, StageRun, curves, flat, log_stage
from xc_core.artifacts import Made, read_made
from xc_core.chain.costs import read_costs
from xc_core.chain.registry import STAGES, Stage
from xc_core.chain.reports import write_report
from xc_core.chain.workspace import working
from xc_core.environment import number
from xc_core.errors import UnavailableError
from xc_core.git import project_checkout
from xc_core.manifests import read_manifest

warnings.filterwarnings("ignore", category=dg.PreviewWarning, message=".*expected_writer_count")
# Dagster 1.13 warns of a preview inside its own Pipes client; nothing here calls it.

OWNERS: Final = ["team:xc"]
MODE_TAG: Final = "xc/mode"
"""Run tag: "refresh" for a job that adds new data without training."""
_RETRIES: Final = 1
_CANCELLED: Final = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
_STOPPED: Final = "The run was cancelled, and the process of this stage was stopped."
_UNRECORDED: Final = (
    "The run was cancelled while the result of this stage was recorded in DVC and MLflow. The artefact is complete; "
    "another run of the stage records it."
)
After = Callable[[dg.AssetExecutionContext, Project, Tracking], tuple[Mapping[str, Any], Sequence[dg.AssetCheckResult]]]
AFTER: Final[dict[str, tuple[After, dg.AssetCheckSpec]]] = {"model": (release, GATE)}
"""What an asset does after its stage, by stage, and the check that it decides; it returns metadata and the result."""


def asset_of(stage: Stage) -> dg.AssetsDefinition:
    """Return the asset of a stage."""

    @dg.asset(
        name=stage.name,
        deps=list(stage.deps),
        partitions_def=partitions_of(stage),
        group_name=stage.group,
        kinds=set(stage.kinds),
        owners=OWNERS,
        description=stage.does,
        code_version=stage.code_version,
        pool=POOL if stage.on_gpu else None,
        check_specs=_check_specs(stage),
    )
    def _stage(
        context: dg.AssetExecutionContext,
        project: Project,
        pipes: StageProcesses,
        dvc: Dvc,
        tracking: Tracking,
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster refuses MaterializeResult[Any] with checks
        with _retrying(context, _STOPPED):
            dvc.check_git(*split_key(context.partition_key), [stage.name])
            _run(context, pipes, project, stage)
        # rows that are removed meanwhile would come to MLflow after xc forget has named it as a place to clear
        with _retrying(context, _UNRECORDED), working(project.workspace, split_key(context.partition_key)[0]):
            return _record(context, project, stage, dvc, tracking)

    return _stage


def _record(
    context: dg.AssetExecutionContext, project: Project, stage: Stage, dvc: Dvc, tracking: Tracking
) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Record the artefact of a stage in DVC and MLflow; return what Dagster shows of it."""
    dataset, recipe = split_key(context.partition_key)
    folder = project.workspace.folder(stage.name, dataset, recipe)
    if stage.needs_source:
        dvc.track_source(project.workspace.raw(dataset))
    digest, made = read_manifest(folder).digest(), read_made(folder)
    md5 = dvc.record(stage.name, dataset, recipe)
    shown = summary(folder, made, SHOWN.get(stage.name))
    report = write_report(project.workspace, dataset, recipe) if stage.name == "evaluation" and recipe else None
    shown.files += [report] if report else []
    run = _stage_run(context, project, stage, made, shown)
    run.tags.update({"xc.artefact": digest, "xc.dvc_md5": md5 or digest})
    with tracking.client() as client:
        logged = log_stage(client, tracking.artifacts, run, partial(_has_ended, context.instance))
    extra, decided_checks = AFTER[stage.name][0](context, project, tracking) if stage.name in AFTER else ({}, [])
    metadata = {**extra, **shown.first, **_pages(logged, shown, report), **shown.metadata}
    metadata |= {"path": dg.MetadataValue.path(str(folder)), "dvc_md5": md5 or digest}
    checks = [*([staleness.fresh()] if stage.versioned else []), *decided_checks]
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(digest), check_results=checks)


def _has_ended(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return True for a run that has ended; one that this instance does not know may be another instance's."""
    run = instance.get_run_by_id(run_id)
    return run is not None and run.is_finished


def _pages(logged: Logged, shown: Shown, report: Path | None) -> dict[str, dg.MetadataValue[Any]]:
    """Return the plots of a stage, and links to its report and to its MLflow run."""
    pages = plots(shown.files, partial(links.mlflow_file, logged.run))
    if report is not None:
        address = links.mlflow_shown(logged.experiment, logged.run, report.name)
        pages |= {"report": link(address, str(report)), "report_file": dg.MetadataValue.path(str(report))}
    return {**pages, "mlflow_run": link(links.mlflow_run(logged.experiment, logged.run), logged.run)}


def retry_seconds() -> float:
    """Return the seconds between a lost process and its retry: XC_RETRY_SECONDS, 30 by default; raises ConfigError."""
    return number("XC_RETRY_SECONDS", 30.0)


@contextmanager
def _retrying(context: dg.AssetExecutionContext, cancelled: str) -> Iterator[None]:
    """Ask Dagster for one retry if the process was lost or a service does not answer, but never in a cancelled run.

    A retry policy of the asset would retry a cancelled run too: Dagster applies it to interrupts. The interrupt of a
    cancelled run is shown as the sentence ``cancelled``, without the stack of Dagster's code.
    """
    try:
        yield
    except dg.DagsterExecutionInterruptedError as interrupt:
        if _is_cancelled(context):
            raise CancelledError(cancelled) from interrupt
        raise
    except (dg.Failure, UnavailableError) as error:
        if isinstance(error, dg.Failure) and not error.allow_retries:
            raise
        if _is_cancelled(context):
            raise dg.Failure(str(error), allow_retries=False) from error
        raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=retry_seconds()) from error


def _is_cancelled(context: dg.AssetExecutionContext) -> bool:
    """Return True if somebody cancelled the run of a stage, or deleted it."""
    run = context.instance.get_run_by_id(context.run_id)
    return run is None or run.status in _CANCELLED


def _check_specs(stage: Stage) -> list[dg.AssetCheckSpec]:
    """Return the checks whose results the asset itself returns."""
    specs = [staleness.spec(stage)] if stage.versioned else []
    return [*specs, AFTER[stage.name][1]] if stage.name in AFTER else specs


def _run(context: dg.AssetExecutionContext, pipes: StageProcesses, project: Project, stage: Stage) -> None:
    """Run ``xc run STAGE`` in a subprocess; if the run was started for an inbox, ingest that first."""
    dataset, recipe = split_key(context.partition_key)
    state = context.run.tags.get(inbox.INBOX_TAG) if stage.needs_source else None
    if state and inbox.waits(project.workspace, dataset, state):
        keep = inbox.archives(project.workspace, dataset)  # read first: params.yaml may break during a long ingest
        call(context, pipes, project, inbox.ingest_arguments(project.workspace, dataset))
        inbox.archive(project.workspace, dataset, state, keep)
    arguments = ["run", stage.name, "--dataset", dataset]
    if recipe and stage.scope == "experiment":
        arguments += ["--recipe", recipe]
        arguments += ["--refresh"] if context.run.tags.get(MODE_TAG) == "refresh" else []
    call(context, pipes, project, arguments)


def call(context: dg.AssetExecutionContext, pipes: StageProcesses, project: Project, arguments: list[str]) -> None:
    """Run ``xc`` with ``arguments``.

    Raises Failure if it fails. A failure with a message is not retried, nor is a process that somebody stopped; a lost
    process is.
    """
    try:
        pipes.run(context=context, arguments=arguments, root=project.root)
    except ProcessFailedError as error:
        message = f"`xc {' '.join(arguments)}` {error}" + (f": {error.why}" if error.why else "; the log says why")
        raise dg.Failure(message, allow_retries=error.lost) from error


def _stage_run(context: dg.AssetExecutionContext, project: Project, stage: Stage, made: Made, shown: Shown) -> StageRun:
    """Return what is logged to MLflow: parameters, metrics, costs, curves, plots, and the commit of the code."""
    dataset, recipe = split_key(context.partition_key)
    costs, code = read_costs(project.workspace, stage.name, dataset, recipe), project_checkout(project.workspace.root)
    return StageRun(
        stage=stage.name,
        dataset=dataset,
        recipe=recipe,
        dagster_run=context.run_id,
        tags={"xc.git": code.commit, "xc.git_changed": code.changes},
        params=flat(made.settings),
        metrics={**shown.metrics, **{f"cost_{key}": value for key, value in costs.items()}},
        series=curves(project.workspace.folder(stage.name, dataset, recipe)),
        files=shown.files,
        data=DataVersion.of(project.workspace, dataset),
    )


ASSETS: Final = [asset_of(stage) for stage in STAGES.values()]
"""The assets of all stages."""
