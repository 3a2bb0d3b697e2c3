"""Kill servers, runs and stages at random moments, and check that everything returns to a good state without a person.

    python -m tests.soak.soak --kills 200 --minutes 300 --seed 1

A round starts the job retrain, kills one to three processes, and waits. A run that ends with a failure after its
automatic retry is started again once, as a schedule would do. After each round: the run has ended, the pool is free, no
process and no temporary file is left, and all artefacts have the bytes of an unbroken run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.conftest import TOY_CHANGES
from tests.pipelines.conftest import make_project
from tests.processes import wait_for
from tests.soak.servers import SERVERS, STAGE, TRAINER, WORKER, Servers, leftovers, victim, words
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace, run_stage

STAGES_OF: Final = ("encoder", "embeddings", "clusters", "negatives", "classifier")
"""Stages that a round runs by default; all of them with --stages."""
SETTINGS: Final = {**TOY_CHANGES, "encoder": {**TOY_CHANGES["encoder"], "epochs": 150.0}}
VICTIMS: Final = (*SERVERS, WORKER, STAGE, TRAINER)
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
    stages: tuple[str, ...]
    expected: dict[str, str]
    random: random.Random
    killed: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)

    def round(self, kills: int) -> None:
        """Train once while ``kills`` processes are killed; raise AssertionError if anything is not as it should be."""
        run = self.servers.launch("retrain", self.stages)
        for _ in range(kills):
            time.sleep(self.random.uniform(1, 14))
            self._kill(self.random.choice(VICTIMS))
            time.sleep(self.random.uniform(0, 3))
            for name in SERVERS:
                self.servers.start(name)
        wait_for(self.servers.ready, 120, "webserver")
        status = self.servers.ended(run)
        self.rounds[status] += 1
        if status != "SUCCESS":
            self._check_idle()
            again = self.servers.ended(self.servers.launch("retrain", self.stages))
            assert again == "SUCCESS", f"the run after {run} ended with {again}"
        self._check_idle()
        assert digests(self.workspace, self.stages) == self.expected, "other bytes than an unbroken run"
        forget(self.workspace)

    def _kill(self, kind: str) -> None:
        process = victim(self.servers, kind)
        if process is None:
            return
        stage = words(process)[3:5] if kind in (STAGE, TRAINER) else ""
        print(f"  kill -9 {kind} {' '.join(stage)}", flush=True)
        try:
            process.kill()
        except psutil.Error:
            return
        self.killed[kind] += 1

    def _check_idle(self) -> None:
        """Check that the pool is free and nothing is left; a command cleans up first, as every start does."""

        def free() -> bool:
            found: Any = self.servers.ask(_POOL)["instance"]["concurrencyLimit"]
            return not found["activeSlotCount"] and not found["pendingStepCount"]

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
    began = time.monotonic()
    workspace = prepared(root)
    found = Soak(workspace, Servers(root), stages, unbroken(workspace, stages), random.Random(seed))
    try:
        found.servers.start_all()
        while (left := kills - found.killed.total()) > 0 and time.monotonic() - began < seconds:
            found.round(min(left, found.random.randint(1, 3)))
            total, rounds = found.killed.total(), found.rounds.total()
            say(f"{time.monotonic() - began:.0f} s: {total} kills in {rounds} rounds, {json.dumps(found.killed)}")
    finally:
        found.servers.stop_all()
    return found


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
    print(f"kills {json.dumps(found.killed)}, rounds {json.dumps(found.rounds)}, lost 0")


if __name__ == "__main__":
    main()
