"""``xc run``, ``xc evaluate``, ``xc leaderboard``: stages from the command line."""

from __future__ import annotations

import click

from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.chain.undeclared import undeclared_recipes
from xc_core.cli.options import Names, dataset_option, device_option, force_option, recipe_option
from xc_core.cli.tables import show_leaderboard, show_metrics
from xc_core.distributed import World
from xc_core.progress import report
from xc_core.root import FILE


@click.command(short_help="Run one stage of the pipeline.")
@click.argument("stage", type=Names("stage", list(STAGES)))
@dataset_option
@click.option("--recipe", default=None, help="Name of the recipe, for stages after tokens.")
@force_option
@click.option(
    "--refresh",
    is_flag=True,
    help="Keep what was trained although the data has changed: the encoder, and the classifier's rows; the rows of new "
    "labels are predicted from their texts.",
)
@device_option
def run(stage: str, dataset: str, recipe: str | None, force: bool, refresh: bool) -> None:
    """Run STAGE with the settings of params.yaml. This is the only writer of artefacts: Dagster and DVC call it too.

    A stage that is up to date does nothing. A stage whose inputs are out of date is refused (exit code 76). A training
    that was killed resumes from its last checkpoint. A second run of the same stage and partition is refused (75).
    """
    ran = run_stage(Workspace.find(), stage, dataset, recipe, force=force, refresh=refresh)
    if World.from_environment().first:
        click.echo(f"{stage}: {'up to date' if ran.skipped else f'done in {ran.seconds:.1f} s'}, {ran.folder}")


@click.command(short_help="Evaluate a trained recipe on test documents.")
@dataset_option
@recipe_option
@force_option
@device_option
def evaluate(dataset: str, recipe: str, force: bool) -> None:
    """Run the stage evaluation and print its table: each score alone, their sum, the fusion."""
    workspace = Workspace.find()
    run_stage(workspace, "evaluation", dataset, recipe, force=force)
    show_metrics(workspace, dataset, recipe)


@click.command(short_help="Compare all evaluated recipes of a dataset.")
@dataset_option
@force_option
def leaderboard(dataset: str, force: bool) -> None:
    """Run the stage leaderboard and print its table (percent; p: paired randomisation test of P@1 against the best).

    The folder data/DATASET/leaderboard has it as Markdown, Parquet and a plot.
    """
    workspace = Workspace.find()
    for recipe in undeclared_recipes(workspace, dataset):
        report(f"note: {recipe} is left out, which {FILE} lacks; to get it back: xc status --dataset {dataset}")
    run_stage(workspace, "leaderboard", dataset, force=force)
    show_leaderboard(workspace, dataset)
