"""Kill servers, runs and stages at random moments, and check that everything returns to a good state without a person.

    python -m tests.soak.soak --kills 200 --minutes 300 --seed 1

Two processes of `xc serve` answer a client all the while. A round starts the job retrain and exchanges the champion by
`xc rollback`. During the run processes of all kinds are killed, seconds apart: servers many times, a process of `xc
serve` while the other one answers, the run worker, a stage and a training once each. A run that ends with a failure
after its automatic retry is started again once, as a schedule would do; that run must succeed although webserver,
daemon, code server and processes of `xc serve` are killed, and a training once. After each round: the servers answer,
those of `xc serve` with the champion, all runs have ended, the pool is free, no process and no temporary file is left,
and all artefacts have the bytes of an unbroken run. At the end every answer to the client is compared with the scores
of the model that it names.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.conftest import TOY_CHANGES, make_workspace
from tests.pipelines.conftest import make_repository
from tests.processes import wait_for
from tests.soak import verdict
from tests.soak import world as data
from tests.soak.client import FAST_PACE, USUAL_PACE, Client
from tests.soak.killer import Killer
from tests.soak.project import RETRAIN
from tests.soak.questions import pool
from tests.soak.reference import Reference
from tests.soak.servers import ENDED, SERVING, STAGE, TRAINER, WORKER, Servers, kind_of, leftovers
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace, run_stage

STAGES_OF: Final = ("encoder", "embeddings", "clusters", "negatives", "classifier")
"""Stages that a round runs by default; all of them with --stages."""
SETTINGS: Final = {**TOY_CHANGES, "encoder": {**TOY_CHANGES["encoder"], "epochs": 150.0}}
_SERVED: Final = {f"{SERVING} 1": 10, f"{SERVING} 2": 10}
_FIRST: Final = {"webserver": 10, "daemon": 10, "code": 10, "tracking": 3, WORKER: 1, STAGE: 1, TRAINER: 1, **_SERVED}
"""So many times at most each process is killed during a run; a stage whose process is lost twice fails."""
_AGAIN: Final = {"webserver": 5, "daemon": 5, "code": 5, TRAINER: 1, **_SERVED}
"""The same for the run that follows one that failed, which must succeed."""
_BEFORE: Final = 40.0
"""Epochs of the encoder of the first champion."""
_UP_SECONDS: Final = 3.0
"""A server that has ended is started again after at most this time."""
_POOL: Final = '{instance{concurrencyLimit(concurrencyKey:"gpu"){activeSlotCount pendingStepCount}}}'
_ROOT: Final = Path(__file__).resolve().parents[2]


def prepared(root: Path) -> Workspace:
    """Return a project whose dataset is ready to be trained on."""
    workspace = make_workspace(root, data.first())
    make_repository(root)
    workspace.params.declare_experiment("toy", "ngame", "ngame", SETTINGS)
    shutil.copy(_ROOT / "dagster.yaml", root)
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    return workspace


def registered(workspace: Workspace, servers: Servers, texts: list[str]) -> dict[str, Reference]:
    """Make a model champion and then another, as a person does; return what they say of the texts, by digest.

    The artefacts of the second one stay.
    """
    found = {}
    for epochs in (_BEFORE, SETTINGS["encoder"]["epochs"]):
        settings = {**SETTINGS, "encoder": {**SETTINGS["encoder"], "epochs": epochs}}
        workspace.params.declare_experiment("toy", "ngame", "ngame", settings)
        for stage in RETRAIN:
            run_stage(workspace, stage, "toy", "ngame")
        done = xc(servers, "promote", "--dataset", "toy", "--recipe", "ngame", "--reason", "to be served")
        assert done.returncode == 0, done.stdout + done.stderr
        reference = Reference.of(workspace.folder("model", "toy", "ngame"), texts)
        found[reference.digest] = reference
    return found


def xc(servers: Servers, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the project."""
    command = [sys.executable, "-m", "xc_core.cli.main", *arguments]
    return subprocess.run(
        command, cwd=servers.root, env=servers.environment, check=False, capture_output=True, text=True
    )


def digests(workspace: Workspace, stages: tuple[str, ...]) -> dict[str, str]:
    """Return the digest of each artefact after verifying its bytes."""
    return {stage: artifacts.verify(workspace.folder(stage, "toy", "ngame")).digest() for stage in stages}


def forget(workspace: Workspace) -> None:
    """Delete the artefacts and checkpoints of the experiment."""
    for stage in STAGES.values():
        if stage.scope == "experiment":
            shutil.rmtree(workspace.folder(stage.name, "toy", "ngame"), ignore_errors=True)
    shutil.rmtree(workspace.state / "run", ignore_errors=True)


@dataclass
class Soak:
    """A project under fire."""

    workspace: Workspace
    servers: Servers
    killer: Killer
    client: Client
    stages: tuple[str, ...]
    references: dict[str, Reference] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    """Digests of the artefacts of an unbroken run."""
    rounds: Counter[str] = field(default_factory=Counter)
    restarted: int = 0
    """Runs that the sensor ``lost_retries`` started so far."""

    def begin(self) -> None:
        """Register the models that are served and serve them; start the client."""
        self.references = registered(self.workspace, self.servers, self.client.texts)
        self.expected = digests(self.workspace, self.stages)
        forget(self.workspace)
        self.client.ports = self.servers.serve(2)
        self.client.start()

    def round(self) -> None:
        """Train once while processes are killed; raise AssertionError if anything is not as it should be."""
        began = time.time()
        run = self.servers.launch("retrain", self.stages)
        with self.killer.at_work(_FIRST), self._exchanged() as champion:
            status = self.servers.ended(run)
        self.rounds[status] += 1
        self._check_all(champion)
        if status != "SUCCESS":
            again = self.servers.launch("retrain", self.stages)
            with self.killer.at_work(_AGAIN):
                found = self.servers.ended(again)
            assert found == "SUCCESS", f"run {again} after {run} ended with {found}"
            self._check_all(champion)
        assert digests(self.workspace, self.stages) == self.expected, "other bytes than an unbroken run"
        self._note_failures(began)
        self.restarted = len(self.servers.started_by("lost_retries"))
        forget(self.workspace)

    @contextmanager
    def _exchanged(self) -> Iterator[list[str]]:
        """Make the previous version champion again beside the block; the list has it after the block."""
        champion: list[str] = []

        def rolled_back() -> bool:
            said = xc(self.servers, "rollback", "--dataset", "toy").stdout
            champion.extend(re.findall(r"champion is version (\d+) again", said))
            return bool(champion)

        def exchange() -> None:
            self.client.pace = FAST_PACE
            wait_for(rolled_back, 300, "xc rollback")  # the tracking server may be away
            wait_for(lambda: self.client.versions() == set(champion), 240, f"answers of version {champion}")
            self.client.pace = USUAL_PACE

        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(exchange)
            yield champion
            done.result()

    def _note_failures(self, began: float) -> None:
        """Note the seconds from the kill of a run worker until its run was marked as failed."""
        failed = [end for status, end in self.servers.ends() if status == "FAILURE"]
        for when in self.killer.times[WORKER]:
            if when > began and (later := [end - when for end in failed if end > when]):
                self.killer.away[WORKER].append(min(later))

    def _check_all(self, champion: list[str]) -> None:
        """Check that all servers are back, the champion is served without an error, and all is idle."""
        wait_for(self.killer.all_back, 120, f"the servers {list(self.killer.gone)}")
        wait_for(lambda: self.client.versions() == set(champion), 120, f"answers of version {champion}")
        assert self.client.errors == []
        self.check_idle()

    def check_idle(self) -> None:
        """Check that no run or stage goes on, the pool is free and nothing is left.

        A command cleans up first, as every start does.
        """

        def free() -> bool:
            found: Any = self.servers.ask(_POOL)["instance"]["concurrencyLimit"]
            return not found["activeSlotCount"] and not found["pendingStepCount"]

        wait_for(lambda: all(status in ENDED for status, _ in self.servers.ends()), 300, "end of all runs")
        wait_for(free, 60, "pool gpu")
        wait_for(lambda: not self.servers.processes("assets.worker"), 180, "end of all stages")
        xc(self.servers, "status")
        # a follow-up of an earlier run, such as compare, may be writing
        wait_for(lambda: not leftovers(self.servers.root), 60, "end of all writers")


def soak(
    root: Path, kills: int, seconds: float, seed: int, stages: tuple[str, ...], say: Callable[[str], None] = print
) -> Soak:
    """Kill ``kills`` processes, or as many as fit into ``seconds``; return the counts."""
    began, stop = time.monotonic(), threading.Event()
    workspace, servers = prepared(root), Servers(root)
    killer = Killer(servers, kills, random.Random(seed), say)
    found = Soak(workspace, servers, killer, Client([], pool(seed), seed), stages)
    keeper = threading.Thread(target=servers.look_after, args=(stop, _UP_SECONDS), daemon=True)
    try:
        servers.start_all()
        keeper.start()
        found.begin()
        while killer.left > 0 and time.monotonic() - began < seconds:
            found.round()
            total, rounds = killer.killed.total(), found.rounds.total()
            say(f"{time.monotonic() - began:.0f} s: {total} kills in {rounds} rounds, {json.dumps(killer.killed)}")
    finally:
        found.client.stop()
        stop.set()
        keeper.join()
        servers.stop_all()
    return found


def away(killer: Killer) -> dict[str, str]:
    """Return how often each server answered again after a kill, and the seconds of that, median and longest.

    For a run worker it is the time until its run was marked as failed.
    """
    found: dict[str, list[float]] = {}
    for name, seconds in sorted(killer.away.items()):
        found.setdefault(kind_of(name), []).extend(seconds)
    return {
        kind: f"{len(seconds)}: {statistics.median(seconds):.0f} and {max(seconds):.0f} s"
        for kind, seconds in found.items()
        if seconds
    }


def figures_of(found: Soak) -> dict[str, Any]:
    """Return what a soak shows."""
    killed = Counter(kind_of(name) for name in found.killer.killed.elements())
    return {
        "kills": found.killer.killed.total(),
        "killed": dict(killed),
        "answered again, median and longest": away(found.killer),
        "rounds, by the end of their first run": dict(found.rounds),
        "lost": 0,  # one that is lost ends the soak
        "runs started by the sensor lost_retries": found.restarted,
        **verdict.figures(found.client, found.references),
    }


def main() -> None:
    """Parse the command line and run the soak."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=300)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "big"))
    parser.add_argument("--stages", default=",".join(STAGES_OF), help="stages of a round, separated by commas")
    parser.add_argument("--root", type=Path, help="a folder that does not exist; a temporary one by default")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    began = time.monotonic()
    root = asked.root or Path(tempfile.mkdtemp(prefix="xc-soak-")) / "project"
    stages = tuple(asked.stages.split(","))
    found = soak(root, asked.kills, asked.minutes * 60, asked.seed, stages, lambda line: print(line, flush=True))
    figures = figures_of(found)
    print(json.dumps({**figures, "seconds": round(time.monotonic() - began)}, indent=1))
    sys.exit(bool(figures["errors"] or figures["mixed answers"]))


if __name__ == "__main__":
    main()
