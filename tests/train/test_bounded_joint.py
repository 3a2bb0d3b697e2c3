"""A joint training makes no copy of its table: it starts, searches, saves and ends in a bounded address space."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests.bounded import bounded, scratch
from xc_core import artifacts
from xc_core.data.labels import LabelMatrix
from xc_core.data.tokenizer import TextTokenizer, load
from xc_core.data.tokens import TokenStore
from xc_core.encoders import TrainedEncoder, build_encoder
from xc_core.recipes import find_recipe
from xc_core.sampling import searched
from xc_core.shapes import PAD_ID, Shortlist, Vectors
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.documents import EncoderData
from xc_core.train.encoder import EncoderTask, encoder_task
from xc_core.train.loop import Plan, fit

pytestmark = pytest.mark.chain

LABELS, WIDTH = 100_000, 512
TABLE = LABELS * WIDTH * 4 >> 20
"""MB of all rows: 195."""
BOTH = {"search_in": "rows", "warmup_epochs": 0}


class NoSearch:
    """An index that finds nothing, quickly, after it has read all vectors as an exact search does."""

    def __init__(self, vectors_LD: Vectors) -> None:
        self.size, self.width = vectors_LD.shape
        for start in range(0, self.size, 16_384):
            assert np.isfinite(vectors_LD[start : start + 16_384]).all()

    def search(self, queries_BD: Any, k: int) -> Shortlist:
        return Shortlist(
            np.full((len(queries_BD), k), PAD_ID, np.int32), np.full((len(queries_BD), k), -np.inf, np.float32)
        )


def joint(recipe: str, labels: int, width: int, **negatives: Any) -> tuple[EncoderTask, TextTokenizer]:
    """Return a training on 64 documents, with three batches of 16 an epoch, and the tokenizer."""
    shape = {"name": "bag", "width": width, "projection": width, "precision": "fp32"}
    changes = {"encoder": shape, "order": {"batch_size": 16}, "negatives": negatives}
    settings = find_recipe(recipe).changed({"encoder": changes}).encoder
    tokenizer = load("wordpiece", [["river castle engine"]], 100)
    names, texts = [["river"] * labels, ["castle engine"] * 64]
    truth = LabelMatrix.from_pairs(np.arange(64), np.arange(64), (64, labels))
    make = EncoderData.with_label_texts if settings.augment else EncoderData
    data = make(TokenStore.of_texts(texts, tokenizer), TokenStore.of_texts(names, tokenizer), np.arange(64), truth)
    encoder = build_encoder(settings.encoder, tokenizer.vocabulary_size, 0)
    task = encoder_task(settings, encoder, data)
    batches = task.order.batches
    task.order.batches = lambda epoch: batches(epoch)[:3]  # type: ignore[method-assign]
    return task, tokenizer


def train(recipe: str, labels: int, width: int, **negatives: Any) -> None:
    pytest.MonkeyPatch().setattr(searched, "mining_index", NoSearch)
    task, tokenizer = joint(recipe, labels, width, **negatives)
    folder = scratch()
    checkpoints = Checkpoints(folder / "run", "x")
    history = fit(task, Plan(epochs=3.0, warmup=0.1, checkpoint_seconds=0.0), checkpoints)
    with artifacts.building(folder / "encoder", kind="encoder") as build:
        TrainedEncoder(task.encoder, tokenizer, history.results(), task.vectors.released()).write(build)
    assert (folder / "encoder" / "rows.npy").stat().st_size == 128 + 4 * labels * task.encoder.width


def prepared(recipe: str, **negatives: Any) -> Callable[[], None]:
    torch.set_num_threads(1)
    train(recipe, 300, WIDTH, **negatives)  # imports, and memory that the first step allocates once
    return partial(train, recipe, LABELS, WIDTH, **negatives)


def astra() -> Callable[[], None]:
    return prepared("astra", hard=4, uniform=100)


def unidec() -> Callable[[], None]:
    return prepared("unidec")


def unidec_on_rows() -> Callable[[], None]:
    return prepared("unidec", **BOTH)


def renee() -> Callable[[], None]:
    return prepared("renee")


@pytest.mark.parametrize(
    ("prepare", "tables", "blocks"), [(astra, 2, 400), (unidec, 2, 420), (unidec_on_rows, 2, 420), (renee, 1, 300)]
)
def test_a_joint_training_holds_its_rows_and_the_latest_vectors_of_label_texts(
    prepare: Callable[[], Callable[[], None]], tables: int, blocks: int
) -> None:
    """``renee`` keeps no vectors. ``blocks``: MB of what does not grow with the labels; two heads have wider ones.

    ``renee`` needs 150 to 225 and ``astra`` 240 to 340, since arenas of malloc (64 MB each) come and go with threads; a
    copy of a table needs 195 more.
    """
    bounded(prepare, megabytes=tables * TABLE + blocks)
