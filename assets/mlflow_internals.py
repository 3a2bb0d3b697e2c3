"""What the project uses of MLflow beyond its documented interface; another release may change it without notice.

Its tables in a database, its stores of files, and the files of a registered model. Its errors are in ``mlflow_errors``.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xc_core.sqlite import sqlite_file

READ_MARK: Final = "registered_model_meta"
"""File that MLflow writes into the folder of a version when it is read."""
_ALIAS: Final = """\
SELECT alias.version, tag.value FROM registered_model_aliases AS alias LEFT JOIN model_version_tags AS tag
ON tag.name = alias.name AND tag.version = alias.version AND tag.key = 'bundle' WHERE alias.name = ? AND alias.alias = ?
"""


@dataclass(frozen=True)
class Alias:
    """The version that an alias points at."""

    version: int
    digest: str | None
    """Digest of the packed model that it was registered with; None if it has no such tag."""


def alias_in_sqlite(uri: str, name: str, alias: str) -> Alias | None:
    """Return the version that an alias points at, read from MLflow's own sqlite file without importing MLflow.

    None if the registry is of another kind, has no such alias, or has another layout than this version of MLflow.
    """
    path = sqlite_file(uri)
    if path is None or not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1)) as database:
            ((version, digest),) = database.execute(_ALIAS, (name, alias)).fetchall()
            return Alias(int(version), digest)
    except (sqlite3.Error, ValueError, TypeError):  # no alias, or a version that is no number
        return None


def make_database(uri: str) -> None:
    """Make the tables of a new database.

    MLflow writes the place of its default experiment, a folder of the present one, into an SQL text: a path with both
    kinds of quotes would be an error of syntax, an address is none.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(uri, Path("mlruns").absolute().as_uri())  # type: ignore[no-untyped-call]


def limit_tries(tries: int) -> None:
    """Let MLflow try to connect to a database so many times, without a traceback in the log of each."""
    from mlflow.store.db import utils

    logging.getLogger(utils.__name__).setLevel(logging.CRITICAL)
    utils.MAX_RETRY_COUNT = tries


def files_of(uri: str) -> Any:
    """Return MLflow's access to the files of a registered version.

    ``mlflow.artifacts`` also writes a file into the folder, which the user who asks may not be allowed to.
    """
    from mlflow.store.artifact.models_artifact_repo import ModelsArtifactRepository

    access: Any = ModelsArtifactRepository(uri)
    while isinstance(access, ModelsArtifactRepository):
        access = access.repo
    return access


def is_here(uri: str) -> bool:
    """Return True if the files of a registered version are in a folder of this machine."""
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    return isinstance(files_of(uri), LocalArtifactRepository)


def come_from(files: Any, uri: str) -> bool:
    """Return True if files come from the tracking server ``uri``."""
    from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

    return isinstance(files, MlflowArtifactsRepository) and files.artifact_uri.startswith(uri)


def delete_files(location: str) -> None:
    """Delete the files at a location, wherever MLflow keeps them."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    get_artifact_repository(location).delete_artifacts()  # type: ignore[no-untyped-call]


def bundle_folder(folder: Path) -> Path:
    """Return the folder of the packed model in the folder of a version."""
    from ruamel.yaml import YAML

    content = YAML(typ="safe").load((folder / "MLmodel").read_text("utf-8"))
    return folder / "artifacts" / Path(content["flavors"]["python_function"]["artifacts"]["bundle"]["path"]).name
