"""M3 and M4 learn, move only rows that a batch touched, and go on after a crash to the same bytes, dropout included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.train.conftest import Broken
from xc_core.classifiers import LabelTable, TableConfig
from xc_core.data.labels import LabelMatrix
from xc_core.losses import LossConfig
from xc_core.sampling import NEGATIVES, ORDERS, NegativesConfig, OrderConfig
from xc_core.seeds import generator
from xc_core.shapes import F32
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierTask
from xc_core.train.loop import Plan, fit
from xc_core.train.state import DivergedError, History

L, N, D = 12, 60, 16


def unit(vectors: F32) -> F32:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def world() -> tuple[F32, LabelMatrix]:
    """Return documents near the direction of one of ten labels; the last two labels have no document."""
    random = generator(7, "world")
    label = np.arange(N) % (L - 2)
    directions = np.eye(L, D)
    documents = unit((directions[label] + 0.2 * random.standard_normal((N, D))).astype(np.float32))
    return documents, LabelMatrix.from_pairs(np.arange(N), label, (N, L))


def make(seed: int = 0, *, dropout: float = 0.0, lr: float = 0.05) -> ClassifierTask:
    documents, truth = world()
    start = unit(generator(seed, "rows").standard_normal((L, D)).astype(np.float32))
    order = OrderConfig(kind="random", batch_size=12, cluster_size=4)
    return ClassifierTask(
        documents,
        truth,
        LabelTable(torch.from_numpy(start), TableConfig(lr=lr)),
        ORDERS["random"](order, N, seed),
        NEGATIVES["in-batch"](NegativesConfig(positives=0), truth, seed),
        LossConfig(margin=0.5).build(),
        dropout,
        seed,
    )


def train(task: ClassifierTask, folder: Path, epochs: float = 4) -> History:
    return fit(task, Plan(epochs=epochs, warmup=0.05, checkpoint_seconds=1e9), Checkpoints(folder, "x"))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_it_learns_which_label_a_document_has(tmp_path: Path, dropout: float) -> None:
    task = make(dropout=dropout)
    train(task, tmp_path / "run", epochs=60)
    rows = torch.nn.functional.normalize(task.table.rows_LD, dim=1).numpy()
    best = (task.doc_ND @ rows.T).argmax(1)
    assert (best == np.arange(N) % (L - 2)).mean() > 0.95


def test_a_row_that_no_batch_touched_stays(tmp_path: Path) -> None:
    task = make()
    before = task.table.rows_LD.clone()
    train(task, tmp_path / "run")
    moved = (task.table.rows_LD != before).any(1)
    assert moved.tolist() == [True] * (L - 2) + [False] * 2
    assert (task.table.steps_L > 0).tolist() == moved.tolist()


def test_the_given_rows_and_vectors_are_never_changed(tmp_path: Path) -> None:
    start = torch.randn(L, D)
    kept, table = start.clone(), LabelTable(start, TableConfig())
    task = make()
    task.table = table
    documents = task.doc_ND.copy()
    train(task, tmp_path / "run")
    assert torch.equal(start, kept)
    assert np.array_equal(task.doc_ND, documents)


def test_dropout_zeroes_its_share_keeps_the_mean_and_depends_on_seed_and_step_alone() -> None:
    task = make(dropout=0.3)
    ones = torch.ones(200, 100)
    dropped = task._dropped(ones, 5)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert float((dropped == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    torch.rand(3)
    assert torch.equal(task._dropped(ones, 5), dropped)
    assert not torch.equal(task._dropped(ones, 6), dropped)
    assert not torch.equal(make(1, dropout=0.3)._dropped(ones, 5), dropped)
    assert make()._dropped(ones, 5) is ones


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path, dropout: float) -> None:
    one, two, other = make(dropout=dropout), make(dropout=dropout), make(1, dropout=dropout)
    losses = [train(task, tmp_path / str(i)).losses for i, task in enumerate((one, two, other))]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(one.table.rows_LD, two.table.rows_LD)
    assert not torch.equal(one.table.rows_LD, other.table.rows_LD)


@pytest.mark.parametrize("crash", [1, 5, 10, 13])
def test_a_crash_changes_nothing_of_the_result(tmp_path: Path, crash: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(epochs=4, warmup=0.05, checkpoint_seconds=-1)
    whole = make(dropout=0.3)
    expected = train(whole, tmp_path / "whole").losses
    checkpoints = Checkpoints(tmp_path / "run", "x")
    first = make(dropout=0.3)
    step = first.step
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(first, "step", lambda docs, at, scale: step(docs, at, scale / (at != crash)))
        fit(first, plan, checkpoints)
    second = make(dropout=0.3)
    assert fit(second, plan, checkpoints).losses == expected
    for name, value in whole.tensors().items():
        assert torch.equal(second.tensors()[name], value), name


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_number_ends_it_with_the_rows_unharmed(tmp_path: Path, value: float) -> None:
    task = make()
    before = task.table.rows_LD.clone()
    task.loss = Broken(value)
    with pytest.raises(DivergedError, match=r"a loss of .* in step 0"):
        train(task, tmp_path / "run")
    assert torch.equal(task.table.rows_LD, before)
