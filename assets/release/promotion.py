"""``xc promote``, ``xc rollback``, and what ``xc predict`` and ``xc doctor`` need from MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assets.release import versions
from assets.release.pointer import Alias, Pointer, alias_in_sqlite
from assets.settings import hide_secrets, local_folder, mlflow_settings
from xc_core.chain import STAGES, Workspace
from xc_core.cli.doctor import Finding
from xc_core.errors import CorruptError, MissingError, MovedError, RefusedError, UsageError, XCError

if TYPE_CHECKING:
    from assets.release.registry import Released
    from xc_core.infer.champion import Champion


def client_of(workspace: Workspace) -> AbstractContextManager[Any]:
    """Return a context with a client of the project's MLflow; errors of MLflow in it become UnavailableError."""
    from assets.tracking import connected

    settings = mlflow_settings(workspace.root)
    return connected(settings.uri, settings.lock)


@click.command(short_help="Make a model the champion, the version that is served.")
@click.option("--dataset", required=True, help="Name of the dataset.")
@click.option("--recipe", default=None, help="Register the packed model of this recipe, and promote it if it passes.")
@click.option("--version", type=int, default=None, help="Promote this registered version.")
@click.option("--reason", default=None, help="Why the gate is overruled; recorded with your name.")
@click.option("--repair", is_flag=True,
              help="Replace damaged files of the champion, or of --version, by the packed model.")  # fmt: skip
def promote(dataset: str, recipe: str | None, version: int | None, reason: str | None, repair: bool) -> None:
    """Make a model the champion, the version that models:/xc-DATASET@champion serves.

    The model is that of a recipe, a version or, by default, the challenger: the model that passed the gate last. A
    model that the gate refused, or has not seen, needs a --reason. xc rollback returns to the old champion.
    """
    workspace = Workspace.find()
    _check_asked(workspace, dataset, recipe, version, reason)
    if repair and (recipe is not None or reason is not None):
        raise UsageError("--repair with --recipe or --reason", expected="--version at most", do="drop the others")
    name = versions.model_name(dataset)
    with client_of(workspace) as client:
        if repair:
            click.echo(repaired(workspace, client, dataset, version))
            return
        if recipe is not None:
            released = _registered(workspace, client, dataset, recipe)
            if (verdict := released.verdict) is not None and not verdict.passed and not reason:
                raise verdict.refusal(dataset, released.version)
            version = released.version
        elif version is None:
            version = _challenger(client, dataset)
        versions.check_version(client, name, version)
        by_hand(workspace, client, dataset, version, reason)
    _point(workspace, dataset)
    click.echo(f"models:/{name}@champion is version {version}")


def _check_asked(
    workspace: Workspace, dataset: str, recipe: str | None, version: int | None, reason: str | None
) -> None:
    if recipe is not None and version is not None:
        raise UsageError("both --recipe and --version", expected="one of them, or neither", do="drop one")
    if reason is not None and not reason.strip():
        raise UsageError("an empty --reason", expected="a sentence", do="say why the gate is wrong here")
    workspace.params.partition(dataset, recipe)  # reports what is wrong with a name
    if recipe is not None:
        from assets.resources import Dvc

        Dvc.of(workspace.root).check_git(dataset, recipe)


def by_hand(workspace: Workspace, client: Any, dataset: str, version: int, reason: str | None) -> None:
    """Make a version champion, and record who did it and why.

    Raises RefusedError if the version has not passed the gate and there is no reason, MissingError or CorruptError if
    it cannot be opened; then nothing changes.
    """
    from assets.release import registry
    from assets.release.best import start_again
    from assets.release.candidate import moving
    from assets.release.origin import person
    from assets.release.page import overruled

    name = versions.model_name(dataset)
    found = client.get_model_version(name, str(version))
    state = found.tags.get(registry.GATE, "has not seen")
    if state != registry.PASSED and not reason and not _serves(client, name, version):
        failed = found.tags.get("gate_failed")
        raise RefusedError(
            f"version {version}, which the gate {state}" + (f" ({failed})" if failed else ""),
            expected="a version that passed the gate, or a reason to overrule it",
            do=f'xc promote --dataset {dataset} --version {version} --reason "WHY"',
        )
    versions.check_opens(found)
    tags = {"promoted_by": person(workspace.root), "promoted_at": datetime.now(UTC).isoformat(timespec="seconds")}
    tags |= {"promoted_reason": reason.strip()} if reason else {}
    with moving(workspace, dataset):
        registry.set_tags(client, name, version, tags)
        if reason:
            start_again(client, name, version)
            page = f"{overruled(tags)}\n\n{found.description or ''}".strip()
            registry.set_page(client, name, version, page)
        registry.set_champion(client, name, version)


def _serves(client: Any, name: str, version: int) -> bool:
    """Return True if the version is champion, or was before."""
    from assets.release import registry

    found = (registry.version_of(client, name, alias) for alias in (registry.CHAMPION, registry.PREVIOUS))
    return version in {int(one.version) for one in found if one is not None}


def _challenger(client: Any, dataset: str) -> int:
    from assets.release import registry

    name = versions.model_name(dataset)
    challenger = registry.version_of(client, name, registry.CHALLENGER)
    if challenger is None:
        found = f"no challenger of {name}{registry.hint(client)}"
        do = f"register one: {versions.register_command(name)}"
        raise MissingError(found, expected="a model that passed the gate", do=do)
    return int(challenger.version)


def _registered(workspace: Workspace, client: Any, dataset: str, recipe: str) -> Released:
    """Register a recipe's packed model, if it is up to date, and ask the gate."""
    from assets.release import registry
    from assets.release.candidate import candidate
    from assets.release.judge import keep_acceptance

    _check_up_to_date(workspace, dataset, recipe)
    record(workspace, dataset, recipe)
    own = replace(candidate(workspace, dataset, recipe), auto=False)
    released = registry.register(client, mlflow_settings(workspace.root).artifacts, own)
    keep_acceptance(workspace, dataset)
    return released


def _check_up_to_date(workspace: Workspace, dataset: str, recipe: str) -> None:
    from xc_core.chain.plan import Status, packed_state
    from xc_core.infer.bundle import Model

    state = packed_state(workspace, dataset, recipe)
    Model.open(workspace.folder("model", dataset, recipe))
    if state.status is Status.STALE:
        raise MovedError(
            f"a model of {dataset}/{recipe} that is out of date: {state.why} since it was packed",
            expected="the model whose figures xc evaluate shows",
            do=f"{workspace.params.train_command(dataset, recipe)}; a registered one is promoted by --version",
        )


def record(workspace: Workspace, dataset: str, recipe: str) -> None:
    """Record raw data and artefacts of an experiment in DVC, as a Dagster run does; without DVC do nothing."""
    from assets.resources import Dvc

    dvc = Dvc.of(workspace.root)
    dvc.track_source(workspace.raw(dataset))
    dvc.commit([name for name in STAGES if workspace.folder(name, dataset, recipe).is_dir()], dataset, recipe)


def repaired(workspace: Workspace, client: Any, dataset: str, number: int | None = None) -> str:
    """Replace the files of a version, by default the champion, if they are damaged or gone; return what was done.

    Raises MissingError if no packed model of the project has the version's digest.
    """
    from assets.release import registry
    from assets.release.candidate import candidate
    from xc_core.artifacts import read_manifest
    from xc_core.infer.bundle import Model

    name = versions.model_name(dataset)
    old = _to_repair(client, name, number)
    if versions.is_whole(old) and not _elsewhere(workspace, versions.download(old)):
        return f"version {old.version} of {name} is whole"
    digest = old.tags.get("bundle", "")
    for _, recipe in workspace.params.experiments(dataset):
        folder, found = workspace.folder("model", dataset, recipe), None
        with suppress(MissingError, CorruptError):  # the model of another recipe may be damaged or half there
            found = read_manifest(folder).digest()
        if found == digest:
            Model.open(folder)  # raises CorruptError if this copy is damaged too
            own = candidate(workspace, dataset, recipe)
            version = registry.replaced(client, mlflow_settings(workspace.root).artifacts, own, old)
            return f"version {version} of {name} replaces version {old.version}, with the same content"
    raise MissingError(
        f"no packed model with the content of version {old.version} ({digest[:12]})",
        expected="the same model under data/, made again or from DVC",
        do=f"xc lineage {old.version} --dataset {dataset} --rebuild FOLDER, or "
        + (f"xc rollback --dataset {dataset}" if number is None else "promote another version"),
    )


def _to_repair(client: Any, name: str, number: int | None) -> Any:
    from assets.release import registry

    if number is not None:
        versions.check_version(client, name, number)
        return client.get_model_version(name, str(number))
    champion = registry.version_of(client, name, registry.CHAMPION)
    if champion is None:
        do = f"register one: {versions.register_command(name)}"
        raise MissingError(f"no champion of {name}", expected="one to repair", do=do)
    return champion


@click.command(short_help="Return to the previous champion.")
@click.option("--dataset", required=True, help="Name of the dataset.")
def rollback(dataset: str) -> None:
    """Return to the previous champion, if its files are complete. A second call undoes the first."""
    from assets.release import registry
    from assets.release.candidate import moving

    workspace = Workspace.find()
    workspace.params.dataset(dataset)  # reports what is wrong with a name
    with client_of(workspace) as client:
        now, before = registry.roll_back(client, dataset, partial(moving, workspace, dataset))
    _point(workspace, dataset)
    click.echo(f"models:/{versions.model_name(dataset)}@champion is version {now} again (instead of {before})")


def champion(workspace: Workspace, dataset: str) -> Champion | None:
    """Return the champion, None if there is none (entry point ``xc.champions``); MissingError if the registry is new.

    MLflow is asked only if the pointer of the last answer is missing or out of date.
    """
    from xc_core.infer.champion import Champion

    settings, path = mlflow_settings(workspace.root), _pointer_file(workspace, dataset)
    pointer, alias = Pointer.read(path), alias_in_sqlite(settings.registry, versions.model_name(dataset), "champion")
    if pointer is not None and pointer.names(hide_secrets(settings.registry), alias) and pointer.holds():
        return Champion(str(pointer.version), pointer.digest, partial(Path, pointer.folder), _repair(dataset))
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

    with client_of(workspace) as client:
        version = registry.version_of(client, versions.model_name(dataset), registry.CHAMPION)
        if version is None:
            if _packed(workspace):
                registry.check_not_new(client, dataset)
            return None
    fetch = partial(_fetched, workspace, dataset, version)
    return Champion(str(version.version), version.tags.get("bundle", ""), fetch, _repair(dataset))


def _repair(dataset: str) -> str:
    """Return the command that repairs the champion's files."""
    return f"xc promote --dataset {dataset} --repair"


def _fetched(workspace: Workspace, dataset: str, version: Any) -> Path:
    """Return a local folder with the packed model of a version: the one of the pointer, or one that it names then.

    Raises MissingError if its files are gone.
    """
    from xc_core.artifacts import read_manifest

    registry, path = hide_secrets(mlflow_settings(workspace.root).registry), _pointer_file(workspace, dataset)
    pointer, alias = Pointer.read(path), Alias(int(version.version), version.tags.get("bundle", ""))
    if pointer is not None and pointer.names(registry, alias) and pointer.holds():
        return Path(pointer.folder)
    with client_of(workspace):
        folder = versions.download(version)
    digest = read_manifest(folder).digest() if folder.is_dir() else ""
    if digest and digest == version.tags.get("bundle", digest):
        Pointer(registry, int(version.version), str(folder), digest).write(path)
    return folder


def _pointer_file(workspace: Workspace, dataset: str) -> Path:
    return workspace.state / "champions" / f"{dataset}.json"


def _packed(workspace: Workspace) -> bool:
    """Return True if the project has a packed model."""
    return any(workspace.folder("model", *pair).is_dir() for pair in workspace.params.experiments())


def _champion_finding(workspace: Workspace, dataset: str, version: Any | None) -> Finding:
    """Return whether the champion's files are there, whole, and within this project's reach."""
    from xc_core import artifacts

    if version is None:
        return Finding("note", f"champion of {dataset}: none yet")
    text = f"champion of {dataset}: version {version.version}, recipe {version.tags.get('recipe')}"
    do = f"  do this:  {_repair(dataset)}"
    try:
        folder = versions.download(version)
        artifacts.verify(folder, kind="model")
    except XCError as error:
        return Finding("fault", f"{text}: found {error.found}\n{do}")
    if _elsewhere(workspace, folder):
        return Finding("fault", f"{text}: found its files under another root, {folder}\n{do}")
    return Finding("ok", text)


def _elsewhere(workspace: Workspace, folder: Path) -> bool:
    """Return True if the files belong to another project: they are neither in the artifact root nor in a copy of it."""
    root = local_folder(mlflow_settings(workspace.root).artifacts)
    return root is not None and not folder.resolve().is_relative_to(root)


def check() -> Iterator[Finding]:
    """Report whether the tracking server answers and which champions there are (entry point ``xc.checks``)."""
    from assets.release import registry
    from xc_core.artifacts import read_manifest
    from xc_core.chain.plan import Status, states

    workspace = Workspace.find()
    settings = mlflow_settings(workspace.root)
    with client_of(workspace) as client:
        yield Finding("ok", f"MLflow answers at {settings.shown}")
        for dataset in workspace.params.datasets():
            version = registry.version_of(client, versions.model_name(dataset), registry.CHAMPION)
            yield _champion_finding(workspace, dataset, version)
        if registry.is_new(client) and _packed(workspace):
            shown = hide_secrets(settings.registry)
            yield Finding("note", f"the registry at {shown} is new: it has no model, but the project has some")
    for dataset, recipe in workspace.params.experiments():
        folder = workspace.folder("model", dataset, recipe)
        if states(workspace, workspace.params.experiment(dataset, recipe))["model"].status is not Status.MISSING:
            yield Finding("ok", f"packed model of {dataset}/{recipe}: {read_manifest(folder).digest()[:12]}")
