"""``xc promote --repair``: damaged or missing files of a registered version are replaced by the packed model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from assets.mlflow_errors import if_there
from assets.mlflow_internals import bundle_folder, files_of
from assets.release import aliases, versions
from assets.release.moved import moved_files, moved_run
from assets.release.origin import FOLDER, Origin
from assets.settings import hide_secrets, mlflow_settings
from xc_core.artifacts import verify
from xc_core.chain import Workspace
from xc_core.errors import CorruptError, MissingError
from xc_core.leftovers import temporary_folder

if TYPE_CHECKING:
    from assets.release.page import Page
    from assets.release.registry import Candidate


def repaired(workspace: Workspace, client: Any, dataset: str, number: int | None = None) -> str:
    """Replace the files of a version, by default the champion, if they are damaged or gone; return what was done.

    If they are whole, and those around the packed model were not recorded, these are recorded as they are. The packed
    model is taken from data/ or, if the project was moved or copied, from the files of MLflow that came with it.

    Raises MissingError if no packed model of the project has the version's digest, RefusedError for whole files of
    another dataset's model.
    """
    from assets.release import registry
    from xc_core.infer.bundle import Model

    name = versions.model_name(dataset)
    old = _to_repair(client, name, number)
    artifact_root = mlflow_settings(workspace.root).artifacts
    if (folder := versions.own_folder(old, artifact_root)) is not None:
        Model.open(folder, dataset)
        if versions.AROUND in old.tags:
            return f"version {old.version} of {name} is whole"
        versions.set_tags(client, name, int(old.version), {versions.AROUND: versions.digest_around(folder)})
        return f"version {old.version} of {name} is whole; the files around its packed model are recorded as they are"
    packed = _packed(workspace, dataset, old) or _moved(workspace, client, old, artifact_root)
    if packed is None:
        raise _lost_error(old, dataset, artifact_root, champion=number is None)
    packed = replace(packed, origin=_recorded_origin(client, dataset, old, artifact_root) or packed.origin)
    version = registry.replaced(client, artifact_root, packed, old)
    return f"version {version} of {name} replaces version {old.version}, with the same content"


def _packed(workspace: Workspace, dataset: str, old: Any) -> Candidate | None:
    """Return the packed model under data/ that has the content of a version; raise CorruptError if it is damaged."""
    from assets.release.candidate import candidate
    from xc_core.manifests import read_manifest

    for recipe in workspace.params.recipes(dataset):
        digest = None
        with suppress(MissingError, CorruptError):  # the model of another recipe may be damaged or half there
            digest = read_manifest(workspace.folder("model", dataset, recipe)).digest()
        if digest == old.tags.get("bundle", ""):
            return candidate(workspace, dataset, recipe)
    return None


def _moved(workspace: Workspace, client: Any, old: Any, artifact_root: str) -> Candidate | None:
    """Return the packed model of a version that is where the project was moved or copied to; None without it.

    Its page is that of the version: what is under data/ may be of another model. Only the packed model itself must be
    what was registered; the files around it are written again.
    """
    from assets.release.candidate import moving, registering
    from assets.release.judge import Judge
    from assets.release.registry import Candidate

    folder = moved_files(files_of(f"models:/{old.name}/{old.version}").artifact_uri, old.name, artifact_root)
    dataset, recipe, digest = versions.dataset_of(old.name), old.tags.get("recipe", ""), old.tags.get("bundle", "")
    with suppress(CorruptError, MissingError, OSError, LookupError, TypeError, ValueError):  # damaged, or half there
        if folder is not None and verify(packed := bundle_folder(folder), kind="model").digest() == digest:
            return Candidate(
                dataset,
                recipe,
                packed,
                digest,
                Judge(workspace, dataset, recipe),
                Origin(versions.lasting(old.tags)),
                _recorded_page(client, old, artifact_root),
                moving=partial(moving, workspace, dataset),
                registering=partial(registering, workspace, dataset),
                under_way=workspace.state / "registering" / f"{dataset}.json",
            )
    return None


def _recorded_page(client: Any, old: Any, artifact_root: str) -> Page:
    """Return what the run of a version in a moved project shows; an empty page if the run is gone."""
    from assets.release.page import Page
    from assets.tracking import NOTE

    run = None
    with if_there():
        run = client.get_run(old.run_id) if old.run_id else None
    if run is None:
        return Page()
    home = moved_run(client, old.run_id, old.name, artifact_root)
    files = [] if home is None else [path for path in sorted(home.rglob("*")) if path.is_file()]
    shown = [path for path in files if home is not None and path.relative_to(home).parts[0] != FOLDER]
    note = run.data.tags.get(NOTE, "").partition("\n\n")[0]  # links to the files of the old run follow
    return Page(dict(run.data.metrics), dict(run.data.params), shown, note=note)


def _lost_error(old: Any, dataset: str, artifact_root: str, *, champion: bool) -> MissingError:
    model = f"data/{dataset}/{old.tags.get('recipe', 'RECIPE')}/model"
    files = hide_secrets(artifact_root)
    return MissingError(
        f"no packed model with the content of version {old.version} ({old.tags.get('bundle', '')[:12]})",
        expected=f"the same model under data/, made again or from DVC, or its files under {files}",
        do=f"xc lineage {old.version} --dataset {dataset} --rebuild FOLDER, put FOLDER/{model} in the place of {model} "
        "and run the same command again; or "
        + (f"xc rollback --dataset {dataset}" if champion else "promote another version"),
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


def _recorded_origin(client: Any, dataset: str, old: Any, artifact_root: str) -> Origin | None:
    """Return the origin of a version, the same for the one that replaces it; None if it is damaged or gone.

    The project may have other code, settings and data by now, from which the model cannot be made again.
    """
    from assets.release.ancestry import read

    with temporary_folder() as scratch, suppress(CorruptError):
        files = read(client, dataset, int(old.version), scratch, artifact_root).files
        contents = {name: path.read_bytes().decode("utf-8", "surrogateescape") for name, path in files.items()}
        return Origin(versions.lasting(old.tags), contents) if contents else None
    return None
