"""MLflow's files on the disk: a new sqlite database is made whole, and what was written is there after a power cut."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from assets.mlflow_internals import make_database
from xc_core.artifacts import sync, writing
from xc_core.causes import storage_error, storage_reason
from xc_core.errors import ConfigError
from xc_core.leftovers import remove_leftovers, scratch
from xc_core.sqlite import sqlite_address, sqlite_file


def unmade(*uris: str) -> list[Path]:
    """Return the databases that are files and not there yet: whoever asks MLflow makes them."""
    return [file for file in dict.fromkeys(map(sqlite_file, uris)) if file and not file.exists()]


def made(*uris: str) -> None:
    """Make the databases that are files and not there yet; raise StorageError if their disk refuses that.

    MLflow makes the tables in place, in many steps. It neither uses nor completes a database that a kill or a full disk
    has left half made.
    """
    for file in (link.resolve() for link in unmade(*uris)):  # a link stays one
        with writing(file), suppress(ConfigError):  # of a path that an address cannot name: MLflow makes another file
            sqlite_address(file)
            remove_leftovers(file)
            with scratch(file) as folder:
                new = folder / file.name
                make_database(sqlite_address(new))
                if not file.exists():
                    new.rename(file)


def synced(path: Path) -> None:
    """Write a file or folder to the disk, unless its disk cannot say so; raise StorageError if that fails."""
    try:
        sync(path)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
            raise storage_error(storage_reason(error, path), path) from error
