"""M3 and M4 learn, change only rows that a batch scores, and resume after a crash to the same bytes (dropout too)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.arrays import unit
from tests.train.conftest import Broken
from xc_core.classifiers import BiasConfig, TableConfig, dropped
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError, DivergedError
from xc_core.losses import PLAIN, Bce, Loss, Sampled, Stateless, Triplet
from xc_core.params import in_use
from xc_core.sampling import All, Clustered, Documents, Importance, InBatch, Mined, Mixture, Negatives, Order, Random
from xc_core.seeds import generator, torch_generator
from xc_core.shapes import F32, I64
from xc_core.train import classifier
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierSettings, ClassifierTask, TableData, table_task
from xc_core.train.loop import Plan, fit
from xc_core.train.state import History

L, N, D = 12, 60, 16


def world() -> tuple[F32, LabelMatrix]:
    """Return documents near the direction of one of ten labels; the last two labels have no document."""
    random = generator(7, "world")
    label = np.arange(N) % (L - 2)
    directions = np.eye(L, D)
    documents = unit((directions[label] + 0.2 * random.standard_normal((N, D))).astype(np.float32))
    return documents, LabelMatrix.from_pairs(np.arange(N), label, (N, L))


def make(
    seed: int = 0,
    *,
    dropout: float = 0.0,
    lr: float = 0.05,
    order: Order | None = None,
    negatives: Negatives | None = None,
    loss: Loss | None = None,
    bias: float = 0.0,
    average: float = 0.0,
    unit_rows: bool = True,
) -> ClassifierTask:
    settings = ClassifierSettings(
        order=order or Random(batch_size=12),
        negatives=negatives or InBatch(positives=0),
        loss=loss or Triplet(margin=0.5),
        table=TableConfig(lr=lr, unit=unit_rows),
        bias=BiasConfig(lr=bias),
        dropout=dropout,
        average=average,
        epochs=4.0,
        seed=seed,
    )
    documents, truth = world()
    start, texts = (unit(generator(seed, of).standard_normal((L, D)).astype(np.float32)) for of in ("rows", "texts"))
    return table_task(settings, TableData(documents, start, texts, Documents(truth)))


def train(task: ClassifierTask, folder: Path, epochs: float = 4) -> History:
    return fit(task, Plan(epochs=epochs, warmup=0.05, checkpoint_seconds=1e9), Checkpoints(folder, "x"))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_it_learns_which_label_a_document_has(tmp_path: Path, dropout: float) -> None:
    task = make(dropout=dropout)
    train(task, tmp_path / "run", epochs=60)
    rows = torch.nn.functional.normalize(task.head.table.rows_LD, dim=1).numpy()
    best = (task.data.doc_ND @ rows.T).argmax(1)
    assert (best == np.arange(N) % (L - 2)).mean() > 0.95


def test_rows_that_no_batch_scores_do_not_change(tmp_path: Path) -> None:
    task = make()
    before = task.head.table.rows_LD.clone()
    train(task, tmp_path / "run")
    moved = (task.head.table.rows_LD != before).any(1)
    assert moved.tolist() == [True] * (L - 2) + [False] * 2
    assert (task.head.table.steps_L > 0).tolist() == moved.tolist()


def test_the_given_rows_and_vectors_are_never_changed(tmp_path: Path) -> None:
    task = make()
    before = [array.copy() for array in (task.data.doc_ND, task.data.rows_LD, task.data.text_LD)]
    train(task, tmp_path / "run")
    assert not np.array_equal(task.head.table.rows_LD.numpy(), before[1])
    for array, kept in zip((task.data.doc_ND, task.data.rows_LD, task.data.text_LD), before, strict=True):
        assert np.array_equal(array, kept)


def test_dropout_zeroes_its_share_keeps_the_mean_and_depends_on_its_generator_alone() -> None:
    ones = torch.ones(200, 100)
    found = dropped(ones, 0.3, torch_generator(0, "dropout", 5))
    assert found.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert float((found == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    torch.rand(3)
    assert torch.equal(dropped(ones, 0.3, torch_generator(0, "dropout", 5)), found)
    assert dropped(ones, 0.0, torch_generator(0, "dropout", 5)) is ones


def test_the_mask_of_a_step_depends_on_seed_and_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def spy(doc_BD: torch.Tensor, share: float, random: torch.Generator) -> torch.Tensor:
        seen.append(dropped(torch.ones_like(doc_BD), share, random))
        return dropped(doc_BD, share, random)

    monkeypatch.setattr(classifier, "dropped", spy)
    for seed, step in ((0, 5), (0, 5), (0, 6), (1, 5)):
        make(seed, dropout=0.3).step(np.arange(8), step, 1.0)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[3])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path, dropout: float) -> None:
    one, two, other = make(dropout=dropout), make(dropout=dropout), make(1, dropout=dropout)
    losses = [train(task, tmp_path / str(i)).losses for i, task in enumerate((one, two, other))]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(one.head.table.rows_LD, two.head.table.rows_LD)
    assert not torch.equal(one.head.table.rows_LD, other.head.table.rows_LD)


def test_batches_and_pools_are_drawn_by_the_seed_of_the_training() -> None:
    tasks = [make(seed, negatives=Mixture(positives=1, uniform=4)) for seed in (0, 0, 1)]
    batches = [np.concatenate(task.batches(0)).tolist() for task in tasks]
    pools = [task.negatives.pool(np.arange(3), 0).labels_U.tolist() for task in tasks]
    for drawn in (batches, pools):
        assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("crash", [1, 5, 10, 13])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"order": Clustered(batch_size=12, size=4, refresh_every=2)},
        {"negatives": Mined(positives=0, search=3, search_in="rows", refresh_every=2, ahead=1, warmup_epochs=2)},
        {"negatives": Importance(positives=0, hard=2, uniform=4, search_in="rows"), "bias": 0.1},
        {"average": 0.6, "bias": 0.1},
    ],
)
def test_a_crash_does_not_change_the_result(
    tmp_path: Path, crash: int, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(epochs=4, warmup=0.05, checkpoint_seconds=-1)
    whole = make(dropout=0.3, **parts)
    expected = train(whole, tmp_path / "whole").losses
    checkpoints = Checkpoints(tmp_path / "run", "x")
    first = make(dropout=0.3, **parts)
    step = first.step
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(first, "step", lambda docs, at, scale, ready: step(docs, at, scale / (at != crash), ready))
        fit(first, plan, checkpoints)
    second = make(dropout=0.3, **parts)
    assert fit(second, plan, checkpoints).losses == expected
    for name, value in whole.tensors().items():
        assert torch.equal(second.tensors()[name], value), name


@pytest.mark.parametrize("where", ["texts", "rows"])
def test_a_search_reads_the_vectors_that_its_setting_names(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(negatives=Mined(positives=0, search_in=where, warmup_epochs=0))
    searched: list[F32] = []
    monkeypatch.setattr(task.negatives, "_search", lambda docs, labels: searched.append(labels) or np.zeros((N, 1)))
    task.start_epoch(0)
    assert np.allclose(searched[0], task.data.text_LD if where == "texts" else task.data.rows_LD, atol=1e-6)


def test_a_search_beside_the_training_does_not_read_rows_that_steps_change(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(negatives=Mined(positives=0, search_in="rows", ahead=1, warmup_epochs=2), unit_rows=False)
    searched: list[F32] = []
    monkeypatch.setattr(task.negatives, "_search", lambda docs, labels: searched.append(labels) or np.zeros((N, 1)))
    task.start_epoch(1)
    task.negatives.arrays()  # waits for the search
    assert np.array_equal(searched[0], task.head.table.rows_LD.numpy())
    assert not np.shares_memory(searched[0], task.head.table.rows_LD.numpy())


def test_an_epoch_begins_while_a_search_beside_the_training_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(negatives=Mined(positives=0, search_in="rows", ahead=1, warmup_epochs=2))
    begun = threading.Event()
    monkeypatch.setattr(task.negatives, "_search", lambda docs, labels: np.full((N, 1), begun.wait(1)))
    task.start_epoch(1)
    begun.set()
    assert task.negatives.arrays()["hard_next"].all(), "the epoch began after the end of the search"


@pytest.mark.parametrize("where", ["texts", "rows"])
def test_a_search_knows_the_bias(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(negatives=Mined(positives=0, search_in=where, warmup_epochs=0), bias=0.1)
    assert task.head.bias is not None
    task.head.bias.rows_LD[3] = 100.0
    seen: list[tuple[F32, F32]] = []
    monkeypatch.setattr(task.negatives, "_search", lambda docs, labels: seen.append((docs, labels)) or np.zeros((N, 1)))
    task.start_epoch(0)
    (docs, labels) = seen[0]
    products = docs @ labels.T
    expected = task.data.doc_ND @ (task.data.text_LD if where == "texts" else task.data.rows_LD).T
    assert np.allclose(
        np.delete(products, 3, 1), np.delete(expected, 3, 1) + (where == "rows") * start(task), atol=1e-5
    )
    assert (products[:, 3].min() > 90) == (where == "rows")


def start(task: ClassifierTask) -> F32:
    """Return the initial bias of every label but the third."""
    assert task.head.bias is not None
    return np.delete(task.head.bias.rows_LD.numpy()[:, 0], 3)


def test_rows_and_bias_are_averaged_over_the_last_share_of_the_steps(tmp_path: Path) -> None:
    task, after = make(bias=0.1, average=0.25), []
    step = task.step

    def watched(docs_B: I64, at: int, scale: float, ready: Any = None) -> tuple[Tensor, Tensor]:
        found = step(docs_B, at, scale, ready)
        after.append([table.rows_LD.double().clone() for table in task.head.tables])
        return found

    task.step = watched  # type: ignore[method-assign]
    train(task, tmp_path / "run")
    assert len(after) == 20
    rows, bias = (torch.stack([own[i] for own in after[15:]]).mean(0) for i in (0, 1))
    expected = torch.cat([torch.nn.functional.normalize(rows, dim=1), bias], dim=1)
    torch.testing.assert_close(task.head.released().double(), expected, rtol=1e-5, atol=1e-6)


def test_a_bias_starts_at_the_log_of_the_share_of_documents_in_units_of_the_score() -> None:
    _, truth = world()
    found = BiasConfig(lr=0.1, prior=2.0).build(truth, 0.05)
    assert found is not None
    # Six documents of 60 for ten labels; the last two have none and count as half a document.
    expected = [0.1 * np.log(6 / 60)] * (L - 2) + [0.1 * np.log(0.5 / 60)] * 2
    assert found.rows_LD[:, 0].tolist() == pytest.approx(expected, rel=1e-6)
    assert BiasConfig().build(truth, 0.05) is None


def test_without_a_bias_its_settings_are_no_part_of_the_fingerprint() -> None:
    plain = in_use(ClassifierSettings())
    assert "bias" not in plain
    assert in_use(ClassifierSettings(bias=BiasConfig(prior=3.0)))["bias"] == {"lr": 0.0}
    assert in_use(ClassifierSettings(bias=BiasConfig(lr=0.1)))["bias"] == {"lr": 0.1, "prior": 1.0}
    assert "bias" not in in_use(ClassifierSettings(epochs=0.0, bias=BiasConfig(lr=0.1)))


def test_an_order_adapts_to_the_frozen_vectors() -> None:
    task = make(order=Clustered(batch_size=12, size=4, warmup_epochs=0))
    figures = task.start_epoch(0)
    assert figures["cluster_size"] == 4.0
    documents = [doc for batch in task.batches(0) for doc in batch]
    assert sorted(documents) == list(range(N))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_ends_the_training_and_changes_no_row(tmp_path: Path, value: float) -> None:
    task = make()
    before = task.head.table.rows_LD.clone()
    task.head.loss = Broken(value)
    with pytest.raises(DivergedError, match=r"a loss of .* in step 0"):
        train(task, tmp_path / "run")
    assert torch.equal(task.head.table.rows_LD, before)


class BrokenGradient(Stateless):
    """A finite loss whose gradient is not a number: the square root of 0."""

    def __call__(
        self, scores_BU: Tensor, chosen_BU: Tensor, known_BU: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        return (scores_BU - scores_BU.detach()).square().sum().sqrt(), chosen_BU.sum()


def test_a_gradient_that_is_not_a_number_ends_the_training_when_its_rows_are_scored_again(tmp_path: Path) -> None:
    """Rows kept their values, so the table learnt nothing, without a word."""
    task = make(order=Random(batch_size=N), loss=BrokenGradient())
    with pytest.raises(DivergedError, match="a loss of nan in step 1"):
        train(task, tmp_path / "run")


@pytest.mark.parametrize(
    ("order", "negatives", "learnable"),
    [
        (Random(batch_size=1), InBatch(positives=0), False),
        (Clustered(batch_size=1, size=1), InBatch(positives=0), False),
        (Random(batch_size=2), InBatch(positives=0), True),
        (Random(batch_size=1), InBatch(positives=0, unseen=1), True),
        (Random(batch_size=1), Mixture(), True),
        (Random(batch_size=1), All(), True),
    ],
)
@pytest.mark.parametrize("loss", [Triplet(margin=0.5), Bce()])
def test_batches_without_negatives_are_refused_before_the_first_step(
    tmp_path: Path, order: Order, negatives: Negatives, learnable: bool, loss: Loss
) -> None:
    """A separable loss (bce) would count documents without a negative, and push all scores up."""
    task = make(order=order, negatives=negatives, loss=loss)
    before = task.head.table.rows_LD.clone()
    if learnable:
        train(task, tmp_path / "run", epochs=0.1)
        return
    with pytest.raises(ConfigError, match="60 batches of classifier in which no document has a label to learn and"):
        train(task, tmp_path / "run")
    assert torch.equal(task.head.table.rows_LD, before)


@pytest.mark.parametrize("negatives", [All(), InBatch(positives=0)])
def test_a_dataset_of_one_label_is_refused_with_a_loss_that_counts_all_documents(
    tmp_path: Path, negatives: Negatives
) -> None:
    documents, start = world()[0], np.eye(1, D, dtype=np.float32)
    settings = ClassifierSettings(order=Random(batch_size=12), negatives=negatives, loss=Bce())
    truth = LabelMatrix.from_pairs(np.arange(N), np.zeros(N, np.int64), (N, 1))
    with pytest.raises(ConfigError, match="check that the dataset has several labels"):
        train(table_task(settings, TableData(documents, start, start, Documents(truth))), tmp_path / "run")
