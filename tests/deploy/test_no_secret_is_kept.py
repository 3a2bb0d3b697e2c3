"""Secrets of the environment are in no file, log, message or argument after a run that succeeds and one that fails."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import TOY_CHANGES
from tests.deploy.searched import forms, found_in, holds
from tests.pipelines.conftest import make_project
from tests.pipelines.test_alerts import Webhook
from tests.processes import wait_for
from tests.soak.servers import Servers
from xc_core.chain import STAGES, run_stage

ROOT = Path(__file__).resolve().parents[2]
CHAIN = ("fusion", "evaluation", "audit", "model")
"""The stages that run through Dagster; those before them run in the test's own process, which is quicker."""
SECRETS = {
    "login of MLflow": "".join(("mlfl0w", "-Secret-", "41d9")),
    "password of MLflow": "".join(("mlfl0w", "-Header-", "52e8")),
    "token of the webhook": "".join(("w3bhook", "-Secret-", "63f7")),
    "key of the store": "".join(("AKIA", "PLANTED", "74A6")),
    "secret of the store": "".join(("s3/store", "+Secret/", "85b5")),
    "password of Postgres": "".join(("p0stgres", "-Secret-", "96c4")),
}
"""In pieces: a run records what differs from the last commit, and this file may."""
_RESOURCES = (
    '{instance{info} allTopLevelResourceDetailsOrError(repositorySelector:{repositoryName:"__repository__",'
    'repositoryLocationName:"xc"}){... on ResourceDetailsList{results{name configuredValues{key value type}}}}}'
)


class SecretServers(Servers):
    """The servers of a project, with a secret in every variable that may hold one."""

    webhook: str

    @property
    def environment(self) -> dict[str, str]:
        port, login = self.ports["tracking"], SECRETS["login of MLflow"]
        return {
            **super().environment,
            "MLFLOW_TRACKING_URI": f"http://somebody:{login}@127.0.0.1:{port}",
            "MLFLOW_TRACKING_USERNAME": "somebody",
            "MLFLOW_TRACKING_PASSWORD": SECRETS["password of MLflow"],
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
            "XC_ALERT_WEBHOOK": f"{self.webhook}/{SECRETS['token of the webhook']}",
            "AWS_ACCESS_KEY_ID": SECRETS["key of the store"],
            "AWS_SECRET_ACCESS_KEY": SECRETS["secret of the store"],
            "XC_POSTGRES_PASSWORD": SECRETS["password of Postgres"],
            "TMPDIR": str(self.root / "tmp"),
        }

    def arguments(self) -> bytes:
        """Return the arguments of all processes of the project, which other users of the machine can read."""
        seen = []
        for process in self.processes():
            with suppress(psutil.Error):  # it has ended meanwhile
                seen += process.cmdline()
        return "\n".join(seen).encode()


def test_the_search_finds_secrets_wherever_they_are_put(tmp_path: Path) -> None:
    secret = SECRETS["secret of the store"]
    hidden = {
        "plain.log": f"key={secret}\n".encode(),
        "quoted.txt": b"http://me:s3%2Fstore%2B" + b"Secret%2F85b5@host",
        "packed.json.gz": gzip.compress(secret.encode()),
    }
    for shift in range(3):
        hidden[f"header{shift}"] = forms("x" * shift + secret + "yz")[2]
    for name, content in hidden.items():
        (tmp_path / "deep" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "deep" / name).write_bytes(content)
    with closing(sqlite3.connect(tmp_path / "pages.db", isolation_level=None)) as database:
        database.execute("PRAGMA page_size = 512")
        database.execute("CREATE TABLE events (body TEXT)")
        for length in range(480, 520):  # some of them are cut by the end of a page
            database.execute("INSERT INTO events VALUES (?)", ("-" * length + secret,))
    (tmp_path / "clean.txt").write_text("s3/store")
    expected = [f"it: {name}" for name in sorted(["pages.db", *(f"deep/{name}" for name in hidden)])]
    assert found_in(tmp_path, {"it": secret, "other": SECRETS["login of MLflow"]}) == expected


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SecretServers, Webhook]]:
    """The servers of a toy project, and what the webhook is sent."""
    workspace, webhook = make_project(tmp_path), Webhook()
    workspace.params.declare_experiment("toy", "ngame", "ngame", TOY_CHANGES)
    (tmp_path / "dagster.yaml").write_bytes((ROOT / "dagster.yaml").read_bytes())
    (tmp_path / "tmp").mkdir()
    made = SecretServers(tmp_path)
    made.webhook = f"http://127.0.0.1:{webhook.server.server_port}"
    with monkeypatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        for stage in tuple(STAGES)[: tuple(STAGES).index(CHAIN[0])]:
            run_stage(workspace, stage, "toy", "ngame")
    try:
        made.start_all()
        yield made, webhook
    finally:
        made.stop_all()
        webhook.server.shutdown()
        webhook.server.server_close()


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.filterwarnings("ignore")
def test_no_secret_is_kept_by_a_whole_pipeline_nor_by_a_failure(servers: tuple[SecretServers, Webhook]) -> None:
    made, webhook = servers
    looked_for = {name: forms(secret) for name, secret in SECRETS.items()}
    arguments = [made.arguments()]
    assert ended(made, CHAIN, arguments) == "SUCCESS", (made.root / "daemon.log").read_text()[-2000:]
    shown = json.dumps(made.ask(_RESOURCES))
    assert "MLFLOW_TRACKING_URI" in shown, "the resource was asked for"

    tracking = made.running["tracking"]  # a failure that has an address to tell
    os.killpg(tracking.pid, signal.SIGKILL)  # its workers too
    tracking.wait()
    assert ended(made, ("model",), arguments) == "FAILURE"
    wait_for(lambda: webhook.texts, 180, "alert")
    said = [run_xc(made, *command) for command in (["doctor"], ["status"], ["promote", "--dataset", "toy"])]

    assert any("***@127.0.0.1" in text for text in [*webhook.texts, *said]), "the address is in use, without its login"
    everything = "\n".join([*webhook.texts, *said, shown]).encode()
    assert holds(everything, looked_for) == []
    assert holds(b"\n".join(arguments), looked_for) == []
    made.stop_all()
    assert found_in(made.root, SECRETS) == []


def ended(servers: SecretServers, stages: tuple[str, ...], arguments: list[bytes]) -> str:
    """Run stages through Dagster; return how the run ended. Meanwhile the arguments of processes are collected."""
    run = servers.launch("retrain", stages)

    def state() -> Any:
        arguments.append(servers.arguments())
        found = servers.run(run)[0]
        return found if found in ("SUCCESS", "FAILURE") else None

    wait_for(state, 900, "run")
    return servers.run(run)[0]


def run_xc(servers: SecretServers, *arguments: str) -> str:
    """Return what ``xc`` prints."""
    command = [sys.executable, "-m", "xc_core.cli.main", *arguments]
    done = subprocess.run(command, cwd=servers.root, env=servers.environment, capture_output=True, text=True)
    return done.stdout + done.stderr
