"""``xc report``: one HTML page on an evaluated model."""

from __future__ import annotations

from pathlib import Path

import click

from xc_core.chain import Workspace
from xc_core.chain.reports import stale_note, write_report
from xc_core.cli.options import dataset_option, recipe_option


@click.command("report", short_help="Write an HTML page on an evaluated model.")
@dataset_option
@recipe_option
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  [default: in .xc/reports]"
)
def report_on(dataset: str, recipe: str, out: Path | None) -> None:
    """Write metrics with intervals, plots, confusions, examples with the scores behind them, costs and a data card.

    The page needs no network and runs no script. Its path is printed. Dagster writes the same page after each
    evaluation, and keeps it with the run in MLflow.
    """
    workspace = Workspace.find()
    workspace.params.experiment(dataset, recipe)  # raises the error of an unknown name
    click.echo(write_report(workspace, dataset, recipe, out))
    if note := stale_note(workspace, dataset, recipe):
        click.echo(note, err=True)
