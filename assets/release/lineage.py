"""``xc lineage``: where a registered version comes from, and how to make it again from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from assets.release.client import client_of
from assets.release.moved import moved_run
from assets.release.origin import ARTEFACTS, DIFF, FOLDER
from assets.release.page import ORIGIN
from assets.settings import mlflow_settings
from xc_core.artifacts import remove, sha256_file, write_file
from xc_core.chain import Workspace
from xc_core.chain.names import checked_name
from xc_core.chain.registry import TRAIN_STAGES
from xc_core.environment import python_path
from xc_core.errors import (
    CorruptError,
    MissingError,
    MovedError,
    RefusedError,
    UnavailableError,
    UsageError,
    first_line,
)
from xc_core.git import outside_hooks, project_checkout
from xc_core.leftovers import temporary_folder
from xc_core.lifecycle.dvc_settings import DvcSettings
from xc_core.manifests import read_manifest
from xc_core.progress import report

_SHOWN_TAGS: Final = {
    "recipe": "recipe", **ORIGIN, "dagster_run_url": "Dagster page",
    "data_dvc": "raw data in DVC", "bundle": "content", "gate": "gate",
    "gate_failed": "failed lines", "gate_on": "judged on", "promoted_by": "promoted by", "promoted_at": "promoted at",
    "overruled_by": "gate overruled by", "overruled_at": "overruled at", "overruled_because": "reason",
    "repairs": "repairs version",
}  # fmt: skip
_DIFFERS_ADVICE: Final = "compare environment.txt of the version's MLflow run, and the machine, with this one"
_NOT_TRAINED: Final = {"refreshed": "kept rows that an older corpus trained", "extended": "had labels added to it"}
"""What happened to an artefact after its training, by the fact that says so: a training does not repeat it."""
_TREE_SUFFIX: Final = ".cbor"
"""The end of the name of a label tree: omikuji cannot be seeded, so two fits of the same texts differ."""
_DVC: Final = (sys.executable, "-m", "dvc")


@dataclass(frozen=True)
class Lineage:
    """A registered version: its tags, and the files of its origin by name."""

    dataset: str
    recipe: str
    version: int
    run: str
    tags: dict[str, str]
    files: dict[str, Path]
    artefacts: dict[str, Any]
    """Digest, fingerprint and settings of each stage's artefact."""

    @property
    def chain(self) -> dict[str, Any]:
        """The artefacts that a training makes."""
        return {stage: facts for stage, facts in self.artefacts.items() if stage in TRAIN_STAGES}


@click.command(short_help="Show the data, code and settings of a version.")
@click.argument("version", type=int)
@click.option("--dataset", required=True, help="Name of the dataset.")
@click.option("--rebuild", type=click.Path(path_type=Path, resolve_path=True), default=None, metavar="FOLDER",
              help="Make the model again in this new folder and compare it.")  # fmt: skip
def lineage(version: int, dataset: str, rebuild: Path | None) -> None:
    """Show which data, code and settings the registered VERSION of a dataset's model was made from.

    With --rebuild its commit is cloned into FOLDER, the recorded changes to the commit are applied, the raw data is
    fetched from DVC, all stages run, and the content is compared with that of the version.
    """
    workspace = Workspace.find()
    checked_name("dataset", dataset)
    if rebuild is not None and rebuild.exists():
        raise UsageError(f"{rebuild}, which exists", expected="a new folder", do="name another folder, or delete it")
    with temporary_folder() as scratch:
        with client_of(workspace, reads=True, logs=False) as client:
            try:
                record = read(client, dataset, version, scratch, mlflow_settings(workspace.root).artifacts)
            except MissingError:
                workspace.params.dataset(dataset)  # a mistyped name; versions outlive their dataset
                raise
        for tag, name in _SHOWN_TAGS.items():
            if tag in record.tags:
                click.echo(f"{name + ':':<28}{record.tags[tag]}")
        click.echo(f"{'MLflow run:':<28}{record.run}")
        for stage, facts in record.artefacts.items():
            click.echo(f"{stage + ':':<28}{facts['digest'][:12]}{' (refreshed)' if facts.get('refreshed') else ''}")
        if rebuild is not None:
            rebuilt(workspace, record, rebuild)
            click.echo(f"{rebuild}: the same content as version {version}")


def read(client: Any, dataset: str, version: int, scratch: Path, artifact_root: str = "") -> Lineage:
    """Return the lineage of a version; the files of its origin are copied into the folder ``scratch``.

    If they are no longer where MLflow looks, as in a project that was moved, those under ``artifact_root`` are read.

    Raises MissingError if there is no such version, CorruptError if its origin cannot be read.
    """
    import mlflow

    from assets.release import versions

    name = versions.model_name(dataset)
    versions.check_version(client, name, version)
    version_info = client.get_model_version(name, str(version))
    run_id, folder = version_info.run_id, None
    if versions.experiment_of(client, run_id) and client.list_artifacts(run_id, FOLDER):
        folder = Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=FOLDER, dst_path=str(scratch)))
    elif home := moved_run(client, run_id, name, artifact_root):
        folder = home / FOLDER
    paths = [] if folder is None else [path for path in folder.rglob("*") if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path for path in paths if folder is not None}
    artefacts = _artefacts(files[ARTEFACTS], version) if ARTEFACTS in files else {}
    recipe, run = version_info.tags.get("recipe", ""), run_id or "none"
    return Lineage(dataset, recipe, version, run, dict(version_info.tags), files, artefacts)


def _artefacts(path: Path, version: int) -> dict[str, Any]:
    """Return what the origin of a version says of its artefacts; raise CorruptError if it cannot be read."""
    try:
        artefacts: dict[str, Any] = {
            stage: {**facts, "digest": str(facts["digest"])}
            for stage, facts in json.loads(path.read_text("utf-8")).items()
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"an unreadable {FOLDER}/{ARTEFACTS} in the MLflow run of version {version} ({first_line(error)})",
            expected="digests of the artefacts that the version was made from",
            do="restore the files of MLflow; the model itself may be whole, which xc doctor checks",
        ) from error
    return artefacts


def rebuilt(workspace: Workspace, record: Lineage, folder: Path) -> None:
    """Make the model of a version again in ``folder``, from its commit, its settings and its data.

    Raises MissingError for an origin that is not recorded or data that is nowhere, RefusedError for a clone that would
    write elsewhere, MovedError for another result.
    """
    if "params.yaml" not in record.files or "corpus" not in record.artefacts or not record.recipe:
        raise MissingError(
            f"no recorded origin of version {record.version}",
            expected="a version that xc promote or the asset model registered, and the files of its MLflow run",
            do="restore MLflow's files if they were moved or deleted, or promote a newer version (0.1.0 "
            "recorded a commit only, and files with secrets are left out)",
        )
    for fact, what_happened in _NOT_TRAINED.items():
        if stages := [stage for stage, facts in record.artefacts.items() if facts.get(fact)]:
            report(f"lineage: {', '.join(stages)} {what_happened}; a training may differ")
    project = _clone(workspace, record, folder)
    for name, path in record.files.items():
        if name not in (ARTEFACTS, DIFF, "environment.txt"):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, project / name)
    _check_inside(folder, project / "data" / record.dataset)
    _fetch_raw(workspace, record, project)
    environment = _environment(workspace, folder, project)
    for stage in record.chain:
        _run_xc(environment, project, "run", stage, "--dataset", record.dataset, "--recipe", record.recipe)
        report(f"lineage: {stage} made again")
    _check_equal(record, Workspace(project))


def _clone(workspace: Workspace, record: Lineage, folder: Path) -> Path:
    """Clone the code at the version's commit, and apply what differed from it.

    The clone has that commit alone, so it needs no history that the repository lacks, and no branch that leads to it.
    Returns the project in the clone: it is where it is in its repository. Raises MissingError if that lacks the commit.
    """
    code, commit = project_checkout(workspace.root), record.tags.get("git", "none")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if commit == "none":
        report("lineage: no commit is recorded, so the installed code is used")
        folder.mkdir(parents=True)
        return folder
    repository = _repository_with(code.root, commit, record)
    clone = ["git", "clone", "--quiet", "--no-checkout", "--no-local", "--depth=1"]
    _run_command([*clone, str(repository), str(folder)], folder.parent)
    _run_command(["git", "-c", "protocol.version=2", "fetch", "--quiet", "--depth=1", str(repository), commit], folder)
    _run_command(["git", "checkout", "--quiet", "--detach", commit], folder)
    if DIFF in record.files:
        _run_command(["git", "apply", "--whitespace=nowarn", str(record.files[DIFF].resolve())], folder)
    root, repository = workspace.root.resolve(), repository.resolve()
    return folder / root.relative_to(repository) if root.is_relative_to(repository) else folder


def _check_inside(folder: Path, home: Path) -> None:
    """Raise RefusedError if the data of the clone are, by a link in git, those of the project: they would change."""
    if not home.resolve().is_relative_to(folder.resolve()):
        raise RefusedError(
            f"{home}, which leads by a link to {home.resolve()}",
            expected="a folder of the clone, so that the rebuild changes nothing elsewhere",
            do="make the model again in a clone in which you replace the link by a folder: xc ingest, xc train",
        )


def _repository_with(root: Path | None, commit: str, record: Lineage) -> Path:
    """Return the repository ``root``; raise MissingError if it lacks the commit of a version, as a shallow clone."""
    if root is None:
        raise MissingError(
            f"no repository of git here, or no git, to clone commit {commit[:12]} of version {record.version} from",
            expected="the project in a clone of the repository that has the commit",
            do="install git, or put the project's files into such a clone",
        )
    try:
        _run_command(["git", "cat-file", "-e", f"{commit}^{{commit}}"], root)
        return root
    except UnavailableError as error:
        raise MissingError(
            f"no commit {commit[:12]} in {root}",
            expected=f"the commit that version {record.version} was made from",
            do="fetch it from the repository that has it (git fetch; for a shallow clone, git fetch --unshallow)",
        ) from error


def _fetch_raw(workspace: Workspace, record: Lineage, folder: Path) -> None:
    """Put the raw data into ``folder``: from git, else from DVC, else from the project if it is still the same."""
    raw, expected = folder / "data" / record.dataset / "raw", record.artefacts["corpus"].get("source") or {}
    pointer, pull_error = raw.with_suffix(".dvc"), None
    if pointer.is_file() and (folder / ".dvc").is_dir():
        try:
            _share_remotes(workspace.root, folder)
            _run_command([*_DVC, "pull", str(pointer.relative_to(folder))], folder)
        except UnavailableError as error:
            pull_error = error
    if _has_files(raw, expected):
        return
    if _has_files(workspace.raw(record.dataset), expected):
        if pull_error:
            report("lineage: DVC cannot fetch the raw data, which is copied from the project: its files are the same")
        remove(raw)  # files of another version, which may be links to DVC's cache, are neither read nor written to
        raw.mkdir(parents=True)
        for name in expected:
            shutil.copyfile(workspace.raw(record.dataset) / name, raw / name)
        return
    kind, reason = (UnavailableError, f" ({pull_error.found})") if pull_error else (MissingError, "")
    raise kind(
        f"no raw data of version {record.version} in git, DVC or the project{reason}",
        expected=f"{', '.join(expected) or 'its files'} as they were",
        do=f"dvc push data/{record.dataset}/raw.dvc where the model was made (a remote that lost files: "
        "docs/runbook.md#problems), delete the new folder, then try again",
    )


def _share_remotes(root: Path, folder: Path) -> None:
    """Let the clone use the project's cache and remotes, as they are now; a relative path means the project's.

    The names of remotes may have changed since the commit. DVC reads its settings as UTF-8, but its own commands write
    no path that is not ASCII.
    """
    from configobj import ConfigObj

    settings, dvc = ConfigObj(encoding="utf-8", interpolation=False), DvcSettings.of(root)
    for name, url in dvc.remotes.items():
        location = url if "://" in url else str((root / ".dvc" / url).resolve())
        settings[f'remote "{name}"'] = {"url": location}
    if (cache := dvc.cache).is_dir():
        settings["cache"] = {"dir": str(cache.resolve())}
    with suppress(FileNotFoundError):  # a project without DVC: the clone keeps the settings of its commit
        write_file(folder / ".dvc" / "config", (root / ".dvc" / "config").read_bytes())
    write_file(folder / ".dvc" / "config.local", b"".join(line + b"\n" for line in settings.write()))


def _has_files(raw: Path, expected: dict[str, Any]) -> bool:
    """Return True if the files of ``raw`` are those that the corpus was read from."""
    files = {name: raw / name for name in expected}
    return bool(files) and all(
        path.is_file() and sha256_file(path) == expected[name]["sha256"] for name, path in files.items()
    )


def _environment(workspace: Workspace, folder: Path, root: Path) -> dict[str, str]:
    """Return the environment for ``xc`` of the clone ``folder``, or else this one, on the project ``root`` in it.

    Plug-ins are found where they are here; those in the repository first in the clone.
    """
    code = folder if (folder / "xc_core").is_dir() else Path(__file__).resolve().parents[2]
    repository, paths = project_checkout(workspace.root).root, [code]
    for path in python_path():
        if repository is not None and path.resolve().is_relative_to(repository.resolve()):
            paths.append(folder / path.resolve().relative_to(repository.resolve()))
        paths.append(path)
    return {**os.environ, "XC_ROOT": str(root), "PYTHONPATH": os.pathsep.join(map(str, paths))}


def _run_xc(environment: dict[str, str], root: Path, *arguments: str) -> None:
    _run_command([sys.executable, "-m", "xc_core.cli.main", *arguments], root, environment)


def _run_command(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it prints; raise UnavailableError if it fails."""
    variables = outside_hooks() if environment is None else environment
    ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if ended.returncode:
        line = " ".join(Path(part).name if part.startswith("/") else part for part in command[:6])
        raise UnavailableError(
            f"`{line}` failing: {(ended.stderr or ended.stdout).strip()[-600:]}",
            expected="exit code 0",
            do=f"look at {folder}, which is left as it is",
        )
    return ended.stdout


def _check_equal(record: Lineage, rebuilt_project: Workspace) -> None:
    """Raise MovedError, naming the first artefact that differs, unless the model has the content of the version."""
    for stage, facts in record.chain.items():
        manifest = read_manifest(rebuilt_project.folder(stage, record.dataset, record.recipe))
        digest, do = manifest.digest(), _DIFFERS_ADVICE
        if digest != facts["digest"]:
            if any(name.endswith(_TREE_SUFFIX) for name in manifest.files):
                do = f"expect this of label trees (lexical, characters), which cannot be seeded; otherwise {do}"
            if any(other.get(fact) for other in record.artefacts.values() for fact in _NOT_TRAINED):
                do = f"expect this: the version was refreshed or had labels added; this is a training; otherwise {do}"
            raise MovedError(
                f"{stage} with another content ({digest[:12]}) than that of version {record.version}",
                expected=facts["digest"][:12],
                do=do,
            )
