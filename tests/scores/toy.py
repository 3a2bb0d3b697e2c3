"""The toy world as the data that scores are fitted on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests import arrays
from tests.conftest import TOPICS, ToyWorld
from xc_core.data.labels import LabelMatrix
from xc_core.scores import Query, ScoreData
from xc_core.shapes import F32

WORLD = ToyWorld.make()
TEXTS = [f"{row['title']} {row['content']}" for row in WORLD.train]
TESTS = [f"{row['title']} {row['content']}" for row in WORLD.test]
LABEL_TEXTS = [f"{label['title']} {label['content']}" for label in WORLD.labels]
NO_LABEL_TEXTS = [""] * len(TOPICS)


def truth_of(rows: list[dict[str, Any]], labels: int = len(TOPICS)) -> LabelMatrix:
    docs = np.repeat(np.arange(len(rows)), [len(row["target_ind"]) for row in rows])
    return LabelMatrix.from_pairs(docs, np.array([i for row in rows for i in row["target_ind"]]), (len(rows), labels))


TRUTH = truth_of(WORLD.train)


def data_of(texts: list[str], truth: LabelMatrix, label_texts: list[str] | None = None) -> ScoreData:
    """Return data with texts only; labels have no text unless given."""
    names = [""] * truth.num_labels if label_texts is None else label_texts
    return ScoreData(truth, texts=lambda: texts, label_texts=lambda: names)


def asked(texts: list[str] | Callable[[], list[str]] | None, documents: int | None = None) -> Query:
    """Return a query of texts whose vectors do not matter."""
    size = len(texts) if isinstance(texts, list) and documents is None else documents or 0
    return Query(np.zeros((size, 1), np.float32), texts)


def unit(size: int, seed: int, width: int = 6) -> F32:
    return arrays.unit(np.random.default_rng(seed).standard_normal((size, width)))
