"""The folders of a project: artefacts under ``data/``, state under ``.xc/``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from xc_core import artifacts, manifests
from xc_core.artifacts import Made
from xc_core.chain.context import A
from xc_core.chain.incoming import recover
from xc_core.chain.names import DATA, SETTINGS, checked_name
from xc_core.chain.params_file import ParamsFile
from xc_core.chain.registry import STAGES, versioned_stages
from xc_core.errors import MissingError, UsageError
from xc_core.leftovers import sweep
from xc_core.locks import locked
from xc_core.root import FILE, check_there, project_root

_WRITE_SECONDS: Final = 30.0
"""How long a write waits for the write of another process."""
_PROBE_SECONDS: Final = 1.0
"""How long a stage waits for a command that only checks whether one runs."""
PER_DATASET: Final = ("versions", "reports", "drift", "models", "inbox")
"""Folders of the state that have one per dataset, in which files are written."""


@dataclass(frozen=True)
class Workspace:
    """A project folder. Artefacts: data/<dataset>/<stage> and data/<dataset>/<recipe>/<stage>; state: .xc/."""

    root: Path
    data: Path = field(init=False)
    state: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.root / DATA)
        object.__setattr__(self, "state", self.root / ".xc")

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace:
        """Return the workspace of XC_ROOT, or of the nearest folder with params.yaml, from ``start`` upwards.

        Leftovers of killed commands are deleted. Raises MissingError if there is no workspace: then nothing is written.
        """
        root = project_root(start)
        if root is None:
            raise MissingError(
                f"no {FILE} in {(start or Path.cwd()).resolve()} or above it",
                expected="a command inside a project",
                do="change into the project's folder, or set XC_ROOT to it",
            )
        if not os.path.lexists(root / FILE):
            raise MissingError(
                f"no {FILE} in {root}, " + ("which is a file" if root.is_file() else "the folder that XC_ROOT names"),
                expected=f"XC_ROOT naming the folder of a project, which has a {FILE}",
                do="set XC_ROOT to that folder, or unset it and change into the folder",
            )
        return cls(root).swept()

    def swept(self) -> Workspace:
        """Delete what killed commands left where they write; finish an ingest that had begun to replace a dataset."""
        data_patterns = ("*/", "*/*/", "*/*/settings/")
        state_patterns = ("*/", "run/*/", *(f"{kind}/*/" for kind in PER_DATASET))
        subfolders = [folder for pattern in data_patterns for folder in self.data.glob(pattern)]
        subfolders += [folder for pattern in state_patterns for folder in self.state.glob(pattern)]
        subfolders += [
            Path(folder) for folder, _, _ in os.walk(self.state / "tune")
        ]  # a study has workspaces of its own
        sweep([self.root, self.data, self.state, *subfolders])
        recover(self)
        return self

    @property
    def params(self) -> ParamsFile:
        """The datasets and experiments of params.yaml."""
        return ParamsFile(self.root, self.state / "lock" / "params")

    def folder(self, stage: str, dataset: str, recipe: str | None = None) -> Path:
        """Return the folder of an artefact; ``recipe`` is ignored for a stage that runs per dataset."""
        return self._parent(stage, dataset, recipe) / stage

    def open(self, artefact: type[A], dataset: str, recipe: str | None = None) -> A:
        """Open and verify an artefact; raises MissingError, CorruptError."""
        return artefact.open(self.folder(artefact.kind, dataset, recipe))

    def settings_file(self, stage: str, dataset: str, recipe: str | None = None) -> Path:
        """Return the file of a stage's resolved settings, which DVC compares."""
        return self._parent(stage, dataset, recipe) / SETTINGS / f"{stage}.json"

    def _parent(self, stage: str, dataset: str, recipe: str | None) -> Path:
        folder = self.home(dataset)
        if STAGES[stage].scope == "dataset":
            return folder
        if recipe is None:
            raise UsageError(f"no recipe for {stage}", expected="--recipe NAME", do="name the recipe")
        return folder / checked_name("recipe", recipe)

    def home(self, dataset: str) -> Path:
        """Return the folder of a dataset: its source files, its artefacts and those of its recipes, its changelog."""
        return self.data / checked_name("dataset", dataset)

    def raw(self, dataset: str) -> Path:
        """Return the folder of a dataset's source files."""
        return self.home(dataset) / "raw"

    def present_raw(self, dataset: str) -> Path:
        """Return the folder of a dataset's source files; raise MissingError if there is none."""
        if not (folder := self.raw(dataset)).is_dir():
            raise MissingError(
                f"no folder {folder}",
                expected="the dataset's source files",
                do=f"xc ingest PATH --dataset {dataset} (or `dvc pull`, if a remote holds it)",
            )
        return folder

    def scratch(self, kind: str, stage: str, dataset: str, recipe: str | None = None) -> Path:
        """Return the place of a stage's untracked files; ``kind`` is run (checkpoints), lock or cost."""
        name = dataset if STAGES[stage].scope == "dataset" or recipe is None else f"{dataset}_{recipe}"
        return self.lock(f"{stage}@{name}") if kind == "lock" else self.state / kind / f"{stage}@{name}"

    def lock(self, name: str) -> Path:
        """Return the file of a lock of the project.

        Raises MissingError if the project was moved or deleted since the command began.
        """
        check_there(self.root)
        return self.state / "lock" / name

    def write(self, path: Path, content: str) -> None:
        """Write a small file that several processes may write at the same time.

        Raises StorageError if the disk is full or not writable.
        """
        with locked(self.lock("files"), "a write of settings or timings", patience=_WRITE_SECONDS):
            artifacts.write_file(path, content)

    def made(self, stage: str, dataset: str, recipe: str | None = None) -> Made:
        """Return how an artefact was made; an empty record if there is none or it cannot be read."""
        return artifacts.read_made(self.folder(stage, dataset, recipe))

    def digest(self, stage: str, dataset: str, recipe: str | None = None) -> str:
        """Return the digest of an artefact's content; raise MissingError if there is none."""
        return manifests.read_manifest(self.folder(stage, dataset, recipe), stage).digest()


def working(workspace: Workspace, dataset: str) -> AbstractContextManager[None]:
    """Return the shared lock of processes that make artefacts of a dataset.

    Raises BusyError while rows of the dataset are removed. It waits a moment, because a command that only checks
    whether such a process runs holds ``at_rest`` briefly.
    """
    path, activity = _makers_lock(workspace, dataset), f"a removal from the dataset {dataset}"
    return locked(path, activity, patience=_PROBE_SECONDS, shared=True)


@contextmanager
def training(workspace: Workspace, dataset: str, recipe: str) -> Iterator[None]:
    """Hold the lock of a process that declares an experiment and trains it.

    Raises BusyError while another process does, or runs a stage of it: a change of settings would discard its result.
    """
    checked_name("recipe", recipe)
    with locked(workspace.lock(f"train@{dataset}_{recipe}"), f"a training of {dataset}/{recipe}"):
        for stage in versioned_stages("experiment"):
            with locked(workspace.scratch("lock", stage.name, dataset, recipe), f"{stage.name} of {dataset}/{recipe}"):
                pass
        yield


def at_rest(workspace: Workspace, dataset: str) -> AbstractContextManager[None]:
    """Return the lock of a process that deletes artefacts of a dataset; raises BusyError while another makes one."""
    return locked(_makers_lock(workspace, dataset), f"a stage, a study or the gate of the dataset {dataset}")


def _makers_lock(workspace: Workspace, dataset: str) -> Path:
    return workspace.lock(f"makers@{dataset}")
