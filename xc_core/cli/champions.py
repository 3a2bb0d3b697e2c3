"""Which model a command asks: the champion of a dataset, the packed model of a recipe, or that in a folder."""

from __future__ import annotations

from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xc_core.chain import Workspace
from xc_core.errors import MissingError, UsageError, XCError
from xc_core.manifests import MANIFEST

if TYPE_CHECKING:
    from xc_core.infer.champion import Champion, Source


def source_of(dataset: str | None, recipe: str | None, bundle: Path | None) -> Source:
    """Return a function that finds the model to ask now.

    Raises UsageError unless exactly one is named, MissingError for a recipe without a packed model.
    """
    from xc_core.infer.champion import in_folder

    if bundle is not None and (dataset or recipe):
        raise UsageError("--bundle with --dataset or --recipe", expected="one of them", do="drop the other")
    if bundle is not None:
        return partial(_given, bundle)
    if dataset is None:
        raise UsageError("neither --dataset nor --bundle", expected="one of them", do="name the dataset")
    workspace = Workspace.find()
    if recipe is not None:
        return partial(in_folder, _packed(workspace, dataset, recipe))
    workspace.params.dataset(dataset)  # raises the error of an unknown name
    return partial(_champion, workspace, dataset)


def _given(bundle: Path) -> Champion:
    """Return the model in a folder that the user names; the advice for another folder is to name the right one."""
    from xc_core.infer.champion import in_folder

    try:
        return in_folder(bundle)
    except MissingError as error:
        inside = bundle / "model"
        folder = inside if inside.is_dir() else "data/DATASET/RECIPE/model, or a copy of such a folder"
        expected = f"the folder of a packed model, which has a {MANIFEST}"
        raise MissingError(error.found, expected=expected, do=f"pass --bundle {folder}") from error


def _champion(workspace: Workspace, dataset: str) -> Champion:
    for entry in metadata.entry_points(group="xc.champions"):
        champion: Champion | None = entry.load()(workspace, dataset)
        if champion is not None:
            return champion
    raise MissingError(
        f"no champion of {dataset}",
        expected=f"a registered model xc-{dataset} with the alias champion",
        do=f"name a trained recipe with --recipe, or release one: xc promote --dataset {dataset} --recipe NAME",
    )


def _packed(workspace: Workspace, dataset: str, recipe: str) -> Path:
    """Return the folder of a recipe's packed model; note one that is out of date."""
    from xc_core.chain.status import Status, packed_state, packing_command

    state = packed_state(workspace, dataset, recipe)
    if state.status is Status.STALE:
        rebuild = packing_command(workspace, state, dataset, recipe)
        click.echo(
            f"note: this model is out of date ({state.why} since it was packed). Rebuild it: {rebuild}", err=True
        )
    return workspace.folder("model", dataset, recipe)


def champion_recipe(workspace: Workspace, dataset: str) -> str | None:
    """Return the recipe of the champion, empty if there is no champion, None if nobody can tell."""
    from xc_core.infer.bundle import ModelFacts

    try:
        champion = _champion(workspace, dataset)
    except MissingError:
        return ""
    except XCError:
        return None
    try:
        return champion.recipe or ModelFacts.read(champion.fetch()).recipe
    except (XCError, OSError, ValueError, LookupError, TypeError):  # files that are gone or damaged
        return None
