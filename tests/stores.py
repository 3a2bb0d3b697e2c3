"""Databases of MLflow and Dagster on sqlite, made as fast as copies of earlier ones.

The tables of MLflow take 3 s of processor time: the first database makes them, and others copy it. Both libraries
import all their migrations each time that a database is opened: here they are imported once.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, Final

from alembic.config import Config
from alembic.script import ScriptDirectory
from mlflow.store.db import utils

_MAKE: Final = utils._initialize_tables
_READ: Final = ScriptDirectory.from_config
_read: dict[tuple[str | None, str | None], ScriptDirectory] = {}
"""The migrations of a folder, by their place; nothing writes to them."""
_made: list[sqlite3.Connection] = []
"""A database in memory with all tables and no rows of anybody, once there is one."""


def install() -> None:
    """Let MLflow's databases of this process be copies of the first one, and migrations be imported once."""
    utils._initialize_tables = _initialised
    ScriptDirectory.from_config = _migrations


def _migrations(config: Config) -> ScriptDirectory:
    place = (config.get_main_option("script_location"), config.get_main_option("version_locations"))
    if place not in _read:
        _read[place] = _READ(config)
    return _read[place]


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
