"""``xc promote`` and ``xc rollback``: moving the champion by hand; and what ``xc predict`` and ``xc doctor`` ask here.

Takes: names of datasets, recipes, versions.   Gives: moved aliases, a champion's folder, findings.
May import: click, assets.registry, .tracking, xc_core.  Never: mlflow at module level.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from assets.settings import mlflow_settings
from xc_core.artifacts import read_manifest, verify
from xc_core.cli.doctor import Finding
from xc_core.errors import MissingError, MovedError, UsageError
from xc_core.stages import Workspace, outdated


@contextmanager
def _client(workspace: Workspace) -> Iterator[Any]:
    """Yield a client of the project's MLflow; what it refuses in the block is an UnavailableError."""
    from assets.tracking import answering, connect

    settings = mlflow_settings(workspace.root)
    with answering(settings.uri):
        yield connect(settings.uri, settings.lock)


@click.command(short_help="Make a model the champion.")
@click.option("--dataset", required=True, help="Name of the dataset.")
@click.option("--recipe", default=None, help="Register this recipe's packed model (once) and make it champion.")
@click.option("--version", type=int, default=None, help="Make this registered version champion.")
def promote(dataset: str, recipe: str | None, version: int | None) -> None:
    """Point models:/xc-DATASET@champion at a model: a recipe's, a version, or, with neither, the challenger.

    What was champion becomes previous, for xc rollback. No gate is asked: a person decides.
    """
    from assets import registry

    if recipe is not None and version is not None:
        raise UsageError("both --recipe and --version", expected="one of them, or neither", do="drop one")
    workspace = Workspace.find()
    workspace.experiment(dataset, recipe)  # says what is wrong with a name
    name = registry.model_name(dataset)
    with _client(workspace) as client:
        if recipe is not None:
            version = _registered(workspace, client, dataset, recipe)
        elif version is None:
            version = _challenger(client, name)
        registry.check_version(client, name, version)
        registry.set_champion(client, name, version)
    click.echo(f"models:/{name}@champion is version {version}")


def _challenger(client: Any, name: str) -> int:
    from assets import registry

    challenger = registry.version_of(client, name, registry.CHALLENGER)
    if challenger is None:
        raise MissingError(f"no challenger of {name}", expected="a registered model", do="name a recipe with --recipe")
    return int(challenger.version)


def _registered(workspace: Workspace, client: Any, dataset: str, recipe: str) -> int:
    from assets import registry

    folder = workspace.folder("model", dataset, recipe)
    manifest = verify(folder, kind="model")
    if outdated(workspace, "model", dataset, recipe):
        raise MovedError(
            f"a model of {dataset}/{recipe} that was packed from other artefacts than there are now",
            expected="the model whose figures xc evaluate shows",
            do=f"xc train --dataset {dataset} --recipe {recipe}; a registered one is promoted by --version",
        )
    candidate = registry.Candidate(dataset, recipe, folder, dict(manifest.facts["metrics"]), float("inf"), {})
    return registry.register(client, mlflow_settings(workspace.root).artifacts, candidate).version


@click.command(short_help="Go back to the champion before.")
@click.option("--dataset", required=True, help="Name of the dataset.")
def rollback(dataset: str) -> None:
    """Exchange the aliases champion and previous; a second call undoes the first."""
    from assets import registry

    workspace = Workspace.find()
    workspace.experiment(dataset, None)  # says what is wrong with a name
    with _client(workspace) as client:
        now, before = registry.roll_back(client, dataset)
    click.echo(f"models:/{registry.model_name(dataset)}@champion is version {now} again (instead of {before})")


def champion(workspace: Workspace, dataset: str) -> Path | None:
    """Return a folder with the champion's bundle, None where there is no champion (entry point ``xc.champions``)."""
    from assets import registry

    with _client(workspace) as client:
        return registry.bundle_folder(client, dataset)


def check() -> Iterator[Finding]:
    """Say whether the tracking server answers and which champions there are (entry point ``xc.checks``)."""
    from assets import registry

    workspace = Workspace.find()
    settings = mlflow_settings(workspace.root)
    with _client(workspace) as client:
        yield Finding("ok", f"MLflow answers at {settings.uri}")
        for dataset in workspace.datasets():
            version = registry.version_of(client, registry.model_name(dataset), registry.CHAMPION)
            said = f"version {version.version}, recipe {version.tags.get('recipe')}" if version else "none yet"
            yield Finding("ok" if version else "note", f"champion of {dataset}: {said}")
    for dataset, recipe in workspace.experiments():
        folder = workspace.folder("model", dataset, recipe)
        if (folder / "manifest.json").is_file():
            yield Finding("ok", f"packed model of {dataset}/{recipe}: {read_manifest(folder).digest()[:12]}")
