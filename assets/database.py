"""A new sqlite database of MLflow: made beside its place, and moved there when it has all tables."""

from __future__ import annotations

from contextlib import suppress

from xc_core.artifacts import writing
from xc_core.errors import ConfigError
from xc_core.leftovers import remove_leftovers, scratch
from xc_core.sqlite import sqlite_address, sqlite_file


def made(uri: str) -> None:
    """Make the database of ``uri`` if it is a file that is not there; raise StorageError if its disk refuses that.

    MLflow makes the tables in place, in many steps. It neither uses nor completes a database that a kill or a full disk
    has left half made.
    """
    import mlflow

    file = sqlite_file(uri)
    if file is None or file.exists():
        return
    with writing(file), suppress(ConfigError):  # of a path that an address cannot name: MLflow makes another file
        sqlite_address(file)
        remove_leftovers(file)
        with scratch(file) as folder:
            new = folder / file.name
            mlflow.MlflowClient(sqlite_address(new)).search_experiments(max_results=1)
            if not file.exists():
                new.rename(file)
