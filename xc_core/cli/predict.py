"""``xc predict``: the labels of a text, from the champion or a named recipe.

Takes: texts.                    Gives: labels with scores.
May import: bundle, stages.      Never: trains.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import click

from xc_core.errors import MissingError, UsageError
from xc_core.stages import Workspace


@click.command(short_help="Ask the model for the labels of a text.")
@click.argument("texts", nargs=-1)
@click.option("--dataset", default=None, help="Name of the dataset; its champion answers.")
@click.option("--recipe", default=None, help="Ask this recipe's packed model instead of the champion.")
@click.option("--bundle", type=click.Path(path_type=Path), default=None, help="Ask the packed model in this folder.")
@click.option("-k", default=5, show_default=True, help="Labels a text.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list a text.")
def predict(
    texts: tuple[str, ...],
    dataset: str | None,
    recipe: str | None,
    bundle: Path | None,
    k: int,
    as_json: bool,
) -> None:
    """Print the K best labels of each text; without TEXTS, of each line of the standard input."""
    from xc_core.bundle import open_bundle

    predictor = open_bundle(bundle or _bundle(dataset, recipe))
    asked = list(texts) or [line.rstrip("\n") for line in sys.stdin]
    if not asked:
        raise UsageError("no text", expected="texts as arguments or lines on the standard input", do="give one")
    for text, found in zip(asked, predictor.predict(asked, k), strict=True):
        if as_json:
            click.echo(json.dumps([asdict(label) for label in found], ensure_ascii=False))
            continue
        click.echo(text)
        for label in found:
            click.echo(f"  {label.score:7.3f}  {label.title}  [{label.uid}]")


def _bundle(dataset: str | None, recipe: str | None) -> Path:
    """Return the folder of the packed model to ask."""
    if dataset is None:
        raise UsageError("neither --dataset nor --bundle", expected="one of them", do="name the dataset")
    workspace = Workspace.find()
    if recipe is not None:
        return workspace.folder("model", dataset, recipe)
    for entry in metadata.entry_points(group="xc.champions"):
        folder: Path | None = entry.load()(workspace, dataset)
        if folder is not None:
            return folder
    raise MissingError(
        f"no champion of {dataset}",
        expected=f"a registered model xc-{dataset} with the alias champion",
        do=f"name a trained recipe with --recipe, or release one: xc promote --dataset {dataset} --recipe NAME",
    )
