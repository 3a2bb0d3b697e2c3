"""The asset ``data_drift``: how far the data have moved away from each model, and what the rule asks for."""

from dataclasses import asdict
from typing import Any

import dagster as dg

from assets.metadata import short
from assets.partitions import EXPERIMENTS, split_key
from assets.processes import StageProcesses
from assets.resources import Project
from assets.stages import OWNERS, call
from xc_core.lifecycle.drift import Record, read_record


@dg.asset(
    name="data_drift",
    deps=["corpus", "model"],
    partitions_def=EXPERIMENTS,
    group_name="release",
    kinds={"numpy"},
    owners=OWNERS,
    description="Says whether new data ask for a refresh or a retraining: labels that the model does not know, drift "
    "of the documents' vectors, recall on new documents. The rule is in docs/runbook.md.",
)
def data_drift(context: dg.AssetExecutionContext, project: Project, pipes: StageProcesses) -> dg.MaterializeResult[Any]:
    """Run ``xc drift`` in a process of its own, and show what it said."""
    dataset, recipe = split_key(context.partition_key)
    assert recipe is not None
    call(context, pipes, project, ["drift", "--dataset", dataset, "--recipe", recipe])
    record = read_record(project.workspace, dataset, recipe)
    if record is None or not record.holds(project.workspace, dataset, recipe):
        raise dg.Failure("`xc drift` left no record")
    return dg.MaterializeResult(metadata=metadata(record))


def metadata(record: Record) -> dict[str, Any]:
    """Return the answer, its reasons and all figures; one that was not measured is left out."""
    figures = {} if record.figures is None else asdict(record.figures)
    shown = {name: short(value) for name, value in figures.items() if value is not None}
    return {"answer": record.verdict.answer.value, "reasons": "; ".join(record.verdict.reasons), **shown}
