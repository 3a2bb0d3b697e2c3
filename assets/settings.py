"""Where MLflow and Dagster keep their state: environment variables, with defaults inside the project."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlparse
from urllib.request import url2pathname

from xc_core import artifacts
from xc_core.errors import ConfigError, StorageError, bare
from xc_core.root import check_there
from xc_core.sqlite import PREFIX, sqlite_address

TRACKING_URI: Final = "MLFLOW_TRACKING_URI"
REGISTRY_URI: Final = "MLFLOW_REGISTRY_URI"
_ARTIFACTS: Final = "XC_MLFLOW_ARTIFACTS"
_DATABASE: Final = Path(".xc", "mlflow", "mlflow.db")
_LOGIN: Final = re.compile(r"(?<=://)[^/\s]\S*(?=@)")
_NO_ADDRESS: Final = re.compile(r"""['"]|[\w.-]+:\d+(/|$)""")
"""A host with a port, or quotes that a program took as part of the value."""
_IN_MEMORY: Final = re.compile(r"sqlite(\+\w+)?:(//)?(/?/?:memory:.*|/?)")
"""An address of a database that ends with the process: what a command registers there is lost."""
_SECRET: Final = re.compile(r"(?<=[?&])([^=&\s]*(?:password|passwd|token|secret|key)[^=&\s]*=)[^&\s]+", re.IGNORECASE)


def hide_secrets(text: str) -> str:
    """Return ``text`` with ``***`` in place of the login of each address and of secrets in its query."""
    return _SECRET.sub(r"\1***", _LOGIN.sub("***", text))


@dataclass(frozen=True)
class MlflowSettings:
    """Tracking URI, root folder of artifacts, and the lock file of the first connection."""

    uri: str
    artifacts: str
    lock: Path

    @property
    def shown(self) -> str:
        """The tracking URI without its login, for messages and files."""
        return hide_secrets(self.uri)

    @property
    def registry(self) -> str:
        """The address of the registry of models; MLflow itself reads this variable."""
        return given_addresses()[1] or self.uri


def mlflow_settings(root: Path) -> MlflowSettings:
    """Return the settings: MLFLOW_TRACKING_URI and XC_MLFLOW_ARTIFACTS, else sqlite and a folder under ``.xc``.

    A path of sqlite without a leading slash is relative to the project: each command may run in another folder. Both
    addresses are written into the environment as they are used: MLflow reads that of the registry there, Dagster that
    of runs. Raises ConfigError for a text that is no address, and if the path of the project cannot be part of one;
    MissingError if the project was moved or deleted since the command began.
    """
    check_there(root)  # of the first connection, too: its lock and a new database are in the project
    state = (root / _DATABASE).parent
    for variable in (TRACKING_URI, REGISTRY_URI):
        if variable in os.environ:
            os.environ[variable] = _of_project(_given(variable), root)
    uri, _ = given_addresses()
    if not uri:
        uri = sqlite_address(root / _DATABASE)
        with suppress(StorageError):  # of who may only read the project
            _ignore(state.parent)
    files = given_artifacts() or str(state / "artifacts")
    if not urlparse(files).scheme:
        files = (root.absolute() / files).as_uri()
    return MlflowSettings(uri, files, root / ".xc" / "lock" / "mlflow")


def given_addresses() -> tuple[str, str]:
    """Return the addresses of runs and of the registry that the environment names; empty for one that it does not."""
    return _given(TRACKING_URI), _given(REGISTRY_URI)


def given_artifacts() -> str:
    """Return the place of MLflow's files that the environment names; empty if it does not."""
    return _given(_ARTIFACTS)


def _given(variable: str) -> str:
    """Return the address, or path, in an environment variable; empty if there is none.

    A line break at its end, as in the file of a secret, does not count.
    """
    uri = (os.environ.get(variable) or "").strip()
    try:
        parts = urlparse(uri)
        if _NO_ADDRESS.match(uri):
            raise ValueError("quotes around it" if uri[0] in "'\"" else "no http:// before the host")
        if is_server(uri) and not parts.hostname:
            raise ValueError("no host")
        if _IN_MEMORY.fullmatch(uri):
            raise ValueError("a database in memory, which ends with each command")
    except ValueError as error:
        found = f"{variable} = {bare(hide_secrets(uri))} ({error})"
        expected = "an address such as http://host:5000 or sqlite:////absolute/path.db"
        raise ConfigError(found, expected=expected, do="fix the variable") from error
    return uri


def _of_project(uri: str, root: Path) -> str:
    """Return the address of a database, a relative path of sqlite as one in the project."""
    path = uri.removeprefix(PREFIX)
    relative = bool(path) and path != uri and not path.startswith(("/", ":", "file:"))
    return f"{sqlite_address(root.absolute())}/{path}" if relative else uri


def is_server(uri: str) -> bool:
    """Return True for the address of a tracking server, which may hand out files itself; False for a database."""
    return urlparse(uri).scheme in ("http", "https")


def local_folder(uri: str) -> Path | None:
    """Return the folder that a ``file:`` URI or an absolute path names, without symbolic links; None for others."""
    if uri.startswith("/"):
        return Path(uri).resolve()
    parts = urlparse(uri)
    return Path(url2pathname(parts.path)).resolve() if parts.scheme == "file" else None


def _ignore(state: Path) -> None:
    """Let git, and so DVC, ignore the folder of local state: DVC would read the dvc.yaml recorded with each model."""
    if not (state / ".gitignore").is_file():
        artifacts.write_file(state / ".gitignore", "*\n")


def dagster_environment(root: Path) -> dict[str, str]:
    """Return the environment Dagster's own commands need: its home, state, logs, and the project's root.

    XC_DAGSTER_HOME names another folder with a dagster.yaml than the project's, such as deploy/postgres. A relative
    path is one in the project; Dagster takes it as one in the folder of each process.
    """
    return {
        "DAGSTER_HOME": str(root / os.environ.get("XC_DAGSTER_HOME", "")),
        "XC_STATE_DIR": str(root / (os.environ.get("XC_STATE_DIR") or ".xc/dagster")),
        "XC_LOG_DIR": str(root / (os.environ.get("XC_LOG_DIR") or ".xc/dagster/logs")),
        "XC_ROOT": str(root),
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }
