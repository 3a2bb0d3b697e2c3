"""``xc drift``: whether new data ask for a refresh or a retraining of a model, and why."""

from __future__ import annotations

from dataclasses import asdict

import click

from xc_core import canonical
from xc_core.chain import Workspace
from xc_core.chain.names import first_command
from xc_core.cli.options import dataset_option, device_option
from xc_core.errors import MissingError


@click.command("drift", short_help="Check whether new data require a refresh or a retraining.")
@dataset_option
@click.option("--recipe", default=None, help="Name of the recipe; by default all of the dataset.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per recipe, with all figures.")
@device_option
def command(dataset: str, recipe: str | None, as_json: bool) -> None:
    """Measure how far the data have moved away from a model, and apply the rule of docs/runbook.md.

    The answer is nothing, refresh or retrain, with its reasons; xc status shows the last one. The command starts
    nothing; Dagster's schedule drift_DATASET does.
    """
    workspace = Workspace.find()
    workspace.params.dataset(dataset)  # reports what is wrong with a name, before torch is imported
    recipes = workspace.params.recipes(dataset) if recipe is None else [recipe]
    if not recipes:
        raise MissingError(
            f"no experiment of {dataset} in params.yaml",
            expected="a model that the data may have moved away from",
            do=first_command(dataset),
        )
    from xc_core.lifecycle.drift_figures import judged

    for name in recipes:
        record = judged(workspace, dataset, name)
        shown = {"dataset": dataset, "recipe": name, **asdict(record)}
        click.echo(canonical.line(shown) if as_json else f"{dataset} / {name}: {record.line}")
