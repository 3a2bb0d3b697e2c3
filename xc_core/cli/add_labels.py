"""``xc add-labels``: new labels get scores without training."""

from __future__ import annotations

import time
from pathlib import Path

import click

from xc_core.chain import Workspace
from xc_core.cli.champions import champion_recipe
from xc_core.cli.options import dataset_option, device_option
from xc_core.cli.tables import REFRESH, show_next
from xc_core.visible import counted


@click.command("add-labels", short_help="Add labels to a dataset and its models, without training.")
@click.argument("file", type=click.Path(path_type=Path))
@dataset_option
@click.option("--recipe", default=None, help="Extend the model of this recipe only; by default every model.")
@device_option
def command(file: Path, dataset: str, recipe: str | None) -> None:
    """Add the labels of FILE: Parquet, CSV, TSV or JSON lines with uid and text, or title and content.

    They become a new version of the corpus, and each model gets their vectors, rows and index entries: the vector of
    the text, and the row that a linear map from texts to trained rows predicts. Nothing is trained, and nothing else
    changes. A model that is out of date is left out; if anything is wrong with the labels, nothing changes.
    """
    from xc_core.lifecycle.add_labels import add_labels

    workspace, start = Workspace.find(), time.monotonic()
    added = add_labels(workspace, file, dataset, recipe)
    models = ", ".join(added.recipes) or "no model"
    click.echo(f"{dataset}: {counted(added.labels, 'new label')}, in {models}; {time.monotonic() - start:.1f} s")
    if not added.recipes:
        show_next(workspace, dataset, REFRESH)
    else:
        click.echo(f"next: {_release_advice(workspace, dataset, added.recipes, everywhere=recipe is None)}")


def _release_advice(workspace: Workspace, dataset: str, recipes: list[str], *, everywhere: bool) -> str:
    """Return how the served model comes to know the new labels, which the models of ``recipes`` know.

    ``everywhere`` is True if they were to be added to every model: then one that lacks them cannot be extended.
    """
    served, names = champion_recipe(workspace, dataset), ", ".join(recipes)
    promote = f"xc promote --dataset {dataset} --recipe"
    if served is None:
        return f"{promote} NAME, with the recipe that is served ({names})"
    if not served:
        return f"{promote} {recipes[0] if len(recipes) == 1 else 'NAME'}, if one is to be served ({names})"
    if served in recipes:
        return f"{promote} {served}, so that the served model knows them"
    first = f"xc add-labels FILE --dataset {dataset} --recipe {served}"
    if served not in workspace.params.recipes(dataset):
        first = f"xc train --dataset {dataset} --recipe {served}"
    elif everywhere:
        first = workspace.params.train_command(dataset, served)
    return f"{first}, then {promote} {served}, so that the served model knows them"
