"""``xc lineage --rebuild``: make a registered version again, from code, settings and data as they were.

A trained version is trained again. A refreshed version, or one with new labels, starts from the version whose rows it
kept. That one is made again first. Each version has a clone of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from assets.release.ancestry import TOKENS, Lineage
from assets.release.origin import ARTEFACTS, DIFF
from xc_core.artifacts import remove, sha256_file, write_file
from xc_core.chain import Workspace
from xc_core.chain.changelog import kept_versions
from xc_core.chain.kept import REFRESHED, TRAINED
from xc_core.chain.registry import STAGES
from xc_core.data.corpus import Corpus
from xc_core.environment import python_path
from xc_core.errors import MissingError, MovedError, RefusedError, UnavailableError, UsageError
from xc_core.git import outside_hooks, project_checkout
from xc_core.lifecycle.dvc_settings import DvcSettings
from xc_core.manifests import Manifest, read_manifest
from xc_core.progress import report
from xc_core.visible import listed

_DIFFERS_ADVICE: Final = "compare environment.txt of the version's MLflow run, and the machine, with this one"
_TREE_FILES: Final = ("/forest.safetensors", ".cbor")
"""Ends of the names of label trees."""
_SEEDED_TREES: Final = Path("xc_core", "scores", "trees", "growing.py")
"""A file of code whose label trees are seeded. Older ones are omikuji's, and two fits of the same texts differ."""
_DVC: Final = (sys.executable, "-m", "dvc")
_NEW_LABELS: Final = "new-labels.parquet"
"""File in the clone of a version, with the labels that the next version added to it."""


@dataclass(frozen=True)
class _Clone:
    """A version, and the clone in which it is made again."""

    record: Lineage
    folder: Path
    project: Workspace
    environment: dict[str, str]
    """The environment for ``xc``, with the code of the version; ``run`` adds the project."""

    def run(self, *arguments: str, project: Workspace | None = None) -> None:
        """Run a command of ``xc`` for the dataset and recipe, in this project or with this code in another one."""
        root = (project or self.project).root
        names = ("--dataset", self.record.dataset, "--recipe", self.record.recipe)
        _run_xc({**self.environment, "XC_ROOT": str(root)}, root, *arguments, *names)

    @property
    def seeds_trees(self) -> bool:
        """Whether the code of the version makes the same label trees again."""
        return (_code(self.folder) / _SEEDED_TREES).exists()

    def artefact(self, stage: str) -> Path:
        """Return the folder of a stage's artefact."""
        return self.project.folder(stage, self.record.dataset, self.record.recipe)


def rebuilt(workspace: Workspace, versions: Sequence[Lineage], folder: Path) -> None:
    """Make the last of ``versions`` again in ``folder``; each version kept rows of the one before it.

    The earlier ones are made in folders beside it, which are deleted when the next one has taken over its rows. Raises
    MissingError for an origin that is not recorded or data that is nowhere, RefusedError for a clone that would write
    elsewhere, UsageError for a folder that exists, MovedError for another result.
    """
    folders = [*(folder.with_name(f"{folder.name}-version-{earlier.version}") for earlier in versions[:-1]), folder]
    for record, own in zip(versions, folders, strict=True):
        _check_recorded(record)
        if own.exists():
            raise UsageError(f"{own}, which exists", expected="a new folder", do="name another folder, or delete it")
    earlier: _Clone | None = None
    for position, (record, own) in enumerate(zip(versions, folders, strict=True)):
        clone = _prepared(workspace, record, own)
        if earlier is not None:
            _take_over(earlier, clone)
            remove(earlier.folder)
        _run_stages(clone, _needed(versions, position), keep=earlier is not None, final=record is versions[-1])
        earlier = clone


def _check_recorded(record: Lineage) -> None:
    """Raise MissingError unless the origin of a version has what a rebuild needs."""
    if "params.yaml" not in record.files or "corpus" not in record.artefacts or not record.recipe:
        raise MissingError(
            f"no recorded origin of version {record.version}",
            expected="a version that xc promote or the asset model registered, and the files of its MLflow run",
            do="restore MLflow's files if they were moved or deleted, or promote a newer version (0.1.0 "
            "recorded a commit only, and files with secrets are left out)",
        )


def _needed(versions: Sequence[Lineage], position: int) -> list[str]:
    """Return the stages that a version has to run; a refresh after it needs its rows and their encoder alone."""
    stages = list(versions[position].chain)
    refreshed = position + 1 < len(versions) and not versions[position + 1].has_new_labels
    return stages[: stages.index(REFRESHED) + 1] if refreshed else stages


def _prepared(workspace: Workspace, record: Lineage, folder: Path) -> _Clone:
    """Return a clone with the code, the settings and the raw data of a version."""
    project = _checked_out(workspace, record, folder)
    for name, path in record.files.items():
        if name not in (ARTEFACTS, DIFF, "environment.txt"):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, project / name)
    _check_inside(folder, project / "data" / record.dataset)
    _fetch_raw(workspace, record, project)
    return _Clone(record, folder, Workspace(project), _environment(workspace, folder))


def _run_stages(clone: _Clone, stages: list[str], *, keep: bool, final: bool) -> None:
    """Run stages of a version, and compare their results with its record.

    With ``keep``, trained parts stay as they are, and so do the artefacts to which labels were added. Results of label
    trees of old code are compared only of the ``final`` version: they always differ, and the next step needs them.
    """
    for stage in stages:
        if not (keep and clone.record.extends(stage)):
            clone.run("run", stage, *(["--refresh"] if keep else []))
            report(f"lineage: {stage} of version {clone.record.version} made again")
    _check_equal(clone, stages if final or clone.seeds_trees else _seeded(clone, stages))


def _seeded(clone: _Clone, stages: Sequence[str]) -> list[str]:
    """Return the stages of a version whose results depend on no label tree; report the others."""
    random: list[str] = []
    for stage in stages:
        has_trees = _has_trees(read_manifest(clone.artefact(stage)))
        if has_trees or any(dep in random for dep in STAGES[stage].deps):
            random.append(stage)
    if random:
        report(
            f"lineage: {listed(random)} of version {clone.record.version} not compared: label trees of its code "
            "cannot be seeded, so these always differ"
        )
    return [stage for stage in stages if stage not in random]


def _take_over(earlier: _Clone, clone: _Clone) -> None:
    """Move what a version kept of the earlier one into its clone; before, add its labels if it was made so."""
    kept = [*TRAINED, TOKENS] if clone.record.extends(TOKENS) else list(TRAINED)
    if clone.record.has_new_labels:
        _add_labels(earlier, clone)
        kept = [stage for stage in clone.record.chain if stage != "corpus"]
    for stage in kept:
        if earlier.artefact(stage).is_dir():
            clone.artefact(stage).parent.mkdir(parents=True, exist_ok=True)
            earlier.artefact(stage).rename(clone.artefact(stage))


def _add_labels(earlier: _Clone, clone: _Clone) -> None:
    """Add the labels that a version has and the earlier one lacks to the earlier model, in the same steps."""
    clone.run("run", "corpus")
    before, after = (Corpus.open(one.artefact("corpus")).table("labels") for one in (earlier, clone))
    path = earlier.project.root / _NEW_LABELS
    new_labels = after.select("uid", "title", "content").join(before, on="uid", how="anti", maintain_order="left")
    ends = [number - len(before) for number in clone.record.label_counts(earlier.record)[:-1]]
    for start, end in pairwise([0, *ends, len(new_labels)]):
        new_labels[start:end].write_parquet(path)
        clone.run("add-labels", str(path), project=earlier.project)
    report(f"lineage: labels of version {clone.record.version} added to the model of version {earlier.record.version}")


def _checked_out(workspace: Workspace, record: Lineage, folder: Path) -> Path:
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
    for source in (workspace.raw(record.dataset), *kept_versions(workspace, record.dataset)):
        if _has_files(source, expected):
            if pull_error:
                report(f"lineage: DVC cannot fetch the raw data, which is copied from {source}: its files are the same")
            remove(raw)  # files of another version, which may be links to DVC's cache, are neither read nor written to
            raw.mkdir(parents=True)
            for name in expected:
                shutil.copyfile(source / name, raw / name)
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


def _code(folder: Path) -> Path:
    """Return where the code of the clone ``folder`` is: in the clone, or else here."""
    return folder if (folder / "xc_core").is_dir() else Path(__file__).resolve().parents[2]


def _environment(workspace: Workspace, folder: Path) -> dict[str, str]:
    """Return the environment for ``xc`` of the clone ``folder``, or else this one, without a project.

    Plug-ins are found where they are here; those in the repository first in the clone.
    """
    repository, paths = project_checkout(workspace.root).root, [_code(folder)]
    for path in python_path():
        if repository is not None and path.resolve().is_relative_to(repository.resolve()):
            paths.append(folder / path.resolve().relative_to(repository.resolve()))
        paths.append(path)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


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


def _check_equal(clone: _Clone, stages: Sequence[str]) -> None:
    """Raise MovedError, naming the first artefact that differs, unless ``stages`` have the content of the version."""
    record = clone.record
    for stage in stages:
        manifest = read_manifest(clone.artefact(stage))
        digest, expected, do = manifest.digest(), record.artefacts[stage]["digest"], _DIFFERS_ADVICE
        if digest != expected:
            if _has_trees(manifest) and not clone.seeds_trees:
                do = f"expect this of label trees (lexical, characters) of this code, which cannot be seeded, or {do}"
            raise MovedError(
                f"{stage} with another content ({digest[:12]}) than that of version {record.version}",
                expected=expected[:12],
                do=do,
            )


def _has_trees(manifest: Manifest) -> bool:
    """Return True if an artefact has label trees."""
    return any(name.endswith(_TREE_FILES) for name in manifest.files)
