"""The demo: runs the whole pipeline through Dagster and prints the results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import click
import dagster as dg

from assets.cards import POOL
from assets.checks import GATE
from assets.dagster_internals import PARTITION, holders, was_interrupted
from assets.partitions import experiment_key
from assets.processes import own_tags
from pipelines.definitions import build
from pipelines.instance import ready
from pipelines.jobs import compare, prepare, retrain
from pipelines.launcher import end_lost_runs
from xc_core.chain.workspace import Workspace
from xc_core.cli.tables import metrics_table
from xc_core.errors import RefusedError
from xc_core.metrics.evaluation import Evaluation
from xc_core.visible import counted, cut, printable

_BUNDLED: Final = "wordnet-mini"
"""The dataset that is part of this repository."""


def run(workspace: Workspace, dataset: str, recipe: str) -> None:
    """Materialise prepare, retrain and compare in this process; print metrics and examples."""
    start = time.monotonic()
    definitions = build(workspace)
    with ready(workspace) as instance:
        _make_room(instance)
        metadata: dict[str, Mapping[str, dg.MetadataValue[Any]]] = {}
        for job, key in ((prepare, dataset), (retrain, experiment_key(dataset, recipe)), (compare, dataset)):
            metadata |= _materialise(definitions, instance, job.name, key)
    seconds = time.monotonic() - start
    _show(workspace.open(Evaluation, dataset, recipe), f"{dataset} / {recipe}")
    released = metadata["model"]
    champion = f"models:/xc-{dataset}@champion"
    click.echo(f"\ndone in {seconds:.0f} s; {champion}: {released['gate'].value}")
    recipe_option = "" if released["champion"].value else f" --recipe {recipe}"
    text = "a small dog with long hair" if dataset == _BUNDLED else "some text"
    click.echo(f'ask it          xc predict --dataset {dataset}{recipe_option} "{text}"')
    click.echo("see it          xc ui    (Dagster on http://127.0.0.1:3000, MLflow on http://127.0.0.1:5000)")
    click.echo(f"train in full   xc train --dataset {dataset} --recipe {recipe}")


def _make_room(instance: dg.DagsterInstance) -> None:
    """End runs whose process was killed, an earlier demo for instance, and say which run the demo has to wait for."""
    for run_id in end_lost_runs(instance):
        click.echo(f"run {run_id[:8]} was killed; it is marked as failed now")
    for run_id in sorted(holders(instance, POOL)):
        run = instance.get_run_by_id(run_id)
        title = f"{run.job_name} of {run.tags.get(PARTITION, '-')}" if run else "a run"
        click.echo(f"run {run_id[:8]} ({title}) is training; the demo waits for its end before it trains")


def _show(evaluation: Evaluation, title: str) -> None:
    """Print the metrics and some test texts with their labels."""
    documents = evaluation.report["documents"]
    click.echo("\n" + metrics_table(evaluation, f"{title}: {counted(documents, 'test document')}, percent"))
    click.echo("\nTest texts, predicted labels (+ is right), true labels")
    for example in [*evaluation.examples[:3], *evaluation.examples[-2:]]:
        predicted = ", ".join(f"{label['label']}{' +' if label['true'] else ''}" for label in example["predicted"])
        text, true = cut(example["text"], 100), ", ".join(example["true"])
        click.echo(printable(f"\n  {text}\n    predicted  {predicted}\n    true       {true}"))


def _materialise(
    definitions: dg.Definitions, instance: dg.DagsterInstance, job: str, key: Any
) -> dict[str, Mapping[str, dg.MetadataValue[Any]]]:
    """Run one job and return the metadata of each asset; raise RefusedError if a check or step fails."""
    click.echo(f"\n== {job} {key}")
    result = definitions.resolve_job_def(job).execute_in_process(
        instance=instance,
        partition_key=key,
        raise_on_error=False,
        tags=own_tags(),
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )
    if any(map(was_interrupted, result.all_events)):
        raise KeyboardInterrupt
    # what the gate refuses is still a model to look at, only not the champion
    failed = [e for e in result.get_asset_check_evaluations() if not e.passed and e.check_name != GATE.name]
    if failed:
        raise RefusedError(
            f"failed checks: {', '.join(e.check_name for e in failed)}",
            expected="all passed",
            do="look at the run in xc ui",
        )
    if not result.success:
        steps = [str(event.step_key) for event in result.all_events if event.is_step_failure]
        raise RefusedError(
            f"failed steps: {', '.join(steps)} (see their messages above)",
            expected="all to succeed",
            do="fix what they report; the whole run is in xc ui",
        )
    events = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
    return {event.asset_key.to_user_string(): event.metadata for event in events}
