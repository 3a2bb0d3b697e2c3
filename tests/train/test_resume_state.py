"""M4 with a loss or negatives that have state: a resumed training equals the unbroken one, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from xc_core.classifiers import TableConfig
from xc_core.data.labels import LabelMatrix
from xc_core.losses import AugmentReduce, Loss, NoiseContrastive
from xc_core.sampling import Documents, Importance, Mined, Negatives, Random, Tree, Uniform
from xc_core.seeds import generator
from xc_core.shapes import I64
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierSettings, ClassifierTask, TableData, table_task
from xc_core.train.loop import Plan, fit

LABELS, DOCUMENTS, WIDTH, EPOCHS, BATCHES = 12, 60, 8, 3, 5
ETA = AugmentReduce(temperature=0.2)
CASES: dict[str, tuple[Loss, Negatives]] = {
    "eta": (ETA, Uniform(positives=0, draws=3)),
    "eta and a sample of all labels": (ETA, Importance(positives=0, hard=2, uniform=4, search_in="rows")),
    "eta and a search under way": (
        ETA,
        Mined(positives=2, hard=2, search=4, ahead=1, warmup_epochs=2, search_in="rows"),
    ),
    "a tree": (NoiseContrastive(temperature=0.1), Tree(positives=0, width=3)),
}


def make(case: str) -> ClassifierTask:
    loss, negatives = CASES[case]
    random = generator(3, "world")
    vectors = random.standard_normal((DOCUMENTS, WIDTH)).astype(np.float32)
    pairs = np.repeat(np.arange(DOCUMENTS), 2), random.integers(0, LABELS, 2 * DOCUMENTS)
    truth = LabelMatrix.from_pairs(*pairs, (DOCUMENTS, LABELS))
    rows = random.standard_normal((LABELS, WIDTH)).astype(np.float32)
    settings = ClassifierSettings(
        order=Random(batch_size=DOCUMENTS // BATCHES),
        negatives=negatives,
        loss=loss,
        table=TableConfig(unit=False, lr=0.05),
    )
    return table_task(settings, TableData(vectors, rows, np.zeros_like(rows), Documents(truth)))


def train(task: ClassifierTask, folder: Path) -> list[float]:
    """Train to the end, saving after every step, and return all losses."""
    return fit(task, Plan(epochs=EPOCHS, warmup=0.1, checkpoint_seconds=-1), Checkpoints(folder, "x")).losses


def stop_before(task: ClassifierTask, number: int, folder: Path) -> None:
    plain = task.step

    def step(docs: I64, at: int, scale: float, ready: Any = None) -> tuple[Tensor, Tensor]:
        if at == number:
            raise InterruptedError
        return plain(docs, at, scale, ready)

    task.step = step  # type: ignore[method-assign]
    with pytest.raises(InterruptedError):
        train(task, folder)


@pytest.mark.parametrize("case", CASES)
def test_a_training_stopped_twice_is_the_unbroken_one_to_the_bit(case: str, tmp_path: Path) -> None:
    whole, last = make(case), make(case)
    expected = train(whole, tmp_path / "whole")
    assert len(expected) == EPOCHS * BATCHES
    for stop in (2, BATCHES + 1):
        stop_before(make(case), stop, tmp_path / "broken")
    assert train(last, tmp_path / "broken") == expected
    found, wanted = last.tensors(), whole.tensors()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("case", ["eta", "eta and a sample of all labels"])
def test_the_state_of_the_loss_changes_its_next_value(case: str) -> None:
    """Otherwise a checkpoint without the state would do as well."""
    task, fresh = make(case), make(case)
    docs = task.batches(0)[0]
    for one in (task, fresh):
        one.start_epoch(0)
    task.step(docs, 0, 0.0)
    remembered, new = task.step(docs, 1, 0.0), fresh.step(docs, 1, 0.0)
    assert remembered[0] != new[0]
    assert remembered[1] == new[1]


def test_a_checkpoint_holds_each_pair_that_was_learnt_from_once() -> None:
    task = make("eta")
    for epoch in range(2):
        for number, docs in enumerate(task.batches(epoch)):
            task.step(docs, number, 1.0)
    pairs = task.tensors()["head/loss/eta_pairs"].tolist()
    docs, labels = task.data.documents.truth.pairs()
    assert sorted(pairs) == [list(pair) for pair in zip(docs.tolist(), labels.tolist(), strict=True)]
    assert task.tensors()["head/loss/eta_seen"].tolist() == [2.0] * len(pairs)
