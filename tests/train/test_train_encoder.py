"""M1 learns, reads train documents only, fills its memory bank at no cost, and depends on its seed alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.train.conftest import Broken, train
from xc_core.canonical import canonical
from xc_core.data.labels import LabelMatrix
from xc_core.data.tokens import TokenStore
from xc_core.encoders import EncoderConfig, Passes, build_encoder, embed_rows, encode_passes
from xc_core.errors import DivergedError
from xc_core.losses import PLAIN, AugmentReduce, Loss, Sampled, Stateless
from xc_core.recipes import find_recipe
from xc_core.sampling import Random, Tree
from xc_core.shapes import F32, I64, TokenBatch
from xc_core.train import encoder as encoder_module
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask
from xc_core.train.encoder import encoder_task as build_task
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.loop import Plan, fit

Make = Callable[..., EncoderTask]


def test_ten_documents_can_be_overfitted(encoder_task: Make, ten: Any, tmp_path: Path) -> None:
    data = ten.data()
    assert len(data.rows_N) == 10
    task = encoder_task(data=data)
    history = train(task, tmp_path / "run", epochs=40)
    assert max(history.losses[:6]) > 0.05
    assert max(history.losses[-20:]) < 0.01
    vectors = np.zeros((15, 16), np.float32), np.zeros((5, 16), np.float32)
    for store, out in zip((data.documents, data.labels), vectors, strict=True):
        embed_rows(task.encoder, store, np.arange(len(out)), out, "x")
    scores = vectors[0][data.rows_N] @ vectors[1].T
    best = np.argsort(-scores, axis=1)[:, :1]
    assert data.truth.contains(np.arange(10)[:, None], best).all()


class Spy:
    """A token store that records which rows are read."""

    def __init__(self, store: TokenStore) -> None:
        self.store, self.asked = store, set[int]()

    def lengths(self, rows: I64, max_length: int) -> I64:
        self.asked |= set(rows.tolist())
        return self.store.lengths(rows, max_length)

    def batch(self, rows: I64, max_length: int) -> TokenBatch:
        self.asked |= set(rows.tolist())
        return self.store.batch(rows, max_length)

    def __len__(self) -> int:
        return len(self.store)


def test_only_train_rows_are_read(encoder_task: Make, small: Any, tmp_path: Path) -> None:
    spy = Spy(small.documents)
    train(encoder_task(data=replace(small.data(), documents=spy)), tmp_path / "run")
    assert spy.asked == set(small.rows_N.tolist())
    assert len(spy.asked) < len(small.documents)


def test_the_bank_holds_the_vectors_of_the_last_steps(
    encoder_task: Make, small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = encoder_task()
    docs, labels = np.zeros_like(task.documents.numpy()), np.zeros_like(task.texts.numpy())
    at = {int(row): i for i, row in enumerate(small.rows_N)}

    asked: dict[int, tuple[TokenStore, I64]] = {}
    kept: list[Passes] = []  # so that no two have one id
    make = Passes.of

    def remembering(encoder: Any, store: TokenStore, rows: I64) -> Passes:
        kept.append(make(encoder, store, rows))
        asked[id(kept[-1])] = store, rows
        return kept[-1]

    def noting(encoder: Any, passes: Passes) -> Tensor:
        vectors, (store, rows) = encode_passes(encoder, passes), asked[id(passes)]
        if store is small.documents:
            docs[[at[int(row)] for row in rows]] = vectors.detach().numpy()
        else:
            labels[rows] = vectors.detach().numpy()
        return vectors

    monkeypatch.setattr(Passes, "of", remembering)
    for module in ("encoder", "heads"):
        monkeypatch.setattr(f"xc_core.train.{module}.encode_passes", noting)
    train(task, tmp_path / "run", epochs=1.5)
    assert np.array_equal(task.documents.numpy(), docs)
    assert np.array_equal(task.texts.numpy(), labels)
    assert np.any(docs, axis=1).all(), "an epoch visits all documents"


def test_a_refresh_sees_the_bank_and_encodes_nothing(
    encoder_task: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = encoder_task()
    train(task, tmp_path / "run", epochs=1)
    for name in ("encoder.encode_passes", "banks.embed_rows", "heads.encode_passes"):
        monkeypatch.setattr(f"xc_core.train.{name}", None)
    seen: list[F32] = []
    refresh = task.order.refresh
    monkeypatch.setattr(task.order, "refresh", lambda epoch, bank: seen.append(bank.copy()) or refresh(epoch, bank))
    figures = task.start_epoch(1)
    assert np.array_equal(seen[0], task.documents.numpy())
    assert figures["clusters"] >= 2
    assert figures["labels_seen"] == 1.0
    assert 0 <= figures["missed"] <= 1


def test_theorem_1_leaves_out_labels_that_no_batch_has_drawn(
    encoder_task: Make, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their vectors in the bank are zero, so they would count as distant positives.

    The first label has one document, the last has none.
    """
    docs, labels = small.truth.only(np.arange(5) < 4).pairs()
    kept = (labels > 0) | (docs == docs[labels == 0][0])
    truth = LabelMatrix.from_pairs(docs[kept], labels[kept], (len(small.truth), 5))
    task = encoder_task(data=replace(small.data(), truth=truth))
    train(task, tmp_path / "run", epochs=1)
    monkeypatch.setattr(encoder_module, "RADIUS", 1.3)
    task.texts.numpy()[:3] = 0
    seen = np.any(task.texts.numpy(), axis=1)
    assert (task.data.truth.frequency_L()[:3] > 0).all() and task.data.truth.frequency_L()[0] == 1
    figures = task.start_epoch(1)
    pairs = [(i, x) for i, x in zip(*task.data.truth.pairs(), strict=True) if seen[x]]
    far = [math.dist(task.documents.numpy()[i], task.texts.numpy()[x]) > 1.3 for i, x in pairs]
    assert figures["eps1"] == pytest.approx(np.mean(far), abs=1e-6)
    used = task.data.truth.frequency_L() > 0
    assert not used.all()
    assert figures["labels_seen"] == pytest.approx(seen[used].mean())
    assert 0 <= figures["missed_by_batches"] <= 1


def test_theorem_1_is_measured_with_the_seed_of_the_settings_and_one_radius(
    encoder_task: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = encoder_task()
    train(task, tmp_path / "run", epochs=1)
    task.settings, given = replace(task.settings, seed=7), []

    def spied(real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        given.append(named)
        return real(*arguments, **named)

    for name in ("theorem1", "missed_by_pools"):
        monkeypatch.setattr(encoder_module, name, partial(spied, getattr(encoder_module, name)))
    task.start_epoch(1)
    assert given == [{"radius": encoder_module.RADIUS, "seed": 7}] * 2


def weights(task: EncoderTask) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in task.encoder.state_dict().items()}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(encoder_task: Make, tmp_path: Path) -> None:
    found = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.rand(3)
        task = encoder_task(seed)
        found[name] = train(task, tmp_path / name).losses, weights(task)
    assert found["a"][0] == found["b"][0] != found["c"][0]
    assert all(torch.equal(found["a"][1][name], value) for name, value in found["b"][1].items())
    assert not all(torch.equal(found["a"][1][name], value) for name, value in found["c"][1].items())


def test_batches_and_pools_are_drawn_by_the_seed_of_the_training(encoder_task: Make) -> None:
    tasks = [encoder_task(seed) for seed in (0, 0, 1)]
    everyone = np.arange(len(tasks[0].data.rows_N))
    batches = [np.concatenate(task.batches(0)).tolist() for task in tasks]
    pools = [task.negatives.pool(everyone, 0).chosen_BU.tolist() for task in tasks]
    for drawn in (batches, pools):
        assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("stop", "loss"), [(1.0, None), (1.5, None), (2.0, None), (1.5, AugmentReduce())], ids=lambda value: str(value)[:7]
)
def test_a_training_resumed_from_saved_state_gives_the_same_bytes(
    encoder_task: Make, tmp_path: Path, stop: float, loss: Loss | None
) -> None:
    """1 and 2 are the ends of epochs, before a refresh; 1.5 is within an epoch, after a refresh."""
    make = partial(encoder_task, loss=loss)
    whole, first = make(), make()
    expected = train(whole, tmp_path / "whole")
    checkpoints = Checkpoints(tmp_path / "run", "x")
    stop_at = round(stop * len(whole.batches(0)))
    plain_step = first.step

    def dying(docs: I64, step: int, scale: float, ready: Any = None) -> tuple[Tensor, Tensor]:
        if step == stop_at:
            raise KeyboardInterrupt
        return plain_step(docs, step, scale, ready)

    first.step = dying  # type: ignore[method-assign]
    plan = Plan(epochs=3, warmup=0.1, checkpoint_seconds=-1)
    with pytest.raises(KeyboardInterrupt):
        fit(first, plan, checkpoints)
    second = make()
    history = fit(second, plan, checkpoints)
    assert history.losses == expected.losses
    assert len(expected.refreshes) == 2
    assert canonical(history.refreshes) == canonical(expected.refreshes)
    for name, value in whole.tensors().items():
        assert torch.equal(second.tensors()[name], value), name


class InfiniteGradient(Stateless):
    """A finite loss whose gradient is not finite: the square root of 0."""

    def __call__(
        self, scores: Tensor, chosen: Tensor, known: Tensor, sampled: Sampled = PLAIN
    ) -> tuple[Tensor, Tensor]:
        return (scores - scores.detach()).square().sum().sqrt(), chosen.sum()


@pytest.mark.parametrize("loss", [Broken(float("nan")), Broken(float("inf")), InfiniteGradient()])
def test_a_loss_or_gradient_that_is_not_finite_ends_the_training_and_changes_no_weight(
    encoder_task: Make, tmp_path: Path, loss: Loss
) -> None:
    task = encoder_task(loss=loss)
    before = weights(task)
    with pytest.raises(DivergedError, match="in step 0"):
        train(task, tmp_path / "run")
    assert all(torch.equal(before[name], value) for name, value in weights(task).items())


def test_a_tree_that_draws_the_labels_of_m1_is_fitted_on_encoded_documents(small: Any) -> None:
    """Before the first step the bank has no vectors yet, and a tree of zeros knows frequencies alone."""
    settings = EncoderSettings(
        encoder=EncoderConfig(name="bag", width=16), order=Random(batch_size=8), negatives=Tree(width=3)
    )
    task = build_task(settings, build_encoder(settings.encoder, small.vocabulary, 0), small.data())
    task.start_epoch(0)
    np.testing.assert_allclose(np.linalg.norm(task.documents.numpy(), axis=1), 1, rtol=1e-5)
    noise = task.negatives.noise()
    assert noise is not None
    labels = np.tile(np.arange(small.truth.num_labels), (len(task.documents.numpy()), 1))
    assert noise.log_prob(task.documents.numpy(), labels).std(axis=0).max() > 0.01, "the same for every document"


def test_documents_without_labels_do_not_stop_the_training(encoder_task: Make, small: Any, tmp_path: Path) -> None:
    indptr = np.concatenate([np.zeros(9, np.int64), small.truth.indptr[9:] - small.truth.indptr[8]])
    truth = replace(small.truth, indptr=indptr, indices=small.truth.indices[small.truth.indptr[8] :])
    task = encoder_task(data=replace(small.data(), truth=truth))
    assert task.step(np.arange(8), 0, 1.0) == (0.0, 0.0)
    assert np.isfinite(train(task, tmp_path / "run").losses).all()


@pytest.mark.parametrize(
    ("recipe", "documents", "texts"),
    [
        ("ngame", True, True),  # clusters and the figures of Theorem 1
        ("house", False, False),
        ("dpr", False, False),
        ("renee", False, False),
        ("unidec", True, True),
        ("ance", True, True),
        ("astra-label-hard", True, False),  # searches in label texts, which are documents
        ("astra", True, False),  # searches in rows; rows start from label texts, which are encoded once
    ],
)
def test_vectors_that_nothing_reads_are_not_kept(
    recipe: str, documents: bool, texts: bool, small: Any, tmp_path: Path
) -> None:
    settings = find_recipe(recipe).encoder
    shape = EncoderConfig(name="bag", width=16, precision="fp32", heads=settings.encoder.heads)
    settings = replace(settings, encoder=shape, order=replace(settings.order, batch_size=16))
    data = EncoderData.with_label_texts if settings.augment else EncoderData
    made = data(small.documents, small.labels, small.rows_N, small.truth)
    task = build_task(settings, build_encoder(shape, small.vocabulary, 0), made)
    train(task, tmp_path / "run", epochs=1)
    banks = {"documents": task.documents.numpy(), "texts": task.texts.numpy()}
    sizes = {"documents": len(made.rows_N), "texts": made.truth.num_labels}
    for name, kept in (("documents", documents), ("texts", texts)):
        assert len(banks[name]) == kept * sizes[name], name
        assert bool(banks[name].any()) == kept, name
    assert (task.tensors()["bank"].numel() > 0) == documents, "nor are they written into checkpoints"
    if task.head.rows is not None:
        assert np.asarray(task.vectors.rows()).any()
