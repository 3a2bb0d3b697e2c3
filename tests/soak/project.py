"""A project in the month: servers that are started again if they end, commands as a user runs them, kills."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psutil

from tests.cli.test_forget_command import holding
from tests.conftest import TOY_CHANGES, ToyWorld
from tests.pipelines.conftest import make_repository
from tests.processes import wait_for
from tests.soak.client import post
from tests.soak.servers import AWAY, SERVING, Servers, leftovers, victim
from tests.soak.world import cut
from xc_core.chain import STAGES, Workspace
from xc_core.manifests import read_manifest

RETRAIN: Final = tuple(stage.name for stage in STAGES.values() if stage.scope == "experiment" and stage.name != "audit")
SETTINGS: Final = {**TOY_CHANGES, "encoder": {**TOY_CHANGES["encoder"], "epochs": 40.0}}
_ROOT: Final = Path(__file__).resolve().parents[2]
_ELSEWHERE: Final = (".xc/mlflow", ".xc/dagster/logs", ".dvc/cache", ".git")
"""Places that `xc forget` names as such that may still hold what is forgotten."""
_UP_SECONDS: Final = 0.5
"""A server that has ended is started again after at most this time."""


class Project:
    """An empty project at ``root``, beside a folder of data that arrive."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.seed, self.workspace, self.servers = root, seed, Workspace(root), Servers(root)
        self.random, self.faults = random.Random(seed), Counter[str]()
        self._drops, self._stop = 0, threading.Event()
        root.mkdir(parents=True)
        (root / "params.yaml").write_text("datasets: {}\nexperiments: {}\n", "utf-8")
        make_repository(root)
        shutil.copy(_ROOT / "dagster.yaml", root)

    # servers

    def start(self) -> None:
        """Start the servers of Dagster and MLflow, and look after them from now on."""
        self.servers.start_all()
        threading.Thread(target=self.servers.look_after, args=(self._stop, _UP_SECONDS), daemon=True).start()

    @property
    def ports(self) -> list[int]:
        """Ports of the processes of `xc serve`."""
        return [self.servers.ports[name] for name in self.servers.serving]

    def stop(self) -> None:
        """Kill everything."""
        self._stop.set()
        time.sleep(2 * _UP_SECONDS)
        self.servers.stop_all()

    # commands

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of `xc`."""
        return [sys.executable, "-m", "xc_core.cli.main", *arguments]

    def xc(self, *arguments: str, code: int | None = 0) -> str:
        """Run a command and return what it prints; None allows any exit code."""
        command = self.command(*arguments)
        done = subprocess.run(command, cwd=self.root, env=self.servers.environment, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert code is None or done.returncode == code, f"xc {' '.join(arguments)}: {done.returncode}\n{said}"
        return said

    def drop(self, world: ToyWorld, *, broken: bool = False) -> Path:
        """Write data to a new folder beside the project."""
        self._drops += 1
        folder = world.write(self.root.with_name("drops") / f"{self._drops:02}")
        return cut(folder) if broken else folder

    def declare(self) -> None:
        """Declare the recipe, and wait until Dagster shows it.

        A gate that measures time would decide by what else runs on the machine.
        """
        self.workspace.params.declare_experiment("toy", "ngame", "ngame", SETTINGS)
        path = self.workspace.params.path
        path.write_text(path.read_text().replace("  toy:\n", "  toy:\n    release: {max_slower: 1000.0}\n", 1))
        wait_for(lambda: "toy|ngame" in self.servers.partitions("encoder"), 120, "the partition")

    def train(self) -> None:
        """Train by the command, which drops settings that it is not given."""
        settings = [
            f"{stage}.{name}={json.dumps(value)}" for stage, own in SETTINGS.items() for name, value in own.items()
        ]
        options = [word for setting in settings for word in ("--set", setting)]
        self.xc("train", "--dataset", "toy", "--recipe", "ngame", *options)

    def restore(self) -> None:
        """Return to the files of before the last change, as the runbook says."""
        last = max((self.root / ".xc" / "versions" / "toy").iterdir())
        self.xc("ingest", str(last), "--dataset", "toy", "--replace", "--allow-loss", "1")

    # runs

    def trained(self, job: str, kill: str = "") -> None:
        """Prepare the dataset and run a job through Dagster; start it again once if a kill ended it."""
        wait_for(self.servers.ready, 120, "webserver")
        assert self.servers.ended(self.servers.launch("prepare", ("corpus", "tokens"))) == "SUCCESS"
        stages = RETRAIN if job == "retrain" else RETRAIN[1:]
        run = self.servers.launch(job, stages)
        if kill:
            time.sleep(self.random.uniform(0.0, 8.0))
            self.kill(kill)
            wait_for(self.servers.ready, 120, "webserver")
        if self.servers.ended(run) != "SUCCESS":
            assert kill, f"run {run} failed by itself"
            assert self.servers.ended(self.servers.launch(job, stages)) == "SUCCESS"

    def automatic(self, job: str, seen: dict[str, str]) -> None:
        """Wait for a run of a job that nobody starts by hand, and for its end.

        A launch may fail on a busy machine; Dagster starts such a run again, once.
        """

        def new() -> set[str]:
            with suppress(*AWAY):
                return set(self.servers.runs(job)) - set(seen)
            return set()

        wait_for(new, 400, f"a run of {job}")
        (run,) = new()
        if self.servers.ended(run) != "SUCCESS":
            wait_for(lambda: new() - {run}, 400, f"another run of {job}")
            (again,) = new() - {run}
            assert self.servers.ended(again) == "SUCCESS"

    def kill(self, name: str) -> None:
        """Kill a process of a kind as soon as there is one."""
        found: list[psutil.Process] = []

        def find() -> bool:
            process = victim(self.servers, self.random.choice(self.servers.serving) if name == SERVING else name)
            found.extend([process] if process else [])
            return bool(found)

        wait_for(find, 300, name)
        with suppress(psutil.NoSuchProcess):
            found[0].kill()
        self.faults[f"kill -9 {name}"] += 1

    # what is there

    def data(self) -> str:
        """Return the digest of the corpus, an empty string if there is none."""
        folder = self.workspace.folder("corpus", "toy")
        return read_manifest(folder).digest() if folder.is_dir() else ""

    def leftovers(self) -> list[str]:
        """Return the temporary files of writers."""
        return leftovers(self.root)

    def holding(self, *words: str) -> list[str]:
        """Return the files of the project that hold one of the words, without the places that `xc forget` names."""
        for _ in range(20):
            with suppress(FileNotFoundError):  # a server deletes a file of its own
                return [name for name in holding(self.root, *words) if not name.startswith(_ELSEWHERE)]
        raise AssertionError("files of the project vanish all the time")

    def champion(self) -> str:
        """Return the version that is champion, an empty string if there is none."""
        with self._client() as client:
            found = _alias(client, "champion")
        return str(found.version) if found else ""

    def newest(self) -> str:
        """Return the version that was registered last."""
        with self._client() as client:
            return str(max(int(one.version) for one in client.search_model_versions("name = 'xc-toy'")))

    def gate(self, version: str) -> str:
        """Return what the gate said of a version."""
        with self._client() as client:
            return str(client.get_model_version("xc-toy", version).tags.get("gate", ""))

    def champion_folder(self) -> Path:
        """Return the folder of the champion's registered files."""
        from assets.release import versions

        with self._client() as client:
            return versions.download(_alias(client, "champion"))

    def asked(self, text: str, k: int) -> list[str]:
        """Return the uids of the labels that a server gives for a text."""
        status, body = post(self.ports[0], {"text": text, "k": k, "why": False})
        assert status == 200, body
        return [label["uid"] for label in json.loads(body)["answers"][0]]

    @contextmanager
    def _client(self) -> Iterator[Any]:
        from assets.release.client import client_of

        wait_for(lambda: self.servers.answers("tracking", 0.0), 120, "tracking server")  # it may have been killed
        with (
            patch.dict(os.environ, {"MLFLOW_TRACKING_URI": self.servers.environment["MLFLOW_TRACKING_URI"]}),
            client_of(self.workspace) as client,
        ):
            yield client


def _alias(client: Any, name: str) -> Any:
    from assets.release import aliases

    return aliases.version_of(client, "xc-toy", name)
