"""Trainings of recipes at toy size, and steps of them that may not wait for the device they run on.

Importing this registers no device, so that tests on a real GPU can use it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tests import card
from xc_core.classifiers import BiasConfig
from xc_core.data.labels import LabelMatrix
from xc_core.devices import Device, num_cards
from xc_core.encoders import EncoderConfig, build_encoder
from xc_core.recipes import find_recipe
from xc_core.sampling import Documents, Random
from xc_core.seeds import generator
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task
from xc_core.train.table import ClassifierTask, TableData, table_task

RECIPES = ("ngame", "house", "unidec", "astra", "renee", "dexml", "ance", "o-sgd")
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


def m1(name: str, device: Device, small: Any, **changes: Any) -> EncoderTask:
    """Return M1 of a recipe, with a small encoder and hard negatives that a search found."""
    settings = find_recipe(name).changed({"encoder": changes}).encoder
    shape = EncoderConfig(name="bag", width=16, precision="fp32", heads=settings.encoder.heads)
    order = replace(settings.order, batch_size=8)
    settings = replace(settings, encoder=shape, order=order)
    encoder = build_encoder(shape, small.vocabulary, 0).on(device)
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
