"""``xc promote --repair``: damaged or missing files of a registered version are replaced by the packed model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from assets.release import aliases, versions
from assets.release.origin import Origin
from assets.settings import mlflow_settings
from xc_core.chain import Workspace
from xc_core.errors import CorruptError, MissingError
from xc_core.leftovers import temporary_folder


def repaired(workspace: Workspace, client: Any, dataset: str, number: int | None = None) -> str:
    """Replace the files of a version, by default the champion, if they are damaged or gone; return what was done.

    If they are whole, and those around the packed model were not recorded, these are recorded as they are.

    Raises MissingError if no packed model of the project has the version's digest, RefusedError for whole files of
    another dataset's model.
    """
    from assets.release import registry
    from assets.release.candidate import candidate
    from xc_core.infer.bundle import Model
    from xc_core.manifests import read_manifest

    name = versions.model_name(dataset)
    old = _to_repair(client, name, number)
    artifact_root = mlflow_settings(workspace.root).artifacts
    if (folder := versions.own_folder(old, artifact_root)) is not None:
        Model.open(folder, dataset)
        if versions.AROUND in old.tags:
            return f"version {old.version} of {name} is whole"
        versions.set_tags(client, name, int(old.version), {versions.AROUND: versions.digest_around(folder)})
        return f"version {old.version} of {name} is whole; the files around its packed model are recorded as they are"
    digest = old.tags.get("bundle", "")
    for recipe in workspace.params.recipes(dataset):
        packed = None
        with suppress(MissingError, CorruptError):  # the model of another recipe may be damaged or half there
            packed = read_manifest(workspace.folder("model", dataset, recipe)).digest()
        if packed == digest:
            replacement = candidate(workspace, dataset, recipe)  # raises CorruptError if this copy is damaged too
            replacement = replace(replacement, origin=_recorded_origin(client, dataset, old) or replacement.origin)
            version = registry.replaced(client, artifact_root, replacement, old)
            return f"version {version} of {name} replaces version {old.version}, with the same content"
    model = f"data/{dataset}/{old.tags.get('recipe', 'RECIPE')}/model"
    raise MissingError(
        f"no packed model with the content of version {old.version} ({digest[:12]})",
        expected="the same model under data/, made again or from DVC",
        do=f"xc lineage {old.version} --dataset {dataset} --rebuild FOLDER, put FOLDER/{model} in the place of {model} "
        "and run the same command again; or "
        + (f"xc rollback --dataset {dataset}" if number is None else "promote another version"),
    )


def _to_repair(client: Any, name: str, number: int | None) -> Any:
    if number is not None:
        versions.check_version(client, name, number)
        return client.get_model_version(name, str(number))
    champion = aliases.version_of(client, name, aliases.CHAMPION)
    if champion is None:
        do = f"register one: {versions.register_command(name)}"
        raise MissingError(f"no champion of {name}", expected="one to repair", do=do)
    return champion


def _recorded_origin(client: Any, dataset: str, old: Any) -> Origin | None:
    """Return the origin of a version, the same for the one that replaces it; None if it is damaged or gone.

    The project may have other code, settings and data by now, from which the model cannot be made again.
    """
    from assets.release.lineage import read

    with temporary_folder() as scratch, suppress(CorruptError):
        files = read(client, dataset, int(old.version), scratch).files
        contents = {name: path.read_bytes().decode("utf-8", "surrogateescape") for name, path in files.items()}
        return Origin(versions.lasting(old.tags), contents) if contents else None
    return None
