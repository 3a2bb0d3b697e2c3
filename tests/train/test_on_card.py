"""Steps of every recipe of the issue on a device that refuses to be read: same losses, rows and banks as on a CPU.

``tests/card.py`` says what it refuses. Without a GPU this is the proof that a step does not wait for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.card import CARD, CardTensor, MixedError, WaitError, unread
from tests.train.steps import DRAWN, RECIPES, STEPS, m1, m4, take_steps, tiny_bert
from xc_core.classifiers import LabelTable, TableConfig, TableHead
from xc_core.devices import CPU, put
from xc_core.distributed import World
from xc_core.losses import PLAIN, Bce, Sampled, Stateless
from xc_core.sampling import LabelPool
from xc_core.seeds import torch_generator
from xc_core.train.banks import Bank
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierTask
from xc_core.train.encoder import EncoderTask
from xc_core.train.state import History, Position

pytestmark = pytest.mark.usefixtures("fake_card")


@dataclass(frozen=True)
class Selecting(Stateless):
    """A loss that drops documents by a mask, so that it waits."""

    def __call__(
        self, scores_BU: torch.Tensor, chosen_BU: torch.Tensor, known_BU: torch.Tensor, sampled: Sampled = PLAIN
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return scores_BU[chosen_BU.any(1)].sum(), chosen_BU.sum()


def on_processor(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def assert_same_state(card: EncoderTask | ClassifierTask, cpu: EncoderTask | ClassifierTask) -> None:
    theirs = on_processor(cpu.tensors())
    for name, tensor in on_processor(card.tensors()).items():
        message = f"{name}: {{}}".format
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5, msg=message)


@pytest.mark.parametrize("name", RECIPES)
def test_m1_waits_for_nothing_and_learns_what_it_learns_on_a_cpu(name: str, small: Any) -> None:
    card, cpu = m1(name, CARD, small), m1(name, CPU, small)
    assert take_steps(card) == [pytest.approx(pair, rel=1e-5) for pair in take_steps(cpu)]
    assert_same_state(card, cpu)
    assert isinstance(card.documents.rows_ND, CardTensor)
    kept = bool(card.documents.rows_ND.cpu().any())
    assert kept == card.settings.keeps[0], "the vectors of the steps are in the bank, if something reads them"


@pytest.mark.parametrize("name", ["ngame", "house", "unidec", "astra"])
def test_a_transformer_encodes_documents_and_label_texts_at_once(
    name: str, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU encodes them one after the other, through transformers."""
    card, cpu = (m1(name, device, small, bert=True) for device in (CARD, CPU))
    batches = card.batches(0)
    ready, texts = card.prepare(batches[0], 0), card.head.reads_once
    assert [len(groups) for groups in ready.documents.batches] == [1], "texts are short"
    assert len(ready.documents.back_N) == len(batches[0]) + (len(ready.pool.labels_U) if texts else 0)
    expected = take_steps(cpu)
    monkeypatch.setattr("xc_core.train.heads.encode_passes", lambda *_: pytest.fail("label texts encoded again"))
    assert take_steps(card) == [pytest.approx(pair, rel=1e-5) for pair in expected]
    for ours, theirs in ((card.documents, cpu.documents), (card.texts, cpu.texts)):
        torch.testing.assert_close(ours.rows_ND.cpu(), theirs.rows_ND, rtol=0, atol=1e-4)


def test_each_process_prepares_its_own_documents_and_label_texts(small: Any) -> None:
    task = m1("ngame", CARD, small, bert=True)
    for rank, (documents, labels) in enumerate([(3, 2), (3, 1), (2, 1)]):  # of 8 documents and 4 labels
        task.world = World(rank, 3)
        ready = task.prepare(task.batches(0)[0], 0)
        assert (ready.num_documents, len(ready.documents.back_N)) == (documents, documents + labels)


def test_label_texts_are_apart_if_activations_of_documents_are_not_kept(small: Any) -> None:
    """Documents are encoded twice then, label texts once."""
    card, cpu = (m1("ngame", device, small, bert=True, cache=True) for device in (CARD, CPU))
    ready = card.prepare(card.batches(0)[0], 0)
    assert (ready.num_documents, len(ready.documents.back_N), ready.texts is None) == (8, 8, False)
    assert take_steps(card) == [pytest.approx(pair, rel=1e-5) for pair in take_steps(cpu)]


def test_m4_makes_the_masks_of_a_batch_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned and copied, they took longer than the step."""
    expected = take_steps(m4(CPU))
    monkeypatch.setattr("xc_core.sampling.base.mask", lambda *_: pytest.fail("a mask made by the processor"))
    assert take_steps(m4(CARD)) == [pytest.approx(pair, rel=1e-5) for pair in expected]


@pytest.mark.parametrize("loss", ["bce", "decoupled-softmax"])
def test_the_masks_of_all_labels_are_made_on_a_card(loss: str, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = m1("renee", CPU, small, loss={"kind": loss})
    expected = take_steps(cpu)
    monkeypatch.setattr("xc_core.sampling.base.mask", lambda *_: pytest.fail("a mask made by the processor"))
    monkeypatch.setattr("xc_core.devices._CARD_LABELS", 3)  # several blocks
    card = m1("renee", CARD, small, loss={"kind": loss})
    assert take_steps(card) == [pytest.approx(pair, rel=1e-5) for pair in expected]
    assert_same_state(card, cpu)


@pytest.mark.parametrize(
    "options",
    [{}, {"dropout": 0.3}, {"weight_decay": 0.1}, {"bias": 0.1}, {"optimiser": "adagrad"}, {"optimiser": "sgd"}],
)
def test_m4_waits_for_nothing_and_learns_what_it_learns_on_a_cpu(options: dict[str, Any]) -> None:
    card, cpu = m4(CARD, **options), m4(CPU, **options)
    assert take_steps(card) == [pytest.approx(pair, rel=1e-5) for pair in take_steps(cpu)]
    torch.testing.assert_close(card.head.released().cpu(), cpu.head.released(), rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(card.head.tables, cpu.head.tables, strict=True):
        assert torch.equal(ours.steps_L.cpu(), theirs.steps_L), "labels without a gradient take no step"
        torch.testing.assert_close(ours.square_L.cpu(), theirs.square_L, rtol=1e-4, atol=1e-10)
    assert all(isinstance(table.rows_LD, CardTensor) for table in card.head.tables)


@pytest.mark.parametrize("name", ["ngame", *DRAWN[:2]])
def test_m4_on_some_documents_at_a_time_waits_for_nothing_and_learns_what_it_learns_at_once(name: str) -> None:
    card, cpu = m4(CARD, name=name, bias=0.1), m4(CPU, name=name, bias=0.1)
    card.head.cells = 100  # 16 documents x about 30 labels
    assert take_steps(card) == [pytest.approx(pair, rel=1e-5) for pair in take_steps(cpu)]
    torch.testing.assert_close(card.head.released().cpu(), cpu.head.released(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", ["no positive", "no number"])
def test_some_documents_at_a_time_change_nothing_on_a_card_if_no_document_counts_or_one_is_no_number(bad: str) -> None:
    task, (batch, labels) = m4(CARD), (np.arange(6), np.arange(40))
    task.head.cells = 80
    before = task.head.table.rows_LD.cpu()
    doc_BD = torch.ones(6, 12)
    doc_BD[5] = torch.nan if bad == "no number" else 1.0
    chosen_BU = np.eye(6, 40, dtype=bool) & (bad == "no number")
    leaf = put(doc_BD.numpy(), CARD.torch).requires_grad_(True)
    with unread():
        found = task.head.descend(leaf, LabelPool(labels, chosen_BU, chosen_BU), batch, 1.0)
    assert found.gradient_BD is not None
    assert not found.gradient_BD.cpu().any()
    assert torch.equal(task.head.table.rows_LD.cpu(), before)


def test_the_number_format_is_that_of_the_own_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine can have cards of several kinds."""
    asked: list[str] = []
    monkeypatch.setattr("xc_core.devices.Device.multiplies_bf16", lambda device: bool(asked.append(device.name)))
    encoder, *_ = tiny_bert("auto")
    assert not encoder.on(CARD).in_bf16
    LabelTable(torch.ones(4, 2), TableConfig(precision="bf16"), device=CARD.torch)
    assert asked == [CARD.name, CARD.name]


def test_rows_in_bf16_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card draws its own random bits, so rows differ by their rounding. The fake card has no generators."""
    places = []

    def draws(seed: int, purpose: str, *place: int, device: torch.device) -> torch.Generator:
        places.append(device)
        return torch_generator(seed, purpose, *place)

    monkeypatch.setattr("xc_core.classifiers.storage.torch_generator", draws)
    monkeypatch.setattr("xc_core.classifiers.storage.generator", pytest.fail)
    card = m4(CARD, precision="bf16")
    on_card = take_steps(card)
    assert set(places) == {CARD.torch}, "drawn on the card"
    monkeypatch.undo()
    cpu = m4(CPU, precision="bf16")
    assert on_card == [pytest.approx(pair, rel=1e-2) for pair in take_steps(cpu)]
    assert card.head.table.rows_LD.dtype == torch.bfloat16
    torch.testing.assert_close(card.head.released().cpu(), cpu.head.released(), rtol=2e-2, atol=2e-2)


def test_a_card_scores_more_labels_at_once_than_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xc_core.devices._LABELS", 16)
    monkeypatch.setattr("xc_core.devices._CARD_LABELS", 32)
    blocks: list[int] = []
    loss = Bce.__call__
    monkeypatch.setattr(
        Bce,
        "__call__",
        lambda self, scores_BU, *rest: blocks.append(scores_BU.shape[1]) or loss(self, scores_BU, *rest),
    )
    for device, expected in ((CPU, [16, 16, 8]), (CARD, [32, 8])):
        rows_LD, doc_BD = (put(np.ones((n, 4), np.float32), device.torch) for n in (40, 2))
        chosen_BU = np.eye(2, 40, dtype=bool)
        blocks.clear()
        TableHead(LabelTable(rows_LD, TableConfig()), Bce()).descend(
            doc_BD, LabelPool(np.arange(40), chosen_BU, chosen_BU), np.arange(2), 1.0
        )
        assert blocks == expected


@pytest.mark.parametrize("name", ["ngame", "unidec"])
def test_texts_are_encoded_before_the_first_step_without_a_wait_but_for_their_vectors(
    name: str, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, cpu = m1(name, CARD, small), m1(name, CPU, small)
    card.fill_banks = cpu.fill_banks = True
    cpu.start_epoch(0)
    monkeypatch.setattr("xc_core.encoders.embed.fetched", lambda tensor: tensor.raw.numpy)
    with unread():
        card._initialise()
    assert_same_state(card, cpu)


@pytest.mark.parametrize(("name", "copies"), [("ngame", [0, 0, 0, 0]), ("unidec", [0, 1, 0, 1])])
def test_vectors_are_copied_from_a_card_only_if_a_search_reads_them(
    name: str, copies: list[int], small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order clusters before epoch 2, on the card; ``unidec`` searches before epochs 1 and 3.

    Theorem 1, which reads vectors too, is left out.
    """
    searched = {"negatives": {"refresh_every": 2}} if name == "unidec" else {}
    task = m1(name, CARD, small, order={"warmup_epochs": 2, "refresh_every": 2}, **searched)
    read: list[bool] = []
    bank = Bank.numpy
    monkeypatch.setattr(Bank, "numpy", lambda self: read.append(self is task.documents) or bank(self))
    monkeypatch.setattr(EncoderTask, "_theorem_figures", lambda self, epoch, clusters: {})
    take_steps(task)
    for epoch, expected in enumerate(copies):
        read.clear()
        figures = task.start_epoch(epoch)
        assert ("clusters" in figures) == (epoch == 2)
        assert sum(read) == expected, epoch
    assert task.order.clusters() is not None


def test_processes_on_cards_train_on_the_clusters_of_the_first(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards of two kinds round differently, so their clusters may differ."""
    card, cpu = (m1("ngame", device, small, order={"warmup_epochs": 0}) for device in (CARD, CPU))
    first = {"order": np.arange(len(card.data.rows_N))[::-1], "sizes": np.array([len(card.data.rows_N)])}
    card.world = World(1, 2)
    monkeypatch.setattr(World, "of_first", lambda self, value: first)
    monkeypatch.setattr(World, "everyone", lambda self, value: [value] * self.size)
    monkeypatch.setattr(EncoderTask, "_theorem_figures", lambda self, epoch, clusters: {})
    for task in (card, cpu):
        task.start_epoch(1)
    assert all(np.array_equal(found, first[name]) for name, found in card.order.arrays().items())
    assert len(cpu.order.arrays()["sizes"]) > 1, "CPUs must agree, and that is checked"


def test_a_checkpoint_on_a_card_is_read_again(tmp_path: Path) -> None:
    """Rows, optimiser and bias; the steps after it are those of a training that was not interrupted."""
    whole, cut, again = (m4(CARD, bias=0.1) for _ in range(3))
    expected, _ = take_steps(whole), take_steps(cut)
    checkpoints = Checkpoints(tmp_path / "run", "f")
    checkpoints.save(cut, Position(step=STEPS), History(), beside=True)
    checkpoints.wait()
    position, _ = Checkpoints(tmp_path / "run", "f").restore(again)
    assert position.step == STEPS
    assert take_steps(again) == take_steps(cut) != expected
    assert_same_state(again, cut)


def epoch(task: ClassifierTask, number: int) -> list[float]:
    """Take the steps of an epoch, which may not wait for the card; return their losses."""
    batches = task.batches(number)
    with unread():
        found = [task.step(docs_B, number * len(batches) + step, 1.0) for step, docs_B in enumerate(batches)]
    return [float(loss) for loss, _ in found]


@pytest.mark.parametrize("name", DRAWN)
def test_m4_on_drawn_labels_waits_for_nothing_learns_and_resumes_on_a_card_as_on_a_cpu(
    name: str, tmp_path: Path
) -> None:
    losses: list[list[float]] = []
    for device in (CARD, CPU):
        whole, again = (m4(device, name=name) for _ in range(2))
        first = epoch(whole, 0)
        checkpoints = Checkpoints(tmp_path / device.kind, "f")
        checkpoints.save(whole, Position(epoch=1, step=len(first)), History())
        Checkpoints(tmp_path / device.kind, "f").restore(again)
        second = [epoch(task, 1) for task in (whole, again)]
        assert second[0] == pytest.approx(second[1], rel=1e-5), "as if it had not been interrupted"
        losses.append(first + second[0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_documents_without_positives_change_nothing(small: Any) -> None:
    """Rows that a CPU drops by a mask are kept on a card, with a weight of 0."""
    indptr = small.truth.indptr.copy()
    indptr[1:6] = indptr[0]
    truth = replace(small.truth, indptr=np.maximum.accumulate(np.minimum(indptr, len(small.truth.indices))))
    for name, changes in (("unidec", {}), ("ngame", {}), ("o-sgd", {"loss": {"q": 3}}), ("o-sgd", {"loss": {"q": 50}})):
        card, cpu = (m1(name, device, replace(small, truth=truth), **changes) for device in (CARD, CPU))
        assert take_steps(card) == [pytest.approx(pair, rel=1e-5) for pair in take_steps(cpu)]
        assert_same_state(card, cpu)


@pytest.mark.parametrize("name", ["ngame", "astra"])
def test_a_loss_that_is_not_finite_changes_nothing(name: str, small: Any) -> None:
    """Neither the encoder nor the rows of a table, as on a CPU."""
    task = m1(name, CARD, small)
    state = [task.encoder.state_dict(), {} if task.head.rows is None else {"rows": task.head.rows.table.rows_LD}]
    before = [on_processor(part) for part in state]
    task.encoder.head.register_forward_hook(lambda module, given, out: out * float("nan"))
    (loss, _), *_ = take_steps(task)
    assert np.isnan(loss)
    for part, old in zip(state, before, strict=True):
        assert all(torch.equal(value.cpu(), old[key]) for key, value in part.items())


def test_a_step_that_reads_is_found(small: Any) -> None:
    task = m1("ngame", CARD, small)
    task.head.loss = Selecting()  # type: ignore[attr-defined]
    with pytest.raises(WaitError, match="index"):
        take_steps(task)
    assert len(take_steps(task, reading=True)) == STEPS


def test_a_copy_from_the_processor_that_is_waited_for_is_found(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xc_core.classifiers.table_head.put", lambda array, device: torch.from_numpy(array).to(device))
    with pytest.raises(WaitError, match="copy_"):
        take_steps(m1("ngame", CARD, small))


def test_a_tensor_on_the_wrong_device_is_found(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xc_core.classifiers.table_head.put", lambda array, device: torch.from_numpy(array))
    with pytest.raises(MixedError):
        take_steps(m1("ngame", CARD, small))


def test_attention_on_a_card_is_fused_and_equal() -> None:
    encoder, ids, mask = tiny_bert("fp32")
    expected = encoder(ids, mask).detach()
    encoder.on(CARD)
    assert encoder.backbone.config._attn_implementation == "sdpa"
    given = ids.to(CARD.torch), mask.to(CARD.torch)
    with unread():
        found = encoder(*given)
        found.sum().backward()
    torch.testing.assert_close(found.detach().cpu(), expected, rtol=1e-5, atol=1e-6)
