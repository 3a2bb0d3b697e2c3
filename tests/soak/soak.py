"""Kill servers, runs and stages at random moments, and check that everything returns to a good state without a person.

    python -m tests.soak.soak --kills 200 --minutes 300 --seed 1

A round starts the job retrain. While it runs, processes of all kinds are killed, seconds apart: servers many times,
the run worker, a stage and a training once each. A run that ends with a failure after its automatic retry is started
again once, as a schedule would do; that run must succeed although webserver, daemon and code server are killed, and a
training once. After each round: the servers answer, all runs have ended, the pool is free, no process and no temporary
file is left, and all artefacts have the bytes of an unbroken run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.conftest import TOY_CHANGES
from tests.pipelines.conftest import make_project
from tests.processes import wait_for
from tests.soak.killer import Killer
from tests.soak.servers import ENDED, STAGE, TRAINER, WORKER, Servers, leftovers
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace, run_stage

STAGES_OF: Final = ("encoder", "embeddings", "clusters", "negatives", "classifier")
"""Stages that a round runs by default; all of them with --stages."""
SETTINGS: Final = {**TOY_CHANGES, "encoder": {**TOY_CHANGES["encoder"], "epochs": 150.0}}
_FIRST: Final = {"webserver": 10, "daemon": 10, "code": 10, "tracking": 3, WORKER: 1, STAGE: 1, TRAINER: 1}
"""So many times at most each process is killed during a run; a stage whose process is lost twice fails."""
_AGAIN: Final = {"webserver": 5, "daemon": 5, "code": 5, TRAINER: 1}
"""The same for the run that follows one that failed, which must succeed."""
_UP_SECONDS: Final = 3.0
"""A server that has ended is started again after at most this time."""
_POOL: Final = '{instance{concurrencyLimit(concurrencyKey:"gpu"){activeSlotCount pendingStepCount}}}'
_ROOT: Final = Path(__file__).resolve().parents[2]


def prepared(root: Path) -> Workspace:
    """Return a project with the toy world, whose dataset is ready to be trained on."""
    workspace = make_project(root)
    workspace.params.declare_experiment("toy", "ngame", "ngame", SETTINGS)
    shutil.copy(_ROOT / "dagster.yaml", root)
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    return workspace


def unbroken(workspace: Workspace, stages: tuple[str, ...]) -> dict[str, str]:
    """Run the stages without a kill; return the digests, and delete what was made."""
    for stage in stages:
        run_stage(workspace, stage, "toy", "ngame")
    found = digests(workspace, stages)
    forget(workspace)
    return found


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
    stages: tuple[str, ...]
    expected: dict[str, str]
    rounds: Counter[str] = field(default_factory=Counter)
    restarted: int = 0
    """Runs that the sensor ``lost_retries`` started so far."""

    def round(self) -> None:
        """Train once while processes are killed; raise AssertionError if anything is not as it should be."""
        began = time.time()
        run = self.servers.launch("retrain", self.stages)
        with self.killer.at_work(_FIRST):
            status = self.servers.ended(run)
        self.rounds[status] += 1
        self.check_idle()
        if status != "SUCCESS":
            again = self.servers.launch("retrain", self.stages)
            with self.killer.at_work(_AGAIN):
                found = self.servers.ended(again)
            assert found == "SUCCESS", f"run {again} after {run} ended with {found}"
            self.check_idle()
        assert digests(self.workspace, self.stages) == self.expected, "other bytes than an unbroken run"
        self._note_failures(began)
        self.restarted = len(self.servers.started_by("lost_retries"))
        forget(self.workspace)

    def _note_failures(self, began: float) -> None:
        """Note the seconds from the kill of a run worker until its run was marked as failed."""
        failed = [end for status, end in self.servers.ends() if status == "FAILURE"]
        for when in self.killer.times[WORKER]:
            if when > began and (later := [end - when for end in failed if end > when]):
                self.killer.away[WORKER].append(min(later))

    def check_idle(self) -> None:
        """Check that all servers are back, the pool is free and nothing is left.

        A command cleans up first, as every start does.
        """
        wait_for(self.killer.all_back, 120, f"the servers {list(self.killer.gone)}")

        def free() -> bool:
            found: Any = self.servers.ask(_POOL)["instance"]["concurrencyLimit"]
            return not found["activeSlotCount"] and not found["pendingStepCount"]

        wait_for(lambda: all(status in ENDED for status, _ in self.servers.ends()), 300, "end of all runs")
        wait_for(free, 60, "pool gpu")
        wait_for(lambda: not self.servers.processes("assets.worker"), 180, "end of all stages")
        command = [sys.executable, "-m", "xc_core.cli.main", "status"]
        subprocess.run(command, cwd=self.servers.root, env=self.servers.environment, check=False, capture_output=True)
        # a follow-up of an earlier run, such as compare, may be writing
        wait_for(lambda: not leftovers(self.servers.root), 60, "end of all writers")


def soak(
    root: Path, kills: int, seconds: float, seed: int, stages: tuple[str, ...], say: Callable[[str], None] = print
) -> Soak:
    """Kill ``kills`` processes, or as many as fit into ``seconds``; return the counts."""
    began, stop = time.monotonic(), threading.Event()
    workspace, servers = prepared(root), Servers(root)
    killer = Killer(servers, kills, random.Random(seed), say)
    found = Soak(workspace, servers, killer, stages, unbroken(workspace, stages))
    keeper = threading.Thread(target=servers.look_after, args=(stop, _UP_SECONDS), daemon=True)
    try:
        servers.start_all()
        keeper.start()
        while killer.left > 0 and time.monotonic() - began < seconds:
            found.round()
            total, rounds = killer.killed.total(), found.rounds.total()
            say(f"{time.monotonic() - began:.0f} s: {total} kills in {rounds} rounds, {json.dumps(killer.killed)}")
    finally:
        stop.set()
        keeper.join()
        servers.stop_all()
    return found


def away(killer: Killer) -> dict[str, str]:
    """Return how often each server answered again after a kill, and the seconds of that, median and longest.

    For a run worker it is the time until its run was marked as failed.
    """
    return {
        kind: f"{len(found)}: {statistics.median(found):.0f} and {max(found):.0f} s"
        for kind, found in sorted(killer.away.items())
        if found
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
    root = asked.root or Path(tempfile.mkdtemp(prefix="xc-soak-")) / "project"
    stages = tuple(asked.stages.split(","))
    found = soak(root, asked.kills, asked.minutes * 60, asked.seed, stages, lambda line: print(line, flush=True))
    print(f"away, median and longest: {json.dumps(away(found.killer), indent=1)}")
    print(f"kills {json.dumps(found.killer.killed)}, rounds {json.dumps(found.rounds)}, lost 0")
    print(f"runs started by the sensor lost_retries: {found.restarted}")


if __name__ == "__main__":
    main()
