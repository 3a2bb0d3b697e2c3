"""Processes that train together, for tests: trainings of a small table or encoder, losses and rows as JSON.

They are forked, because each import of torch takes seconds; see ``run``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests import forks
from tests.processes import free_port
from tests.train.conftest import make_small
from xc_core.classifiers import BiasConfig
from xc_core.data.labels import LabelMatrix
from xc_core.devices import CPU
from xc_core.distributed import World, joined
from xc_core.encoders import EncoderConfig, build_encoder
from xc_core.recipes import find_recipe
from xc_core.sampling import Documents, Importance, Mined, Random
from xc_core.seeds import generator
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierTask, TableData, table_task
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task
from xc_core.train.heads import ByBoth, ByRow
from xc_core.train.loop import Plan, fit

ROOT = Path(__file__).parents[2]
LABELS = 41  # no multiple of 2 or 4: processes have different numbers of labels
MINED = Mined(positives=1, share=True, hard=2, search=4, search_in="rows")
SAMPLED = Importance(positives=0, hard=3, uniform=8, search_in="rows")
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "triplet": ("ngame", {}, {}),
    "triplet, averaged": ("ngame", {"average": 0.5, "dropout": 0.2}, {"weight_decay": 0.1}),
    "softmax, bias": ("unidec", {"negatives": MINED, "bias": BiasConfig(lr=0.1)}, {}),
    "softmax, bias, some documents at a time": ("unidec", {"negatives": MINED, "bias": BiasConfig(lr=0.1)}, {}),
    "all labels": ("renee", {"average": 0.3}, {}),
    "all labels, bias": ("renee", {"bias": BiasConfig(lr=0.1)}, {"optimiser": "adagrad"}),
    "sampled labels": ("astra", {"negatives": SAMPLED}, {"storage": "mapped"}),
}
"""Recipes of M4, with changes, and changes of its table. A recipe without M4 has the loss, negatives and rows of M1."""
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "M1 of ngame": ("ngame", {}),
    "M1 of ngame, GradCache": ("ngame", {"scorer": {"cache": True}}),
    "M1 of ngame, all in passes": ("ngame", {"cache": True, "scorer": {"cache": True}}),
    "M1 of house": ("house", {}),
    "M1 of unidec": ("unidec", {}),
    "M1 of astra": ("astra", {}),
    "M1 of astra, in passes": ("astra", {"cache": True}),
    "M1 of unidec, all in passes": ("unidec", {"cache": True, "scorer": {"cache": True}}),
}
"""Recipes of M1, with changes."""


def table(case: str, world: World) -> ClassifierTask:
    """Return the training of a case on random vectors."""
    recipe, changes, rows = CASES[case]
    random = generator(0, "ranks")
    truth = LabelMatrix.from_pairs(np.repeat(np.arange(96), 2), random.integers(0, LABELS, 192), (96, LABELS))
    doc_ND, rows_LD = (random.standard_normal((n, 12)).astype(np.float32) for n in (96, LABELS))
    doc_ND /= np.linalg.norm(doc_ND, axis=1, keepdims=True)
    settings, joint = find_recipe(recipe).classifier, find_recipe(recipe).encoder
    if not settings.epochs:
        assert isinstance(joint.scorer, ByRow | ByBoth)
        loss = joint.scorer.loss if isinstance(joint.scorer, ByBoth) else joint.loss
        settings = replace(settings, loss=loss, negatives=joint.negatives, table=joint.scorer.rows)
    settings = replace(
        settings, order=Random(batch_size=16), epochs=2.0, table=replace(settings.table, **rows), **changes
    )
    task = table_task(settings, TableData(doc_ND, rows_LD, rows_LD, Documents(truth)), CPU, world)
    if case.endswith("some documents at a time"):
        task.head.cells = 150  # 16 documents x about 30 labels: parts of 5
    return task


def encoder(case: str, world: World) -> EncoderTask:
    """Return M1 of a recipe on the small corpus, with a small encoder."""
    small = make_small(45)
    recipe, changes = ENCODERS[case]
    settings = find_recipe(recipe).changed({"encoder": changes}).encoder
    shape = EncoderConfig(name="bag", width=16, precision="fp32", heads=settings.encoder.heads, tokens_per_pass=24)
    settings = replace(settings, encoder=shape, order=replace(settings.order, batch_size=9))
    make = EncoderData.with_label_texts if settings.augment else EncoderData
    data = make(small.documents, small.labels, small.rows_N, small.truth)
    return encoder_task(settings, build_encoder(shape, small.vocabulary, 0), data, world)


def results(task: ClassifierTask | EncoderTask) -> dict[str, Any]:
    """Return what a training gives, as lists."""
    if isinstance(task, ClassifierTask):
        return {"rows": task.head.released().tolist(), "searched": task.head.vectors().tolist()}
    return {name: value.tolist() for name, value in task.tensors().items() if name.startswith(("encoder/", "bank"))}


def trained(folder: Path, case: str, world: World, end: int | None = None) -> dict[str, Any]:
    """Train a case with a checkpoint after every reading of losses, which is every second step."""
    task: Any = table(case, world) if case in CASES else encoder(case, world)
    step, steps = task.step, []

    def until(docs_B: Any, number: int, *more: Any) -> Any:
        if number == end:
            os.kill(os.getpid(), signal.SIGKILL)
        steps.append(number)
        return step(docs_B, number, *more)

    task.step = until
    combine = task.head.combined if case in CASES else list
    plan = Plan(epochs=2.0, warmup=0.1, checkpoint_seconds=-1, read_every=2, combine=combine)
    history = fit(task, plan, Checkpoints(folder / "run", case, world))
    return {"began": steps[0], "losses": history.losses, **results(task)}


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it wrote."""

    code: int
    out: str
    err: str


def run(size: int, folder: Path, cases: Iterable[str], end: int = -1) -> list[Ended]:
    """Train the ``cases`` in ``size`` processes; the second one kills itself before the step ``end``."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = forks.run("tests.train.ranks:main", size, folder, end, *cases, env=environment)
    assert not done.returncode, done.stderr
    return [
        Ended(code, *((folder / f"{rank}.{kind}").read_text() for kind in ("out", "err")))
        for rank, code in enumerate(json.loads(done.stdout))
    ]


def rank_main(rank: int, folder: Path, cases: list[str], end: int) -> None:
    """Train the cases as one of the processes, and print what each gave."""
    for kind, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / f"{rank}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    with joined("a test") as world:
        dying = end if end >= 0 and rank == 1 else None
        found = {case: trained(folder / case, case, world, dying) for case in cases}
    print(json.dumps(found), flush=True)


def main() -> None:
    """Fork the processes under the environment of torchrun, and print their exit codes."""
    size, folder, end, *cases = sys.argv[1:]
    os.environ |= {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(target=rank_main, args=(rank, Path(folder), cases, int(end)), daemon=True)
        for rank in range(int(size))
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(250)
    print(json.dumps([process.exitcode for process in ranks]))
