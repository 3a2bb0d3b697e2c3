"""The last step of an ingest: raw files, corpus and params.yaml change together, also if the process is killed between.

A record in .xc/ingest/ is written before the first change. If the process is killed, the next command completes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from xc_core import artifacts
from xc_core.causes import UNTOUCHED
from xc_core.chain.names import CHANGES
from xc_core.chain.params_file import ParamsFile
from xc_core.data.ingest import IngestConfig
from xc_core.errors import BusyError, StorageError, XCError, in_words
from xc_core.leftovers import abandoned, aside, drop, drop_all
from xc_core.locks import locked
from xc_core.params import changed, plain
from xc_core.progress import report

PREFIX: Final = "ingest"
_SCRATCH: Final = re.compile(rf"{PREFIX}-(\d+)-.+")
_PARTS: Final = ("raw", "corpus")


class ProjectFiles(Protocol):
    """What an ingest changes of a project: its folders and params.yaml. A ``Workspace`` is one."""

    @property
    def root(self) -> Path:
        """The project's folder."""

    @property
    def state(self) -> Path:
        """The folder .xc."""

    @property
    def params(self) -> ParamsFile:
        """The datasets and experiments of params.yaml."""

    def home(self, dataset: str) -> Path:
        """Return the folder of a dataset."""

    def lock(self, name: str) -> Path:
        """Return the file of a lock; raises MissingError if the project was moved or deleted."""


@dataclass(frozen=True)
class Incoming:
    """A dataset that has been read into a scratch workspace and takes its place now."""

    dataset: str
    config: dict[str, Any]
    """Settings of the dataset, as in params.yaml."""
    command: str
    """Identifies the command and its source files."""
    scratch: str
    """Name of the scratch workspace under .xc."""
    inodes: dict[str, int]
    """The new folders by name: raw and corpus, or corpus alone. An exchange leaves the old one under the same name."""

    def save(self, workspace: ProjectFiles) -> None:
        """Write the record; from now on the dataset is replaced, whatever happens to this process."""
        artifacts.write_file(_record_path(workspace, self.dataset), json.dumps(vars(self)))

    def finish(self, workspace: ProjectFiles) -> None:
        """Move the folders that are not yet moved, and declare the dataset; may be repeated. Raises StorageError."""
        try:
            self._move_into_place(workspace)
        except StorageError as error:
            expected = error.expected.replace(UNTOUCHED, f", for the rest of the change of {self.dataset}")
            raise StorageError(error.found, expected=expected, do=error.do) from error

    def _move_into_place(self, workspace: ProjectFiles) -> None:
        target, scratch_home = workspace.home(self.dataset), workspace.state / self.scratch / "data" / self.dataset
        for name, inode in self.inodes.items():
            new_folder = scratch_home / name
            if new_folder.is_dir() and new_folder.stat().st_ino == inode:
                artifacts.install(new_folder, target / name)
        for entry in (scratch_home / CHANGES).glob("*.json"):
            artifacts.write_file(target / CHANGES / entry.name, entry.read_bytes())
        workspace.params.declare_dataset(self.dataset, changed(IngestConfig(), self.config, f"datasets.{self.dataset}"))


def command(name: str, path: Path, files: list[Path], dataset: str, config: IngestConfig) -> str:
    """Return a hash that is the same if the same command is given for files that have not changed."""
    file_stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
    content = [name, str(path.resolve()), file_stats, dataset, plain(config)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def new(scratch: ProjectFiles, dataset: str, config: IngestConfig, command: str) -> Incoming:
    """Return the record of the dataset that the workspace ``scratch`` holds."""
    folder = scratch.home(dataset)
    inodes = {name: (folder / name).stat().st_ino for name in _PARTS if not (folder / name).is_symlink()}
    return Incoming(dataset, plain(config), command, scratch.root.name, inodes)


def change_lock(workspace: ProjectFiles, dataset: str) -> AbstractContextManager[None]:
    """Return the lock of the changes of a dataset; raises BusyError if another process is changing it."""
    return locked(workspace.lock(f"{PREFIX}@{dataset}"), f"a change of the dataset {dataset}")


def drop_replaced(workspace: ProjectFiles, dataset: str) -> None:
    """Delete the files that the last change of a dataset replaced; raise StorageError if that is not possible."""
    home, record = workspace.home(dataset), _read_record(_record_path(workspace, dataset))
    scratch = [workspace.state / record.scratch / "data" / dataset] if record else []
    drop_all([aside(home / name) for name in _PARTS] + scratch)


def forget(workspace: ProjectFiles, dataset: str) -> None:
    """Delete the record of an ingest that has ended."""
    drop(_record_path(workspace, dataset))


def interrupted(workspace: ProjectFiles, dataset: str, command: str) -> bool:
    """Return True if this command was stopped after it had begun to replace the dataset, which is finished by now."""
    record = _read_record(_record_path(workspace, dataset))
    return record is not None and record.command == command


def recover(workspace: ProjectFiles) -> None:
    """Finish ingests that stopped while they replaced a dataset; delete the scratch folders of all killed ones."""
    unfinished = set()  # what another process finishes now, or what cannot be finished yet
    for path in sorted((workspace.state / PREFIX).glob("*.json")):
        record = _read_record(path)
        if record is not None and _scratch_exists(workspace, record):
            try:
                with change_lock(workspace, record.dataset):
                    finish(workspace, record.dataset)
            except BusyError:
                unfinished.add(record.scratch)
            except (XCError, OSError) as error:  # it stops who changes this dataset, and nobody else
                unfinished.add(record.scratch)
                report(f"warning: the change of {record.dataset} that has begun cannot be finished: {in_words(error)}")
    for folder in workspace.state.glob(f"{PREFIX}-*"):
        match = _SCRATCH.fullmatch(folder.name)
        if match and folder.name not in unfinished and abandoned(folder, int(match[1])):
            drop(folder)


def closed(workspace: ProjectFiles) -> list[Path]:
    """Return the scratch folders of other users; those of a killed command stay until its user runs another one."""
    folders = (folder for folder in workspace.state.glob(f"{PREFIX}-*") if _SCRATCH.fullmatch(folder.name))
    return sorted(folder for folder in folders if not os.access(folder, os.R_OK))


def finish(workspace: ProjectFiles, dataset: str) -> None:
    """Finish an ingest that stopped while it replaced the dataset, if there is one. The caller holds ``alone``."""
    record = _read_record(_record_path(workspace, dataset))
    if record is not None and _scratch_exists(workspace, record):
        record.finish(workspace)
        drop(workspace.state / record.scratch)


def begun(workspace: ProjectFiles, dataset: str, scratch: Path) -> bool:
    """Return True if the ingest in the folder ``scratch`` began to replace the dataset and is not finished."""
    record = _read_record(_record_path(workspace, dataset))
    return record is not None and record.scratch == scratch.name


def _scratch_exists(workspace: ProjectFiles, record: Incoming) -> bool:
    return (workspace.state / record.scratch).is_dir()


def _record_path(workspace: ProjectFiles, dataset: str) -> Path:
    return workspace.state / PREFIX / f"{dataset}.json"


def _read_record(path: Path) -> Incoming | None:
    with suppress(OSError, ValueError, TypeError):
        return Incoming(**json.loads(path.read_text("utf-8")))
    return None
