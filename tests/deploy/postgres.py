"""A Postgres server for a test: on a loopback port, with a password, in a folder that is deleted afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import free_port

PASSWORD = "pl4nted/p@ss:word"
"""Has the characters that an address must escape."""
_DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Postgres:
    """A running server with the databases ``dagster`` and ``mlflow``."""

    port: int
    user: str = "xc"

    def uri(self, database: str) -> str:
        """Return the SQLAlchemy address of a database, with the password."""
        from sqlalchemy import URL

        url = URL.create("postgresql+psycopg2", self.user, PASSWORD, "127.0.0.1", self.port, database)
        return url.render_as_string(hide_password=False)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of deploy/postgres/dagster.yaml, and MLflow's."""
        return {
            "XC_POSTGRES_HOST": "127.0.0.1",
            "XC_POSTGRES_PORT": str(self.port),
            "XC_POSTGRES_USER": self.user,
            "XC_POSTGRES_PASSWORD": PASSWORD,
            "XC_POSTGRES_DB": "dagster",
        }

    def ask(self, database: str, query: str) -> list[tuple[object, ...]]:
        """Return the rows of a query, over a connection of its own."""
        import psycopg2

        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, user=self.user, password=PASSWORD, dbname=database
        )
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()


def _binaries() -> Path:
    """Return the folder of Postgres' programs; skip the test if there is none."""
    found = [Path(path).resolve().parent for path in (shutil.which("initdb"), shutil.which("postgres")) if path]
    found += sorted(_DEBIAN.glob("*/bin"), reverse=True)
    for folder in found:
        if (folder / "initdb").is_file():
            return folder
    pytest.skip("no Postgres on this machine: apt-get install postgresql")


def _other_user() -> str | None:
    """Return the user that runs the server: Postgres refuses root. None: the user of this process."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("Postgres refuses to run as root, and there is no user postgres or nobody")


@contextmanager
def running() -> Iterator[Postgres]:
    """Yield a new server; stop it and delete its folder at the end."""
    pytest.importorskip("dagster_postgres", reason="pip install -e '.[postgres]'")
    binaries, user = _binaries(), _other_user()
    # not pytest's folder: it is closed to other users
    folder = Path(tempfile.mkdtemp(prefix="xc-postgres-"))
    try:
        secret, data = folder / "password", folder / "data"
        secret.write_text(PASSWORD)
        if user is not None:
            for path in (folder, secret):
                shutil.chown(path, user)
        server = Postgres(free_port())

        def call(*command: str) -> None:
            subprocess.run(command, check=True, capture_output=True, user=user, cwd=folder, timeout=120)

        call(str(binaries / "initdb"), "-D", str(data), "-U", server.user, "-A", "scram-sha-256",
             "--pwfile", str(secret), "-E", "UTF8", "--no-sync")  # fmt: skip
        options = f"-p {server.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        control = [str(binaries / "pg_ctl"), "-D", str(data), "-w"]
        call(*control, "-l", str(folder / "log"), "-o", options, "start")
        try:
            for database in ("dagster", "mlflow"):
                server.ask("postgres", f"CREATE DATABASE {database}")
            yield server
        finally:
            call(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
