"""Registered versions of a model: names, files, tags and pages, and the commands that make and repair them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from assets.mlflow_errors import if_there, is_absent
from assets.mlflow_internals import READ_MARK, bundle_folder, delete_files, files_of
from assets.release.copies import check_answer, destination, failed, home_of_copies
from assets.settings import hide_secrets, local_folder
from xc_core.artifacts import sha256_file, verify
from xc_core.errors import CorruptError, MissingError, UnavailableError, first_line
from xc_core.manifests import Manifest

AROUND: Final = "around"
"""Tag: digest of the files around the packed model. Versions that 0.2.0 registered have none until
``xc promote --repair`` sets it; so has one whose tag was deleted because its files were changed on purpose."""
_LONGEST_TAG: Final = 5000
"""Characters of a tag's value, or of a description, that MLflow stores; sqlite would take more."""


def model_name(dataset: str) -> str:
    """Return the registered name of a dataset's model."""
    return f"xc-{dataset}"


def is_whole(version: Any) -> bool:
    """Return True if the registered files of a version are there and are what they were."""
    return whole_folder(version) is not None


def whole_folder(version: Any) -> Path | None:
    """Return a local folder with the packed model of a version; None if its files are gone or not what they were."""
    try:
        folder = download(version)
        check_files(version, folder, verify(folder, kind="model").digest())
    except (MissingError, CorruptError):
        return None
    return folder


def own_folder(version: Any, artifact_root: str) -> Path | None:
    """Return the folder of a version whose files are whole and of this project, otherwise None."""
    folder = whole_folder(version)
    return None if folder is None or is_elsewhere(folder, artifact_root) else folder


def is_elsewhere(folder: Path, artifact_root: str) -> bool:
    """Return True if the files of a version belong to another project: one that was copied keeps their absolute paths.

    Their ``folder`` is neither under ``artifact_root`` nor in a copy that this project made.
    """
    root = local_folder(artifact_root)
    return root is not None and not any(map(folder.resolve().is_relative_to, (root, home_of_copies().resolve())))


def check_opens(version: Any) -> None:
    """Open the packed model of a version as a server does; a version that does not open must not become champion.

    Raises MissingError or CorruptError; if the files are not those that were registered, it says how to repair them.
    Raises RefusedError for a model of another dataset.
    """
    from xc_core.infer.bundle import Model
    from xc_core.infer.champion import advising

    with advising(f"{repair_command(version)}; the champion is unchanged"):
        model = Model.open(download(version), dataset_of(version.name))
        check_files(version, model.folder, model.digest)
    model.predictor()


def check_files(version: Any, folder: Path, digest: str) -> None:
    """Raise CorruptError if the files of a version are not those that were registered.

    Its packed model is in ``folder`` and has this digest; it may be whole while the code that MLflow serves it with, or
    another file around it, is damaged.
    """
    registered = version.tags.get("bundle", digest)
    if digest != registered:
        raise CorruptError(
            f"content {digest[:12]} of {version.name} version {version.version}",
            expected=f"{registered[:12]}, which was registered",
            do=repair_command(version),
        )
    if AROUND in version.tags and digest_around(folder) != version.tags[AROUND]:
        raise CorruptError(
            f"{folder.parents[1]}, where a file around the packed model is missing or has changed",
            expected=f"the files that were registered as {version.name} version {version.version}; if the change is "
            f"intended, delete the tag {AROUND} of the version in MLflow: then the command below records the files",
            do=repair_command(version),
        )


def lasting(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that a replacement takes over: not ``AROUND``, as MLflow writes other files around its model."""
    return {name: value for name, value in tags.items() if name != AROUND}


def digest_around(folder: Path) -> str:
    """Return the digest of all files of a version outside its packed model ``folder``.

    Files that are written when a version is read or served are left out.
    """
    home, files = folder.parents[1], {}
    for path in home.rglob("*"):
        name = path.relative_to(home)
        written_later = name.name == READ_MARK or "__pycache__" in name.parts or name.name.startswith(".")
        if path.is_file() and not path.is_relative_to(folder) and not written_later:
            files[name.as_posix()] = {"sha256": sha256_file(path)}
    return Manifest(AROUND, files).digest()


def repair_command(version: Any) -> str:
    """Return the command that repairs the files of a version."""
    return f"xc promote --dataset {dataset_of(version.name)} --version {version.version} --repair"


def repair_champion_command(dataset: str) -> str:
    """Return the command that repairs the files of a champion, whichever version it is."""
    return f"xc promote --dataset {dataset} --repair"


def register_command(name: str) -> str:
    """Return the command that registers a version of a model; a person puts in the name of a recipe."""
    return f"xc promote --dataset {dataset_of(name)} --recipe NAME"


def promoting(dataset: str, numbers: list[int]) -> str:
    """Return what to do to promote one of these versions."""
    which = one_of(numbers)
    return f"promote {which}: xc promote --dataset {dataset} --version {numbers[0] if len(numbers) == 1 else 'N'}"


def one_of(numbers: list[int]) -> str:
    """Return version numbers in words."""
    shown = ", ".join(map(str, numbers))
    return f"one of the versions {shown}" if len(numbers) > 1 else f"version {shown}"


def dataset_of(name: str) -> str:
    """Return the dataset of a registered model."""
    return name.removeprefix(model_name(""))


def download(version: Any) -> Path:
    """Return a local folder with the packed model of a registered version.

    Files of a registry elsewhere are copied (``copies``). Raises MissingError if the files are gone, CorruptError if
    MLflow's description of them is damaged or describes a different kind of model, StorageError if they cannot be
    copied, UnavailableError if they come from a tracking server that does not answer.
    """
    from mlflow.exceptions import MlflowException
    from ruamel.yaml import YAMLError

    uri, copied, location = f"models:/{version.name}/{version.version}", None, version.source
    try:
        copied = destination(uri, dataset_of(version.name), version.version)
        location = (files := files_of(uri)).artifact_uri
        check_answer(files)
        return bundle_folder(Path(files.download_artifacts("", dst_path=copied)))
    except (OSError, MlflowException, UnavailableError) as error:
        if copied is not None:
            failed(Path(copied), error)
        if isinstance(error, UnavailableError) or (isinstance(error, MlflowException) and not is_absent(error)):
            raise
        raise MissingError(
            f"no files of {version.name} version {version.version} ({error})",
            expected=f"the files in {hide_secrets(location)}",
            do=repair_command(version),
        ) from error
    except (YAMLError, ValueError, LookupError, TypeError) as error:
        raise CorruptError(
            f"no packed model in the MLmodel of {version.name} version {version.version} ({first_line(error)})",
            expected="what xc promote and Dagster register",
            do=repair_command(version),
        ) from error


def experiment_of(client: Any, run: str | None) -> str | None:
    """Return the id of the experiment that a run belongs to; None if the run is gone, as after ``mlflow gc``."""
    found_run = None
    if run:
        with if_there():
            found_run = client.get_run(run)
    return None if found_run is None else str(found_run.info.experiment_id)


def check_version(client: Any, name: str, version: int) -> None:
    """Raise MissingError if ``name`` has no such version."""
    from mlflow.exceptions import MlflowException

    try:
        client.get_model_version(name, str(version))
    except MlflowException as error:
        if not is_absent(error):
            raise
        numbers = numbers_of(client, name)
        raise MissingError(
            f"no version {version} of {name}",
            expected=one_of(numbers) if numbers else "a registered version; there is none yet",
            do="name one that is there" if numbers else f"register one: {register_command(name)}",
        ) from error


def delete_model(client: Any, model: Any) -> None:
    """Delete the files of a logged model, wherever MLflow keeps them, then the model."""
    delete_files(model.artifact_location)
    client.delete_logged_model(model.model_id)


def numbers_of(client: Any, name: str) -> list[int]:
    """Return the numbers of all versions."""
    return sorted(int(version.version) for version in client.search_model_versions(f"name = '{name}'"))


def versions_of(client: Any, name: str, digest: str) -> list[Any]:
    """Return all versions of a model, by its digest, the newest first."""
    versions = client.search_model_versions(f"name = '{name}' and tags.bundle = '{digest}'")
    return sorted(versions, key=lambda version: int(version.version), reverse=True)


def registry_is_new(client: Any) -> bool:
    """Return True if the registry has no model at all: its database may have been deleted."""
    return not client.search_registered_models(max_results=1)


def hint_if_new(client: Any) -> str:
    """Return what to add to the message of a missing model."""
    return "; the registry is new, it has no model at all" if registry_is_new(client) else ""


def measured_one(same: list[Any]) -> Any:
    """Return the version that the gate measures, of several with the same model: the newest whole one, else the newest.

    ``same`` has the newest first, as ``versions_of`` returns them.
    """
    return same[0] if len(same) == 1 else next(filter(is_whole, same), same[0])


def set_tags(client: Any, name: str, version: int, tags: Mapping[str, str]) -> None:
    """Set tags of a version."""
    for key, value in storable(tags).items():
        client.set_model_version_tag(name, str(version), key, value)


def storable(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags with values cut to the length that MLflow stores."""
    return {key: value[:_LONGEST_TAG] for key, value in tags.items()}


def set_page(client: Any, name: str, version: int, text: str) -> None:
    """Set the description of a version, cut to the length that MLflow stores."""
    client.update_model_version(name, str(version), text[:_LONGEST_TAG])
