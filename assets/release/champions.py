"""The champion of a dataset: which version it is, and a local folder with its packed model."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.database import unmade
from assets.mlflow_internals import Alias, alias_in_sqlite
from assets.release import aliases, versions
from assets.release.client import registry_of, versions_client
from assets.release.pointer import Pointer
from assets.settings import hide_secrets, mlflow_settings
from xc_core.chain import Workspace
from xc_core.errors import CorruptError, MissingError, StorageError, UnavailableError
from xc_core.progress import report

if TYPE_CHECKING:
    from xc_core.infer.champion import Champion


def champion(workspace: Workspace, dataset: str) -> Champion | None:
    """Return the champion, None if there is none (entry point ``xc.champions``).

    Raises MissingError if the registry is new, or has versions of the model of which none is champion.

    MLflow is asked only if the pointer of the last answer is missing or out of date. If it does not answer, the
    champion of the last answer is returned, as an unconfirmed one; without its files the UnavailableError is raised.
    """
    from xc_core.infer.champion import Champion

    settings, pointer = mlflow_settings(workspace.root), Pointer.read(_pointer_file(workspace, dataset))
    registry, unconfirmed = hide_secrets(settings.registry), ""
    alias = alias_in_sqlite(settings.registry, versions.model_name(dataset), aliases.CHAMPION)
    if pointer is None or not pointer.names(registry, alias) or not pointer.holds():
        try:
            return _ask_registry(workspace, dataset)
        except UnavailableError as error:
            if pointer is None or pointer.uri != registry or not pointer.holds():
                raise
            unconfirmed = error.found
    fetch = partial(_note_if_elsewhere, Path(pointer.folder), settings.artifacts, dataset)
    repair = versions.repair_champion_command(dataset)
    return Champion(str(pointer.version), pointer.digest, fetch, repair, dataset, unconfirmed=unconfirmed)


def write_pointer(workspace: Workspace, dataset: str) -> None:
    """Write the pointer to the new champion; a version whose files are gone, damaged or cannot be copied has none."""
    with suppress(MissingError, CorruptError, StorageError):
        current = champion(workspace, dataset)
        if current is not None:
            current.fetch()


def _ask_registry(workspace: Workspace, dataset: str) -> Champion | None:
    """Ask MLflow for the champion; there is none if the database of the registry does not exist yet.

    Raises MissingError if the registry is new, or has versions of the model of which none is champion.
    """
    from xc_core.infer.champion import Champion

    name, numbers = versions.model_name(dataset), list[int]()
    version, hint = None, "; MLflow has no database yet"
    if not unmade(mlflow_settings(workspace.root).registry):
        with registry_of(workspace) as client:
            version = aliases.version_of(client, name, aliases.CHAMPION)
            hint = "" if version else versions.hint_if_new(client)
            numbers = [] if version or hint else versions.numbers_of(client, name)
    if numbers:  # somebody deleted the champion, or its alias, in MLflow's interface
        raise MissingError(
            f"no champion of {dataset}",
            expected=f"a version of {name} with the alias {aliases.CHAMPION}",
            do=f"{versions.promoting(dataset, numbers)}; or name a trained recipe with --recipe",
        )
    if version is None and hint and has_packed_model(workspace):
        raise MissingError(
            f"no champion of {dataset}{hint}",
            expected=f"a registered model {name} with the alias {aliases.CHAMPION}",
            do=f"name a trained recipe with --recipe, or release one: xc promote --dataset {dataset} --recipe NAME; if "
            "there was one, MLFLOW_TRACKING_URI or MLflow's database has changed",
        )
    if version is None:
        return None
    fetch = partial(_fetch, workspace, dataset, version)
    repair = versions.repair_champion_command(dataset)
    digest, recipe = (version.tags.get(tag, "") for tag in ("bundle", "recipe"))
    return Champion(str(version.version), digest, fetch, repair, dataset, recipe)


def _fetch(workspace: Workspace, dataset: str, version: Any) -> Path:
    """Return a local folder with the packed model of a version: the one of the pointer, or one that it names then.

    Raises MissingError if its files are gone.
    """
    from xc_core.manifests import read_manifest

    settings, path = mlflow_settings(workspace.root), _pointer_file(workspace, dataset)
    registry = hide_secrets(settings.registry)
    pointer, alias = Pointer.read(path), Alias(int(version.version), version.tags.get("bundle", ""))
    if pointer is not None and pointer.names(registry, alias) and pointer.holds():
        return _note_if_elsewhere(Path(pointer.folder), settings.artifacts, dataset)
    with versions_client(workspace):
        folder = versions.download(version)
    digest = read_manifest(folder).digest() if folder.is_dir() else ""
    if digest and digest == version.tags.get("bundle", digest):
        Pointer(registry, int(version.version), str(folder), digest).write(path)
    return _note_if_elsewhere(folder, settings.artifacts, dataset)


def _note_if_elsewhere(folder: Path, artifact_root: str, dataset: str) -> Path:
    """Return the folder of a champion; note one of another project, as in a copy, whose original may have changed."""
    if versions.is_elsewhere(folder, artifact_root):
        do = versions.repair_champion_command(dataset)
        report(f"note: the champion's files are under another root, {folder}; to register them in this project: {do}")
    return folder


def _pointer_file(workspace: Workspace, dataset: str) -> Path:
    return workspace.state / "champions" / f"{dataset}.json"


def has_packed_model(workspace: Workspace) -> bool:
    """Return True if the project has a packed model."""
    return any(workspace.folder("model", *pair).is_dir() for pair in workspace.params.experiments())
