"""Addresses of sqlite files, as SQLAlchemy reads them for MLflow, Dagster and Optuna."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
from pathlib import Path
from typing import Final

from xc_core import locks
from xc_core.errors import ConfigError, bare

PREFIX: Final = "sqlite:///"
_MISREAD: Final = re.compile(r"\?|%[0-9a-fA-F]{2}")
"""What an address reads as the end of the path, or as another character."""


def sqlite_address(file: Path) -> str:
    """Return the address of a file; raise ConfigError if its path cannot be written as one."""
    if match := _MISREAD.search(str(file)):
        raise ConfigError(
            f"{bare(match[0])!r} in the path {bare(str(file), 400)}, where an address of sqlite means another file",
            expected="a path without ? and without % before two digits or letters from a to f",
            do="move or rename the folder",
        )
    return f"{PREFIX}{file}"


def sqlite_file(address: str) -> Path | None:
    """Return the file of a database at an absolute path; None for another database or a server."""
    path = address.removeprefix(PREFIX).partition("?")[0]
    return Path(path) if address.startswith(PREFIX) and path.startswith("/") else None


def without_locks(folder: Path) -> bool:
    """Return True if the disk of a folder gives no locks, as some network disks; sqlite calls its files locked then."""
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
    return False


def lockers(file: Path | None) -> str:
    """Return the other processes that have locked a file, in words; empty if there are none, or if nobody can tell."""
    all_pids = [] if file is None else locks.lockers(file, "POSIX")
    pids = [str(pid) for pid in all_pids if pid != os.getpid()]
    return f"process {' and '.join(pids)}" if pids else ""
