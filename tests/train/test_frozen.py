"""A training that reads the states after the frozen layers equals one that computes them in every step."""

from __future__ import annotations

import errno
import os
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.train.conftest import train
from xc_core.distributed import World
from xc_core.encoders import EncoderConfig, build_encoder
from xc_core.encoders.transformer import TransformerEncoder
from xc_core.losses import Bce, DecoupledSoftmax, Triplet
from xc_core.sampling import Clustered, InBatch, Mined, Random
from xc_core.train import frozen
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.frozen import WithStates, state_bytes
from xc_core.train.heads import ByBoth, ByRow, ByText
from xc_core.train.loop import Plan, fit
from xc_core.train.optim import OptimConfig

LAYERS, FROZEN = 3, 2
RECIPES: dict[str, dict[str, Any]] = {
    "label texts": {},
    "rows": {"scorer": ByRow(), "loss": Bce()},
    "both": {"scorer": ByBoth(), "loss": DecoupledSoftmax()},
    "label texts as documents": {"augment": True},
    "activations not kept": {"cache": True, "scorer": ByText(cache=True)},
}
CLUSTERS = Clustered(batch_size=8, size=4, refresh_every=1, warmup_epochs=0)
Make = Callable[..., EncoderTask]


def bert(vocabulary: int, **config: Any) -> TransformerEncoder:
    import transformers

    torch.manual_seed(0)
    shape = transformers.BertConfig(
        vocab_size=vocabulary, hidden_size=16, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=32,
        initializer_range=0.5, attn_implementation="eager",
    )  # fmt: skip
    config = {"max_length": 6, "precision": "fp32", "frozen_layers": FROZEN, "tokens_per_pass": 40, **config}
    return TransformerEncoder(EncoderConfig(name="tiny", **config), transformers.BertModel(shape))


@pytest.fixture
def small(small: Any) -> Any:
    """The documents with texts of one to nine tokens, so that some are padded and some are cut."""
    length = np.arange(len(small.documents)) % 9 + 1
    ids = np.resize(small.documents.ids, length.sum())
    return replace(small, documents=replace(small.documents, ids=ids, offsets=np.append(0, np.cumsum(length))))


@pytest.fixture
def make(small: Any) -> Make:
    """Return a function that builds a task whose texts are cut at six tokens."""

    def made(frozen: int = FROZEN, world: World | None = None, epochs: float = 3.0, **changes: Any) -> EncoderTask:
        settings = EncoderSettings(
            **{
                "encoder": EncoderConfig(name="bag"),  # it is given
                "order": Random(batch_size=8),
                "negatives": InBatch(positives=1),
                "loss": Triplet(),
                "optim": OptimConfig(lr=0.002),
                "epochs": epochs,
                **changes,
            }
        )
        of = EncoderData.with_label_texts if settings.augment else EncoderData
        data = of(small.documents, small.labels, small.rows_N, small.truth)
        encoder = bert(small.vocabulary, frozen_layers=frozen)
        return encoder_task(settings, encoder, data, world or World())

    return made


@pytest.mark.parametrize("changes", RECIPES.values(), ids=RECIPES)
def test_losses_and_gradients_are_those_of_a_training_without_states(
    make: Make, tmp_path: Path, changes: dict[str, Any]
) -> None:
    task, twin = make(**changes), make(**changes)
    task.keep_states(tmp_path)
    assert isinstance(task.data.documents, WithStates)
    found, expected = gradients(task), gradients(twin)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4)
    assert max(float(value.abs().max()) for value in expected.values()) > 0.01
    task, twin = make(**changes), make(**changes)
    task.keep_states(tmp_path)
    losses, alone = (train(one, tmp_path / str(n)).losses for n, one in enumerate((task, twin)))
    assert losses == pytest.approx(alone, abs=1e-3)
    assert min(alone) < max(alone)


def gradients(task: EncoderTask) -> dict[str, torch.Tensor]:
    """Return the encoder's gradient in the first step."""
    kept: dict[str, torch.Tensor] = {}

    def keep(scale: float, usable: torch.Tensor) -> torch.Tensor:
        kept.update({name: p.grad.clone() for name, p in task.encoder.named_parameters() if p.grad is not None})
        return torch.zeros(())

    task.start_epoch(0)
    task.optimizer.step = keep  # type: ignore[method-assign]
    task.step(task.batches(0)[0], 0, 1.0)
    return kept


def test_memory_holds_the_states_of_one_pass_if_activations_are_not_kept(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make(**RECIPES["activations not kept"])
    task.keep_states(tmp_path)
    held: list[weakref.ref[Any]] = []
    most: list[int] = []
    batch = WithStates.batch

    def counting(texts: WithStates, rows: Any, max_length: int) -> Any:
        found = batch(texts, rows, max_length)
        held.append(weakref.ref(found.states_BTH))
        most.append(sum(one() is not None for one in held))
        return found

    monkeypatch.setattr(WithStates, "batch", counting)
    train(task, tmp_path / "run")
    assert len(most) > 20
    assert max(most) <= 2, "the pass that is encoded, and the next one that is read"


@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_vectors_are_those_of_whole_encodings(make: Make, tmp_path: Path, kind: str) -> None:
    task = make()
    task.encoder.use_attention(kind)
    assert task.encoder.attention == kind
    store, rows, encoder = task.data.documents, task.data.rows_N[:9], task.encoder
    batch = WithStates.of(encoder, store, rows, tmp_path, "documents").batch(rows[::-1].copy(), 6)
    assert not batch.mask_BT.all(), "some texts are padded"
    assert batch.states_BTH is not None
    assert not batch.states_BTH[~batch.mask_BT].any(), "zero for padding"
    ids, mask, states = (torch.from_numpy(part) for part in (batch.ids_BT, batch.mask_BT, batch.states_BTH))
    torch.testing.assert_close(encoder(ids, mask, states), encoder(ids, mask), atol=1e-5, rtol=0)


@pytest.mark.parametrize("changes", RECIPES.values(), ids=RECIPES)
def test_no_frozen_layer_is_computed_in_the_training(make: Make, tmp_path: Path, changes: dict[str, Any]) -> None:
    task = make(**changes)
    task.keep_states(tmp_path)
    for module in (task.encoder.backbone.embeddings, *task.encoder.backbone.encoder.layer[:FROZEN]):
        module.forward = None
    assert train(task, tmp_path / "run").losses


def test_a_resumed_training_has_the_same_losses(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make()
    task.keep_states(tmp_path)
    expected = train(task, tmp_path / "whole").losses

    killed, plan = make(), Plan(epochs=3, warmup=0.1, checkpoint_seconds=-1)
    killed.keep_states(tmp_path)
    step = killed.step

    def failing(docs_B: Any, number: int, *more: Any) -> Any:
        if number == 6:
            raise KeyboardInterrupt
        return step(docs_B, number, *more)

    monkeypatch.setattr(killed, "step", failing)
    with pytest.raises(KeyboardInterrupt):
        fit(killed, plan, Checkpoints(tmp_path / "run", "x"))
    again = make()
    again.keep_states(tmp_path)
    assert fit(again, plan, Checkpoints(tmp_path / "run", "x")).losses == expected


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"order": CLUSTERS, "epochs": 0.5}, True),  # everything is encoded before the first step
        ({"negatives": Mined(warmup_epochs=0), "epochs": 0.5}, True),
        ({"negatives": Mined(warmup_epochs=1), "epochs": 1.9}, False),
        ({"epochs": 2.0}, True),
        ({"epochs": 1.9}, False),
        ({"frozen": 0}, False),
        ({"world": World(0, 2)}, False),
    ],
)
def test_states_are_kept_where_they_save_time(make: Make, tmp_path: Path, changes: dict[str, Any], kept: bool) -> None:
    task = make(**changes)
    before = task.data
    task.keep_states(tmp_path)
    assert isinstance(task.data.documents, WithStates) is kept
    assert isinstance(task.data.labels, WithStates) is kept
    assert kept or task.data is before


def test_a_card_computes_all_layers(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make()
    assert task.keeps_states
    monkeypatch.setattr(TransformerEncoder, "device", torch.device("cuda"))
    assert not task.keeps_states


def test_encoders_that_do_not_compute_layers_apart_keep_none(small: Any, tmp_path: Path) -> None:
    config = EncoderConfig(name="bag", width=16, frozen_layers=2)
    bag = encoder_task(EncoderSettings(encoder=config), build_encoder(config, small.vocabulary, 0), small.data())
    bag.keep_states(tmp_path)
    assert bag.data.documents is small.documents
    with pytest.raises(NotImplementedError, match="BagEncoder does not compute its layers apart"):
        bag.encoder.above(torch.zeros(1, 1, 1), torch.ones(1, 1))
    with pytest.raises(NotImplementedError, match="BagEncoder does not compute its layers apart"):
        bag.encoder.frozen(torch.zeros(1, 1), torch.ones(1, 1))


def test_label_texts_that_nothing_scores_are_not_encoded(make: Make, small: Any, tmp_path: Path) -> None:
    task = make(**RECIPES["rows"])
    task.keep_states(tmp_path)
    assert task.data.labels is small.labels


def test_a_timing_keeps_the_states_of_its_steps_alone(make: Make, tmp_path: Path) -> None:
    task = make()
    batches = task.batches(0)
    task.keep_states(tmp_path, timed=2)
    for number, docs in enumerate(batches[:2]):
        task.step(docs, number, 0.0)
    with pytest.raises(AssertionError, match="rows whose states are not kept"):
        task.step(batches[2], 2, 0.0)


def test_a_timing_of_more_steps_than_batches_begins_again(make: Make, tmp_path: Path) -> None:
    """A later step on the same batch draws other positives, whose texts it needs too."""
    task = make(order=Random(batch_size=2))
    task.batches = lambda epoch: [np.arange(2)]  # type: ignore[method-assign]
    docs = np.arange(2)
    drawn = [set(task.negatives.pool(docs, step).labels_U.tolist()) for step in range(8)]
    task.keep_states(tmp_path, timed=8)
    kept = set(np.flatnonzero(cast(Any, task.data.labels).starts_N >= 0).tolist())
    assert kept == set().union(*drawn) > drawn[0]
    for step in range(8):
        task.step(docs, step, 0.0)


def test_states_that_fill_the_disk_are_not_kept(
    make: Make, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    task = make()
    docs, labels = (
        state_bytes(task.encoder, int(store.lengths(rows, 6).sum()))
        for store, rows in ((small.documents, small.rows_N), (small.labels, np.arange(len(small.labels))))
    )
    assert labels < docs
    asked: list[Path] = []
    free = 4 * docs - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: asked.append(folder) or SimpleNamespace(free=free))
    task.keep_states(tmp_path)
    assert task.data.documents is small.documents
    assert isinstance(task.data.labels, WithStates)
    assert any("the frozen layers of documents are computed in every step" in line for line in lines)
    assert asked == [tmp_path, tmp_path]
    again, free = make(), 4 * docs
    again.keep_states(tmp_path)
    assert isinstance(again.data.documents, WithStates)


def test_a_report_says_how_much_space_states_need_and_how_much_is_free(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    monkeypatch.setattr(frozen, "state_bytes", lambda *_: 3 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=8 * 10**9))
    make().keep_states(tmp_path)
    assert any("need 3.0 GB, more than a quarter of the 8.0 GB that are free" in line for line in lines)


def test_an_error_that_is_no_lack_of_space_ends_the_training(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WithStates, "of", lambda *_: {}["a mistake"])
    with pytest.raises(KeyError, match="a mistake"):
        make().keep_states(tmp_path)


def test_states_that_a_quota_forbids_are_not_kept(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    def refused(*given: Any) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    task = make()
    before = task.data
    task.keep_states(tmp_path)
    assert (task.data.documents, task.data.labels) == (before.documents, before.labels)
    assert any("documents are computed in every step, because their states need" in line for line in lines)
    assert any("quota" in line for line in lines)


def test_texts_that_are_cut_elsewhere_have_other_states(make: Make, tmp_path: Path) -> None:
    task = make()
    task.keep_states(tmp_path)
    assert task.data.documents.lengths(task.data.rows_N, 4).max() == 4
    with pytest.raises(AssertionError, match="cut elsewhere"):
        task.data.documents.batch(task.data.rows_N[:2], 4)
    assert len(task.data.documents) == len(replace(task.data).documents)


def test_the_banks_before_the_first_step_are_those_of_whole_encodings(make: Make, tmp_path: Path) -> None:
    task, twin = make(order=CLUSTERS), make(order=CLUSTERS)
    task.keep_states(tmp_path)
    for one in (task, twin):
        one.start_epoch(0)
    np.testing.assert_allclose(task.documents.numpy(), twin.documents.numpy(), atol=1e-5)
    np.testing.assert_allclose(task.texts.numpy(), twin.texts.numpy(), atol=1e-5)
    assert np.linalg.norm(task.documents.numpy(), axis=1) == pytest.approx(1.0)
