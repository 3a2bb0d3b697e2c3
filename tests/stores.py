"""MLflow's databases on sqlite: tables take 3 s of processor time, so the first one makes them, and others copy it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from typing import Any, Final

from mlflow.store.db import utils

_MAKE: Final = utils._initialize_tables
_REVISION: Final = utils._get_latest_schema_revision
"""Imports all of MLflow's migrations, each time that a store is opened."""
_made: list[sqlite3.Connection] = []
"""A database in memory with all tables and no rows of anybody, once there is one."""


def install() -> None:
    """Let databases of this process be copies of the first one."""
    utils._initialize_tables = _initialised
    utils._get_latest_schema_revision = _revision


@cache
def _revision() -> Any:
    return _REVISION()


def _initialised(engine: Any) -> None:
    if engine.dialect.name != "sqlite":
        _MAKE(engine)
    elif _made:
        with closing(sqlite3.connect(engine.url.database)) as target:
            _made[0].backup(target)
    else:
        _MAKE(engine)
        _made.append(sqlite3.connect(":memory:", check_same_thread=False))
        with closing(sqlite3.connect(engine.url.database)) as source:
            source.backup(_made[0])
