"""The Dagster instance of a project, ready for runs; says what is wrong with its settings or its database."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import dagster as dg
from sqlalchemy.exc import SQLAlchemyError

from assets import cards, partitions
from assets.dagster_internals import errors_of_postgres, size_pool
from assets.settings import hide_secrets
from xc_core.causes import storage_error, storage_reason
from xc_core.chain.workspace import Workspace
from xc_core.errors import ConfigError, UnavailableError, bare, first_line
from xc_core.outside import text_of, yaml_of


@contextmanager
def ready(workspace: Workspace) -> Iterator[dg.DagsterInstance]:
    """Yield the instance of DAGSTER_HOME, with the partitions of params.yaml and a place per GPU in the pool.

    Raises ConfigError for settings that Dagster refuses or does not find; UnavailableError or StorageError for a
    database that refuses, in the block too.
    """
    if (unread := unread_settings(Path(os.environ["DAGSTER_HOME"]))) is not None:
        raise unread
    with _answering(), ExitStack() as stack:
        with _explaining():
            instance = stack.enter_context(dg.DagsterInstance.get())
            partitions.sync(instance, workspace)
            size_pool(instance, cards.POOL, cards.places())
        yield instance


def unread_settings(home: Path) -> ConfigError | None:
    """Return an error if Dagster may overlook the settings in ``home``: it takes the path as a pattern of names.

    It would keep its state elsewhere, not wait for a place in a pool, and not try lost runs again.
    """
    if glob.escape(str(home)) == str(home):
        return None
    return ConfigError(
        f"{bare(str(home), 200)}, a path with *, ? or [, which Dagster takes as a pattern to look for dagster.yaml",
        expected="a path without these characters",
        do="rename the folder, or set XC_DAGSTER_HOME to another folder with a copy of dagster.yaml",
    )


@contextmanager
def _explaining() -> Iterator[None]:
    """Turn an error of Dagster's settings in the block into a ConfigError."""
    file = _settings_file()
    with suppress(FileNotFoundError):
        yaml_of(text_of(file), str(file))
    try:
        yield
    except dg.DagsterError as error:
        problems = error.errors if isinstance(error, dg.DagsterInvalidConfigError) else []
        messages = [problem.message for problem in problems] or [str(error)]
        reason = bare(hide_secrets("; ".join(messages)), 300)
        raise ConfigError(
            f"{file} that Dagster does not accept: {reason}",
            expected="settings of a Dagster instance, in the project or in the folder that XC_DAGSTER_HOME names",
            do="fix the file, or XC_DAGSTER_HOME and the other variables that it reads",
        ) from error


@contextmanager
def _answering() -> Iterator[None]:
    """Turn an error of Dagster's database in the block into an UnavailableError, or a StorageError of its disk."""
    database_errors: tuple[type[Exception], ...] = (SQLAlchemyError, *errors_of_postgres())
    try:
        yield
    except database_errors as error:
        state = Path(os.environ["XC_STATE_DIR"])
        if reason := storage_reason(error, state):
            raise storage_error(reason, state) from None
        raise UnavailableError(
            f"no answer from Dagster's database ({hide_secrets(first_line(error))})",
            expected=f"the database of `storage` in {_settings_file()}, or whole sqlite files in {state}",
            do="start the database; for a damaged file, stop xc ui, then restore the file or delete it and its history",
        ) from None  # the cause has the address with its login


def _settings_file() -> Path:
    return Path(os.environ["DAGSTER_HOME"]) / "dagster.yaml"
