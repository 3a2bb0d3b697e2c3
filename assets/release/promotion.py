"""``xc promote``, ``xc rollback``, and what ``xc predict`` and ``xc doctor`` need from MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assets.release.pointer import Pointer, alias_in_sqlite
from assets.settings import mlflow_settings
from xc_core.chain import Workspace
from xc_core.cli.doctor import Finding
from xc_core.errors import MissingError, MovedError, UsageError

if TYPE_CHECKING:
    from xc_core.infer.champion import Champion


@contextmanager
def _client(workspace: Workspace) -> Iterator[Any]:
    """Yield a client of the project's MLflow; errors of MLflow in the block become UnavailableError."""
    from assets.tracking import answering, connect

    settings = mlflow_settings(workspace.root)
    with answering(settings.uri):
        yield connect(settings.uri, settings.lock)


@click.command(short_help="Make a model the champion, the version that is served.")
@click.option("--dataset", required=True, help="Name of the dataset.")
@click.option("--recipe", default=None, help="Promote the packed model of this recipe; register it first if needed.")
@click.option("--version", type=int, default=None, help="Promote this registered version.")
def promote(dataset: str, recipe: str | None, version: int | None) -> None:
    """Make a model the champion, the version that models:/xc-DATASET@champion serves.

    The model is that of a recipe, a version or, by default, the challenger: the model that was registered last. It is
    not compared with the old champion, to which xc rollback returns.
    """
    from assets.release import registry

    if recipe is not None and version is not None:
        raise UsageError("both --recipe and --version", expected="one of them, or neither", do="drop one")
    workspace = Workspace.find()
    workspace.params.partition(dataset, recipe)  # reports what is wrong with a name
    name = registry.model_name(dataset)
    with _client(workspace) as client:
        if recipe is not None:
            version = _registered(workspace, client, dataset, recipe)
        elif version is None:
            version = _challenger(client, name)
        registry.check_version(client, name, version)
        registry.set_champion(client, name, version)
    _point(workspace, dataset)
    click.echo(f"models:/{name}@champion is version {version}")


def _challenger(client: Any, name: str) -> int:
    from assets.release import registry

    challenger = registry.version_of(client, name, registry.CHALLENGER)
    if challenger is None:
        raise MissingError(f"no challenger of {name}", expected="a registered model", do="name a recipe with --recipe")
    return int(challenger.version)


def _registered(workspace: Workspace, client: Any, dataset: str, recipe: str) -> int:
    """Register a recipe's packed model, if it is up to date, and return its version."""
    from assets.release import registry
    from xc_core.chain.plan import Status, states
    from xc_core.infer.bundle import Model

    model = Model.open(workspace.folder("model", dataset, recipe))
    state = states(workspace, workspace.params.experiment(dataset, recipe))["model"]
    if state.status is Status.STALE:
        raise MovedError(
            f"a model of {dataset}/{recipe} that is out of date: {state.why} since it was packed",
            expected="the model whose figures xc evaluate shows",
            do=f"xc train --dataset {dataset} --recipe {recipe}; a registered one is promoted by --version",
        )
    candidate = replace(registry.Candidate.of(model, {}), max_drop=float("inf"))
    return registry.register(client, mlflow_settings(workspace.root).artifacts, candidate).version


@click.command(short_help="Return to the previous champion.")
@click.option("--dataset", required=True, help="Name of the dataset.")
def rollback(dataset: str) -> None:
    """Make the previous champion serve again. A second call undoes the first."""
    from assets.release import registry

    workspace = Workspace.find()
    workspace.params.dataset(dataset)  # reports what is wrong with a name
    with _client(workspace) as client:
        now, before = registry.roll_back(client, dataset)
    _point(workspace, dataset)
    click.echo(f"models:/{registry.model_name(dataset)}@champion is version {now} again (instead of {before})")


def champion(workspace: Workspace, dataset: str) -> Champion | None:
    """Return the champion, None if there is none (entry point ``xc.champions``).

    MLflow is asked only if the pointer of the last answer is missing or out of date.
    """
    from xc_core.infer.champion import Champion

    uri, path = mlflow_settings(workspace.root).uri, _pointer_file(workspace, dataset)
    pointer, version = Pointer.read(path), alias_in_sqlite(uri, f"xc-{dataset}", "champion")
    if pointer is not None and (pointer.uri, pointer.version) == (uri, version) and pointer.holds():
        return Champion(str(pointer.version), pointer.digest, partial(Path, pointer.folder))
    return _asked(workspace, dataset)


def _point(workspace: Workspace, dataset: str) -> None:
    """Write the pointer to the new champion; a version whose files are gone has none."""
    with suppress(MissingError):
        found = champion(workspace, dataset)
        if found is not None:
            found.fetch()


def _asked(workspace: Workspace, dataset: str) -> Champion | None:
    """Ask MLflow for the champion."""
    from assets.release import registry
    from xc_core.infer.champion import Champion

    with _client(workspace) as client:
        version = registry.version_of(client, registry.model_name(dataset), registry.CHAMPION)
    if version is None:
        return None
    return Champion(version.version, version.tags.get("bundle", ""), partial(_fetched, workspace, dataset, version))


def _fetched(workspace: Workspace, dataset: str, version: Any) -> Path:
    """Return a local folder with the packed model of a version, and write the pointer to it.

    Raises MissingError if its files are gone.
    """
    from assets.release import registry
    from xc_core.artifacts import read_manifest

    with _client(workspace):
        folder = registry.download(version)
    digest = read_manifest(folder).digest() if folder.is_dir() else ""
    if digest and digest == version.tags.get("bundle", digest):
        pointer = Pointer(mlflow_settings(workspace.root).uri, int(version.version), str(folder), digest)
        pointer.write(_pointer_file(workspace, dataset))
    return folder


def _pointer_file(workspace: Workspace, dataset: str) -> Path:
    return workspace.state / "champions" / f"{dataset}.json"


def check() -> Iterator[Finding]:
    """Report whether the tracking server answers and which champions there are (entry point ``xc.checks``)."""
    from assets.release import registry
    from xc_core.artifacts import read_manifest
    from xc_core.chain.plan import Status, states

    workspace = Workspace.find()
    settings = mlflow_settings(workspace.root)
    with _client(workspace) as client:
        yield Finding("ok", f"MLflow answers at {settings.uri}")
        for dataset in workspace.params.datasets():
            version = registry.version_of(client, registry.model_name(dataset), registry.CHAMPION)
            champion = f"version {version.version}, recipe {version.tags.get('recipe')}" if version else "none yet"
            yield Finding("ok" if version else "note", f"champion of {dataset}: {champion}")
    for dataset, recipe in workspace.params.experiments():
        folder = workspace.folder("model", dataset, recipe)
        if states(workspace, workspace.params.experiment(dataset, recipe))["model"].status is not Status.MISSING:
            yield Finding("ok", f"packed model of {dataset}/{recipe}: {read_manifest(folder).digest()[:12]}")
