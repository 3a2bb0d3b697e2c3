"""Trainings of recipes at toy size, and steps of them that may not wait for the device they run on.

Importing this registers no device, so that tests on a real GPU can use it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import card
from xc_core.classifiers import BiasConfig
from xc_core.data.labels import LabelMatrix
from xc_core.devices import Device, num_cards
from xc_core.encoders import Encoder, EncoderConfig, build_encoder
from xc_core.recipes import find_recipe
from xc_core.sampling import Documents, Random
from xc_core.seeds import generator
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierTask, TableData, table_task
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task
from xc_core.train.loop import Plan, fit
from xc_core.train.state import History

RECIPES = ("ngame", "house", "unidec", "astra", "renee", "dexml", "ance", "o-sgd")
TRAINED = ("ngame", "unidec", "astra")
"""Recipes whose whole trainings run: clusters, searches in texts, and searches in rows beside the steps."""
DRAWN = ("adversarial", "uniform-ns", "freq-ns", "nce", "ove", "anr")
"""Recipes whose M4 learns from drawn labels."""
STEPS = 3


@contextmanager
def unread() -> Iterator[None]:
    """Refuse every operation that waits for the device of ``tests/card.py`` or, if there is one, a GPU."""
    with card.unread(), unread_gpu() if num_cards() else nullcontext():
        yield


@contextmanager
def unread_gpu() -> Iterator[None]:
    """Refuse every operation that waits for a GPU."""
    _set_gpu_mode("error")
    try:
        yield
    finally:
        _set_gpu_mode("default")


def _set_gpu_mode(mode: str) -> None:
    """Set torch's mode without its warning that the mode is a prototype."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


def m1(name: str, device: Device, small: Any, *, bert: bool = False, **changes: Any) -> EncoderTask:
    """Return M1 of a recipe, with a small encoder (BERT if ``bert``), and hard negatives that a search found."""
    settings = find_recipe(name).changed({"encoder": changes}).encoder
    shape = EncoderConfig(name="bag", width=16, precision="fp32", heads=settings.encoder.heads)
    if bert:
        shape = replace(shape, name="tiny", frozen_layers=1)
    order = replace(settings.order, batch_size=8)
    settings = replace(settings, encoder=shape, order=order)
    encoder = (small_bert(shape, small.vocabulary) if bert else build_encoder(shape, small.vocabulary, 0)).on(device)
    make = EncoderData.with_label_texts if settings.augment else EncoderData
    task = encoder_task(settings, encoder, make(small.documents, small.labels, small.rows_N, small.truth))
    task.start_epoch(0)
    arrays = task.negatives.arrays()
    if "hard" in arrays:
        drawn = generator(0, "hard").integers(0, small.truth.num_labels, (len(task.data.rows_N), 4), dtype=np.int32)
        task.negatives.load({**arrays, "hard": drawn})
    return task


def m4(device: Device, dropout: float = 0.0, bias: float = 0.0, name: str = "ngame", **table: Any) -> ClassifierTask:
    """Return M4 of a recipe on random vectors; the last steps are averaged."""
    random, labels = generator(0, "card"), 40
    docs = np.repeat(np.arange(64), 2)
    truth = LabelMatrix.from_pairs(docs, random.integers(0, labels, 128), (64, labels))
    settings = find_recipe(name).classifier
    settings = replace(
        settings, order=Random(batch_size=16), dropout=dropout, average=0.9, epochs=1.0,
        table=replace(settings.table, **table), bias=BiasConfig(lr=bias),
    )  # fmt: skip
    doc_ND, rows_LD = (random.standard_normal((n, 12)).astype(np.float32) for n in (64, labels))
    doc_ND /= np.linalg.norm(doc_ND, axis=1, keepdims=True)
    task = table_task(settings, TableData(doc_ND, rows_LD, rows_LD, Documents(truth)), device)
    task.start_epoch(0)
    return task


def tiny_bert(precision: str) -> tuple[Encoder, torch.Tensor, torch.Tensor]:
    """Return a transformer with random weights, ids and mask of texts of 6, 4 and no tokens."""
    encoder = small_bert(EncoderConfig(name="tiny", precision=precision), 50).eval()  # type: ignore[arg-type]
    ids_BT, mask_BT = torch.arange(18).reshape(3, 6), torch.ones(3, 6, dtype=torch.bool)
    mask_BT[1, 4:] = mask_BT[2] = False
    return encoder, ids_BT, mask_BT


def small_bert(config: EncoderConfig, vocabulary_size: int, **more: Any) -> Encoder:
    """Return a transformer with two layers and random weights, large enough that attention distinguishes texts.

    ``more``: settings of its backbone.
    """
    from transformers import BertConfig, BertModel

    from xc_core.encoders.transformer import TransformerEncoder

    shape = BertConfig(
        vocab_size=vocabulary_size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        initializer_range=0.3, **more,
    )  # fmt: skip
    torch.manual_seed(0)
    return TransformerEncoder(config, BertModel(shape, add_pooling_layer=False))


def train(name: str, device: Device, small: Any, folder: Path) -> History:
    """Train M1 of a recipe for three epochs, with its refreshes; return the losses and figures."""
    task = m1(name, device, small)
    task.fill_banks = name == "astra"  # the errors of gradients are measured before the first step too
    plan = Plan(epochs=3, warmup=0.1, read_every=7, ahead=device.ahead)
    return fit(task, plan, Checkpoints(folder / device.kind, "f"))


def assert_alike(card: History, cpu: History) -> None:
    """Assert that a card has the losses and figures of a CPU, up to rounding that steps amplify."""
    np.testing.assert_allclose(card.losses, cpu.losses, rtol=2e-3, atol=1e-5)
    assert len(card.refreshes) == len(cpu.refreshes) > 0
    for ours, theirs in zip(card.refreshes, cpu.refreshes, strict=True):
        assert ours == {figure: pytest.approx(value, rel=0.01, nan_ok=True) for figure, value in theirs.items()}


def take_steps(task: EncoderTask | ClassifierTask, *, reading: bool = False) -> list[tuple[float, float]]:
    """Take some steps that may not wait for the card; return losses and counts, read afterwards."""
    batches = task.batches(0)
    ready = [task.prepare(batches[step], step) for step in range(STEPS)]
    if reading:
        found = [task.step(batches[step], step, 1.0, ready[step]) for step in range(STEPS)]
    else:
        with unread():
            found = [task.step(batches[step], step, 1.0, ready[step]) for step in range(STEPS)]
    return [(float(loss), float(count)) for loss, count in found]
