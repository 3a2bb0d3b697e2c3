"""What MLflow holds of a dataset, counted in words: what ``xc delete`` takes away there, and what it leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from assets.database import unmade
from assets.mlflow_errors import if_there
from assets.pages import paged
from assets.release.aliases import CHAMPION
from assets.release.client import client_of
from assets.release.versions import model_name
from assets.settings import local_folder, mlflow_settings
from assets.waiting import without_retries
from xc_core.chain import Workspace
from xc_core.errors import XCError, bare
from xc_core.lifecycle.delete import size_of
from xc_core.visible import counted, listed

_PAGE: Final = 1000
"""Runs per request."""


@dataclass(frozen=True)
class Registered:
    """A version with its logged model, None if that was deleted, and the address of its files."""

    version: Any
    model: Any | None
    place: str
    """Empty if the files are not those of a logged model."""


def kept_text(workspace: Workspace, dataset: str, recipes: Sequence[str]) -> str:
    """Return what MLflow keeps of the experiments with these recipes or, if none is named, of the dataset.

    Empty if MLflow has never been used here. If it does not answer, the text says so: no other place needs it.
    """
    settings = mlflow_settings(workspace.root)
    if unmade(settings.registry):
        return ""
    name, place = model_name(dataset), f"MLflow at {settings.shown}"
    try:
        with without_retries(), client_of(workspace, reads=True, logs=False) as client:
            found = client.search_model_versions(f"name = '{name}'")
            aliases = client.get_registered_model(name).aliases if found else {}
            numbers = sorted(int(version.version) for version in found if _is_of(version.tags.get("recipe"), recipes))
            runs = sum(_is_of(run.data.tags.get("xc.recipe"), recipes) for run in _runs(client, dataset))
    except XCError as error:
        return f"what stays in MLflow could not be counted: {bare(error.found, 200)}"
    champion = int(aliases.get(CHAMPION, 0))
    which = f" ({listed(list(map(str, numbers)))}{f'; {champion} is the champion' * (champion in numbers)})"
    versions = f"{counted(len(numbers), 'version')}{which * bool(numbers)} of the registered model {name}"
    return f"stays in {place}: {versions}, {counted(runs, 'run')}"


def lost_text(client: Any, place: str, deleted: Sequence[Registered], others: Sequence[Any]) -> str:
    """Return what is deleted with registered versions in the MLflow at ``place``; empty if there is nothing else.

    What one of the ``others``, which stay, needs too is not deleted. Without others the registered model is deleted.
    """
    sources, used = {other.source for other in others}, {other.run_id for other in others}
    places = {one.place for one in deleted if one.place and one.version.source not in sources}
    folders = [folder for folder in map(local_folder, places) if folder is not None and size_of(folder)]  # not gone
    packed = folders + [place for place in places if local_folder(place) is None]
    size = f" ({sum(map(size_of, folders)) / 1e6:,.1f} MB)" if folders else ""
    runs = sum(_is_active(client, run) for run in {one.version.run_id for one in deleted} - used)
    parts = [f"{counted(len(packed), 'packed model')}{size}"] if packed else []
    parts += [counted(runs, "run")] if runs else []
    if deleted and not others:
        parts.append(f"the registered model {deleted[0].version.name}, which has no other version")
    return f"with {'it' if len(deleted) == 1 else 'them'}, in MLflow at {place}: {', '.join(parts)}" if parts else ""


def _is_of(recipe: str | None, recipes: Sequence[str]) -> bool:
    return not recipes or recipe in recipes


def _runs(client: Any, dataset: str) -> Iterator[Any]:
    """Yield the runs of a dataset that are not deleted."""
    if experiments := _experiments_of(client, dataset):
        yield from paged(client.search_runs, experiments, max_results=_PAGE)


def _experiments_of(client: Any, dataset: str) -> list[str]:
    """Return the ids of the experiments of a dataset that are not deleted, those of a moved project included."""
    name = model_name(dataset)
    title = re.compile(rf"{re.escape(name)}( \(\d+\))?")
    found = paged(client.search_experiments, filter_string=f"name LIKE '{name}%'")
    return [str(experiment.experiment_id) for experiment in found if title.fullmatch(experiment.name)]


def _is_active(client: Any, run: str | None) -> bool:
    """Return True for a run that is there and not deleted."""
    stage = ""
    with if_there():
        stage = client.get_run(run).info.lifecycle_stage if run else ""
    return stage == "active"
