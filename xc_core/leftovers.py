"""Temporary files and folders of writers: their names, and the deletion of those whose process was killed.

A writer holds a lock on what it builds. The system releases the lock when the process ends, for any reason, so what
nobody holds is left over. This works between containers that share a disk, too, whose process ids mean nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import psutil

from xc_core.causes import owners, storage_error, storage_reason
from xc_core.errors import StorageError

_NAME: Final = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)-[0-9a-f]{8}\.tmp")
"""Names that ``work`` gives. A user may have a file such as .notes.2026.tmp."""
_CLAIM_SECONDS: Final = 1.0
"""Seconds that a claim waits for its lock at most."""
_CLOCK_SECONDS: Final = 1.0
_BUILDING: Final[set[Path]] = set()
"""Paths that this process is building: on a disk without locks there is no other record of it."""


def work(path: Path) -> Path:
    """Return a temporary name for building ``path``, which no other writer has: another container may have our pid."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")


@contextlib.contextmanager
def scratch(path: Path, mode: int = 0o777) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``path``; if this process is killed, the next command deletes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = work(path)
    folder.mkdir(mode)
    try:
        with claimed(folder):
            yield folder
    finally:
        drop(folder)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield an empty folder of this user among the system's temporary files; those of killed commands are deleted.

    Raises StorageError, with its path, if it is full: the error of a write to an open file names no file.
    """
    base = Path(tempfile.gettempdir(), "xc")
    sweep([base.parent], base.name)
    with scratch(base, 0o700) as folder:
        try:
            yield folder
        except OSError as error:
            if error.filename is None and (reason := storage_reason(error, folder)):
                raise storage_error(reason, folder) from error
            raise


@contextlib.contextmanager
def claimed(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a temporary file or folder, if its disk has locks; several readers may hold a ``shared`` one.

    It waits a moment, because a process that checks whether the lock is held (``abandoned``) takes it briefly.
    """
    descriptor = os.open(path, os.O_RDONLY)
    _BUILDING.add(path)
    try:
        deadline = time.monotonic() + _CLAIM_SECONDS
        while not _try_lock(descriptor, shared=shared) and time.monotonic() < deadline:
            time.sleep(_CLAIM_SECONDS / 100)
        yield
    finally:
        _BUILDING.discard(path)
        os.close(descriptor)


def _try_lock(descriptor: int, *, shared: bool) -> bool:
    """Lock an open file; return False if another process holds its lock, True on a disk without locks."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno != errno.EWOULDBLOCK
    return True


def abandoned(path: Path, pid: int) -> bool:
    """Return True if nobody builds ``path``: no process holds its lock, and its writer ``pid`` does not run here."""
    if path in _BUILDING:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # another user's pipe would be waited for
    except OSError:
        return False
    try:
        return _try_lock(descriptor, shared=False) and not _writer_runs(pid, path)  # without locks the process decides
    finally:
        os.close(descriptor)


def _writer_runs(pid: int, path: Path) -> bool:
    """Return True if the writer may be about to lock ``path``."""
    return pid != os.getpid() and process_of(pid, _change_time(path) + _CLOCK_SECONDS) is not None


def process_of(pid: int, before: float) -> psutil.Process | None:
    """Return the process ``pid`` if it runs and was started before a moment; a younger one has another task."""
    try:
        process = psutil.Process(pid)
        alive = process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= before
    except psutil.Error:
        return None
    return process if alive else None


def _change_time(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def aside(path: Path) -> Path:
    """Return where the folder ``path`` is while a new one takes its place, if the two cannot be exchanged."""
    return path.with_name(f".{path.name}.old")


def remove_leftovers(path: Path) -> None:
    """Delete what killed writers of ``path`` left; undo an exchange that stopped after the old folder was renamed."""
    old = aside(path)
    if old.exists() and not path.exists():
        old.rename(path)
    drop(old)
    sweep([path.parent], path.name)


def sweep(folders: Iterable[Path], name: str = "") -> list[Path]:
    """Delete the leftovers of killed writers in ``folders``, of ``name`` only if given; return what was deleted.

    Folders that cannot be read are left out: a command that only reads needs no permission to clean up.
    """
    deleted = []
    for folder in folders:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                match = _NAME.fullmatch(entry.name)
                if match and name in ("", match["name"]) and abandoned(Path(entry), int(match["pid"])):
                    drop(Path(entry))
                    deleted.append(Path(entry))
    return deleted


def drop(path: Path) -> None:
    """Delete a folder or file as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def drop_all(paths: Iterable[Path]) -> None:
    """Delete folders and files; raise StorageError, which names the first one that stays, if one cannot be deleted."""
    paths = list(paths)
    for path in paths:
        drop(path)
    if remaining := next((path for path in paths if os.path.lexists(path)), None):
        raise StorageError(
            f"{remaining}, which cannot be deleted",
            expected="permission to delete the files in it",
            do=f"fix the permissions ({owners(remaining)}), then run the same command again",
        )
