"""A month in the life of a project: data arrive ten times, models are trained, judged, served; faults strike.

    python -m tests.soak.month --seed 1

Two servers answer with the champion all the while, and a client checks every answer against the model that it names.
Each day below says what happens; after it the dataset, the champion and the artefacts must be what they should be.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.conftest import ToyWorld
from tests.processes import wait_for
from tests.soak import faults, verdict
from tests.soak import world as data
from tests.soak.client import FAST_PACE, USUAL_PACE, Client
from tests.soak.project import Project
from tests.soak.questions import pool
from tests.soak.reference import Reference
from tests.soak.servers import SERVING, STAGE, TRAINER, WORKER
from xc_core.artifacts import MADE


class Month:
    """A project, its servers and its client, from the first day to the last."""

    def __init__(self, project: Project, say: Callable[[str], None]) -> None:
        self.project, self.say = project, say
        self.client = Client([], pool(project.seed), project.seed)
        self.references: dict[str, Reference] = {}
        self.arrivals = self.checks = 0

    def run(self) -> None:
        """Live through the month; raise AssertionError if anything is not as it should be."""
        for day, (name, happens) in enumerate(DAYS, start=1):
            started = time.monotonic()
            happens(self)
            self.good()
            self.say(f"day {day:2}, {name}: {time.monotonic() - started:.0f} s, champion {self.project.champion()}")

    def good(self) -> None:
        """Check what holds at the end of every day."""
        project = self.project
        wait_for(lambda: not project.servers.processes("assets.worker"), 180, "end of all stages")
        project.xc("status", code=None)  # every command removes what a killed one left
        wait_for(lambda: not project.leftovers(), 60, "end of all writers")
        assert self.client.errors == []
        self.checks += 3
        if self.client.ports:
            self._champion_is_served()

    def _champion_is_served(self) -> None:
        """Wait until both servers answer with the champion, and keep its answers as a reference."""
        version = self.project.champion()
        self.client.pace = FAST_PACE
        wait_for(lambda: self.client.versions() == {version}, 120, f"answers of version {version}")
        self.client.pace = USUAL_PACE
        found = Reference.of(self.project.champion_folder(), self.client.texts)
        self.references[found.digest] = found
        self.checks += 1

    def arrive(self, world: ToyWorld, *command: str, code: int = 0, killed: bool = False) -> None:
        """Let data arrive by a command, whose file is broken if 65 is expected; a refused one must change nothing."""
        self.arrivals += 1
        before = self.project.data()
        whole = (*command, str(self.project.drop(world, broken=code == 65)), "--dataset", "toy")
        if killed:
            faults.killed_command(self.project, *whole)
        self.project.xc(*whole, code=code)
        assert (self.project.data() == before) == bool(code), f"{command}: the dataset"
        self.checks += 1

    def retrain(self, job: str = "retrain", *, kill: str = "") -> None:
        """Prepare and train through Dagster, with a kill at a random moment; there must be a new champion."""
        before = self.project.champion()
        with self.fast_once_packed():
            self.project.trained(job, kill)
        assert self.project.champion() != before
        self.checks += 1

    @contextmanager
    def fast_once_packed(self) -> Iterator[None]:
        """Let the client ask fast once the block has packed a model: a swap follows within seconds."""
        packed, over = self.project.workspace.folder("model", "toy", "ngame") / MADE, threading.Event()
        before = _changed_at(packed)

        def watch() -> None:
            while not over.wait(0.1):
                if _changed_at(packed) not in (before, 0):
                    self.client.pace = FAST_PACE
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def train(self, *, refused: bool = False) -> None:
        """Train and promote by commands, as a person does; the gate must decide as expected."""
        self.project.train()
        self.client.pace = FAST_PACE
        self.project.xc("promote", "--dataset", "toy", "--recipe", "ngame", code=77 if refused else 0)
        self.checks += 1


def _changed_at(path: Path) -> int:
    """Return when a file was changed, 0 if there is none."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


# the days


def first_data(month: Month) -> None:
    """A new dataset is trained and served by two processes."""
    project = month.project
    month.arrive(data.first(), "ingest")
    project.declare()
    month.retrain()
    month.client.ports = project.servers.serve(2)
    month.client.start()


def new_documents(month: Month) -> None:
    """Forty documents more; a stage is killed while they are trained on."""
    month.arrive(data.world(data.documents(range(300, 340))), "update")
    month.retrain(kill=STAGE)


def a_new_topic(month: Month) -> None:
    """Documents about a label that nobody knew; the run worker is killed."""
    month.arrive(data.world(data.about_the_new_topic(), data.ALL_TOPICS), "update")
    month.retrain(kill=WORKER)


def broken_data(month: Month) -> None:
    """A file that was cut off, a dataset without most documents, a mistyped setting: refused, and nothing changes."""
    project = month.project
    month.arrive(data.world(data.documents(range(300, 310))), "update", code=65)
    project.faults["broken data"] += 1
    month.arrive(ToyWorld.make(documents=12, tests=4), "ingest", "--replace", code=77)
    project.faults["data without most documents"] += 1
    faults.mistyped_setting(project)


def corrected_texts(month: Month) -> None:
    """An update is killed and given again; daemon and tracking server are killed; a refresh follows."""
    month.arrive(data.world(data.documents(range(300, 320), " corrected")), "update", killed=True)
    month.project.kill("daemon")
    month.project.kill("tracking")
    month.retrain("refresh")


def poisoned_data(month: Month) -> None:
    """Train documents that copy test documents: a check stops the run. The files of before are restored."""
    project, before = month.project, month.project.data()
    month.arrive(data.poisoned(), "update")
    assert project.servers.ended(project.servers.launch("prepare", ("corpus", "tokens"))) == "FAILURE"
    project.faults["poisoned data"] += 1
    project.kill("code")
    project.restore()
    assert project.data() == before
    month.train()
    month.checks += 2


def worse_data(month: Month) -> None:
    """Labels in disorder: the gate refuses. A person overrules it, regrets it and rolls back."""
    project, good = month.project, month.project.champion()
    month.arrive(data.disordered(range(240), project.random), "update")
    month.train(refused=True)
    assert project.champion() == good
    project.faults["data that make the model worse"] += 1
    refused = project.newest()
    assert project.gate(refused) == "refused"
    promote = ("promote", "--dataset", "toy", "--version", refused)
    project.xc(*promote, code=77)
    month.client.pace = FAST_PACE
    project.xc(*promote, "--reason", "to see it served")
    assert project.champion() == refused
    month.good()
    month.client.pace = FAST_PACE
    project.xc("rollback", "--dataset", "toy")
    assert project.champion() == good
    project.restore()
    month.train()
    assert project.champion() == good, "the same data give the same model"
    month.checks += 5


def inbox(month: Month) -> None:
    """A whole dataset is copied into the inbox; sensors do the rest. Webserver and a serving process are killed."""
    project, before = month.project, month.project.champion()
    month.arrivals += 1
    seen = project.servers.runs("refresh")
    faults.into_inbox(project, data.whole())
    project.kill("webserver")
    project.kill(SERVING)
    with month.fast_once_packed():
        project.automatic("refresh", seen)
    assert project.champion() != before
    month.checks += 1


def trouble(month: Month) -> None:
    """Requests are garbage, a run is cancelled, the tracking server hangs, a trainer is killed, an artefact damaged."""
    project = month.project
    month.arrive(data.world(data.documents(range(400, 430))), "update")
    faults.garbage(project)
    faults.cancelled_run(project)
    faults.hanging_tracking(project)
    month.retrain(kill=TRAINER)
    faults.damaged_artefact(project)


def a_damaged_champion(month: Month) -> None:
    """The registered files are damaged while they are served; they are repaired from the packed model."""
    before = month.project.champion()
    month.client.pace = FAST_PACE
    faults.damaged_champion(month.project)
    assert month.project.champion() != before
    month.checks += 1


def labels_without_documents(month: Month) -> None:
    """Two labels get scores without training; a question finds one of them."""
    project = month.project
    faults.added_labels(project, data.ADDED)
    month.client.pace = FAST_PACE
    project.xc("promote", "--dataset", "toy", "--recipe", "ngame")
    month.good()
    uid, text = data.ADDED[0]
    assert uid in project.asked(text, k=5)
    month.checks += 1


def a_forgotten_document(month: Month) -> None:
    """A document is forgotten: no file of the project has it. The next model is trained without it."""
    project = month.project
    uid, word = f"D{data.FORGOTTEN:04}", f"n{data.FORGOTTEN}"
    assert project.holding(uid, word)
    project.xc("forget", "--dataset", "toy", "--document", uid)
    assert project.holding(uid, word) == []
    month.train()
    month.checks += 2


DAYS: Final[tuple[tuple[str, Callable[[Month], None]], ...]] = (
    ("first data", first_data),
    ("new documents", new_documents),
    ("a new topic", a_new_topic),
    ("broken data", broken_data),
    ("corrected texts", corrected_texts),
    ("poisoned data", poisoned_data),
    ("worse data", worse_data),
    ("a damaged champion", a_damaged_champion),
    ("labels without documents", labels_without_documents),
    ("a forgotten document", a_forgotten_document),
    ("inbox", inbox),
    ("trouble", trouble),
)


def figures(month: Month) -> dict[str, Any]:
    """Return what a month shows."""
    return {
        "arrivals": month.arrivals,
        **verdict.figures(month.client, month.references),
        "faults": dict(month.project.faults),
        "kinds of faults": len(month.project.faults),
        "checks that held": month.checks,  # one that fails ends the month
    }


def month(root: Path, seed: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Live through a month in a new folder; return the figures. Raises AssertionError if anything is lost."""
    project = Project(root, seed)
    lived = Month(project, say)
    try:
        project.start()
        lived.run()
        lived.client.stop()
        return figures(lived)
    finally:
        lived.client.stop()
        project.stop()


def main() -> None:
    """Parse the command line and live through a month."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "big"))
    parser.add_argument("--root", type=Path, help="a folder that does not exist; a temporary one by default")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    root, began = asked.root or Path(tempfile.mkdtemp(prefix="xc-month-")) / "project", time.monotonic()
    found = month(root, asked.seed, lambda line: print(line, flush=True))
    print(json.dumps({**found, "seconds": round(time.monotonic() - began)}, indent=1))
    sys.exit(bool(found["errors"] or found["mixed answers"]))


if __name__ == "__main__":
    main()
