"""File locks between processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from xc_core.artifacts import writing
from xc_core.errors import BusyError, MissingError, StorageError
from xc_core.progress import QUIET_SECONDS, report

_RETRY_SECONDS: Final = 0.05


@contextlib.contextmanager
def locked(
    path: Path, activity: str, *, patience: float = 0.0, shared: bool = False, needed: bool = True
) -> Iterator[None]:
    """Hold the file lock ``path`` during the block; the system releases it when the process ends, for any reason.

    Several processes may hold it at once if all of them ask for a ``shared`` one. ``activity`` names the work in the
    error. Raises BusyError if another process still holds the lock after ``patience`` seconds, StorageError if the file
    cannot be written or, if a lock is ``needed``, if its disk has none, MissingError if its folder was moved or deleted
    while it was waited for.

    A lock holds until the end of the block, also if its folder is moved or deleted then: a process that comes later
    locks another file.
    """
    with _locked_file(path, activity, time.monotonic() + patience, fcntl.LOCK_SH if shared else fcntl.LOCK_EX,
                      needed) as stream:  # fmt: skip
        share(stream, path.parent)
        stream.seek(0)
        other_pids = [pid for pid in stream.read().split() if _is_running(pid)] if shared else []
        holders = "".join(f"{pid}\n" for pid in dict.fromkeys([*other_pids, str(os.getpid())]))
        with contextlib.suppress(OSError):  # a full or read-only disk: messages cannot name the holder of the lock
            stream.seek(0)
            stream.truncate()
            os.write(stream.fileno(), holders.encode())
        yield


def _locked_file(path: Path, activity: str, deadline: float, kind: int, needed: bool) -> TextIO:
    """Return the file of a lock, open and locked.

    If it was replaced while it was waited for, others lock the new file, so that is locked. If its folder was moved or
    deleted, it is not made again: the project may be elsewhere now.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with writing(path):
            stream = _open_lock_file(path)
        try:
            _lock(stream, activity, deadline, kind, needed)
            if _is_at(stream, path):
                return stream
        except BaseException:
            stream.close()
            raise
        stream.close()
        if not path.parent.is_dir():
            raise MissingError(
                f"no folder {path.parent} any more",
                expected=f"the lock for {activity}, which was moved or deleted while this command waited for it",
                do="run the same command again where the project is now",
            )


def _is_at(stream: TextIO, path: Path) -> bool:
    """Return True if an open file is the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _open_lock_file(path: Path) -> TextIO:
    """Open the file of a lock; without permission to write it, for reading, which is enough to lock it."""
    try:
        return path.open("a+")
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EROFS) and path.is_file():
            return path.open()
        raise


def share(stream: TextIO, folder: Path) -> None:
    """Make the file of a lock as writable as its folder, because the umask of most users would lock others out."""
    present, users = os.fstat(stream.fileno()).st_mode, folder.stat().st_mode & 0o666
    if users & ~present:
        with contextlib.suppress(OSError):  # the file of another user, or a disk without permissions
            os.fchmod(stream.fileno(), (present | users) & 0o777)


def _lock(stream: TextIO, activity: str, deadline: float, kind: int, needed: bool) -> None:
    report_at = time.monotonic() + QUIET_SECONDS
    while True:
        try:
            return fcntl.flock(stream, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            now = time.monotonic()
            if now >= deadline:
                raise BusyError(
                    f"{activity}, which {_holders(stream)} running",
                    expected="one run at a time",
                    do="wait for it to end, or stop it, then run the same command again",
                ) from error
            if now >= report_at:
                report(f"waiting for {activity}, which {_holders(stream)} running")
                report_at = math.inf
            time.sleep(_RETRY_SECONDS)
        except OSError as error:
            if not needed:
                return None
            with writing(Path(stream.name)), Path(stream.name).open("a"):  # on NFS only who may write it may lock it
                pass
            raise StorageError(
                f"a disk that gives no file locks ({error.strerror})",
                expected="locks (flock), without which two commands could write the same files",
                do="put the project on another disk, or mount this one with locks",
                where=str(stream.name),
            ) from error


def _holders(stream: TextIO) -> str:
    """Return which processes hold a lock: "process 1 is".

    The system lists those of this machine. The file of the lock has those of other machines too, but if the holder may
    not write it, it still has the number of an earlier one.
    """
    stream.seek(0)
    pids = stream.read().split()
    listed = [str(pid) for pid in lockers(Path(stream.name), "FLOCK")]
    running = listed or [pid for pid in pids if _is_running(pid)] or pids or ["unknown"]
    return f"process {running[0]} is" if len(running) == 1 else f"processes {' and '.join(running)} are"


def lockers(path: Path, kind: str) -> list[int]:
    """Return the processes with a lock of a file, of the kind FLOCK or POSIX; none if the system does not list them."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # another system than Linux
        inode = path.stat().st_ino
        rows = [line.split() for line in Path("/proc/locks").read_text("utf-8").splitlines()]
        return sorted({int(row[4]) for row in rows if row[1] == kind and row[5].endswith(f":{inode}")})
    return []


def _is_running(pid: str) -> bool:
    """Return False for a number that no process has."""
    try:
        os.kill(int(pid), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
