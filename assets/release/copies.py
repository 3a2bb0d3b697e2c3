"""Copies of registered models whose files are not on a disk of this machine: the last few, under .xc/models.

MLflow leaves a copy to its caller. A server that tries a broken version every minute would fill the disk with copies.
A process holds a lock of the copies that it reads until it ends, so that no other one deletes them.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from assets.mlflow_errors import answering
from assets.mlflow_internals import come_from, is_here
from assets.waiting import first_contact
from xc_core.artifacts import writing
from xc_core.causes import storage_error, storage_reason
from xc_core.leftovers import abandoned, claimed, drop
from xc_core.root import project_root

HOME: Final = ".xc/models"
"""Folder of the copies in a project."""
_MAX_COPIES: Final = 3
"""Copies of a model, at most: the one that answers, the next one, and the one that the gate compares them with."""
_HELD: Final[dict[Path, ExitStack]] = {}
"""The locks of this process's copies."""
_NOBODY: Final = 0
"""The process of a copy that nobody has locked: its writer may go on without it."""


def destination(uri: str, dataset: str, version: str) -> str | None:
    """Return an empty folder for a copy of a version; None if its files are here, so that MLflow copies nothing.

    The oldest copies of the model are deleted, but none that another process downloaded or holds and may still open; an
    open file outlives the deletion. Outside a project, copies go with the process. Raises StorageError.
    """
    if is_here(uri):
        return None
    home = home_of_copies() / dataset
    with writing(home):
        home.mkdir(parents=True, exist_ok=True)
    older = sorted(home.iterdir(), key=_age)
    for path in older[: max(len(older) - _MAX_COPIES + 1, 0)]:
        _HELD.pop(path, ExitStack()).close()
        if abandoned(path, _NOBODY):
            drop(path)
    with writing(home):
        folder = tempfile.mkdtemp(prefix=f"{version}-", dir=home)
    _hold(Path(folder))
    return folder


def home_of_copies() -> Path:
    """Return the folder of this process's copies."""
    root = project_root()
    return Path(_temporary_home().name) if root is None else root / HOME


def failed(copy: Path, error: Exception) -> None:
    """Delete a copy that ``error`` has ended; raise StorageError if its disk is full or refuses the write."""
    reason = storage_reason(error, copy)
    _HELD.pop(copy, ExitStack()).close()
    drop(copy)
    if reason:
        raise storage_error(reason, copy) from error


def hold(path: Path) -> None:
    """Hold a lock of the copy that ``path`` is in until this process ends; do nothing if it is in no copy."""
    root = project_root()
    if root is not None and path.is_relative_to(root / HOME):
        with suppress(OSError):  # it was deleted meanwhile
            _hold(root / HOME / Path(*path.relative_to(root / HOME).parts[:2]))


def _hold(copy: Path) -> None:
    """Hold a shared lock of a copy, and make it the youngest one, which is deleted last."""
    if copy not in _HELD:
        with ExitStack() as stack:
            stack.enter_context(claimed(copy, shared=True))
            with suppress(OSError):  # the folder of another user
                os.utime(copy)
            _HELD[copy] = stack.pop_all()


def _age(path: Path) -> int:
    """Return the time of a copy; 0 if another process has deleted it meanwhile."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


def check_answer(files: Any) -> None:
    """Raise UnavailableError if ``files`` come from the tracking server and it does not answer.

    The error names its address, and no command waits as long as it would for a large file.
    """
    import mlflow

    uri = mlflow.get_tracking_uri()
    if come_from(files, uri):
        with answering(uri), first_contact(uri):
            mlflow.MlflowClient(uri).search_experiments(max_results=1)


@cache
def _temporary_home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="xc-models-")
