"""The figures of Theorem 1 need no cosines of all documents and labels at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.bounded import bounded
from xc_core.cluster import quality, theorem1
from xc_core.data.labels import LabelMatrix
from xc_core.shapes import F32, I64


def world(docs: int, labels: int) -> tuple[tuple[F32, F32], LabelMatrix, tuple[I64, I64]]:
    """Return random unit vectors, two labels per document, and clusters of four documents; the last label has none."""
    random = np.random.default_rng(docs)
    vectors = [random.standard_normal((size, 4), np.float32) for size in (docs, labels)]
    doc_ND, label_LD = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in vectors)
    pairs = random.integers(0, labels - 1, 2 * docs)
    truth = LabelMatrix.from_pairs(np.repeat(np.arange(docs), 2), pairs, (docs, labels))
    return (doc_ND, label_LD), truth, (np.arange(docs), np.full(docs // 4, 4))


@pytest.mark.parametrize("wide", [1, 7, 60])
def test_figures_in_blocks_are_the_figures(wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, truth, clusters = world(60, 23)
    whole = theorem1(vectors, truth, truth, clusters, radius=0.9, seed=0)
    monkeypatch.setattr(quality, "_WIDE", wide)
    assert theorem1(vectors, truth, truth, clusters, radius=0.9, seed=0) == whole
    assert 0 < whole.missed_share < 1
    assert whole.eps2 > 0


def many() -> Callable[[], None]:
    """3 M documents with a label each, 1 M labels."""
    (doc_ND, label_LD), _, _ = world(1_000, 1_000)
    vectors = np.tile(doc_ND, (3_000, 1)), np.tile(label_LD, (1_000, 1))
    rows = np.arange(3_000_001)
    truth, clusters = LabelMatrix(rows, (rows[1:] // 3).astype(np.int32), 1_000_001), (rows[:-1], np.full(750_000, 4))
    vectors = vectors[0], np.concatenate([vectors[1], label_LD[:1]])

    def measure() -> None:
        assert theorem1(vectors, truth, truth, clusters, radius=0.9, seed=0, sample=32).missed_share > 0.9

    return measure


def test_three_million_documents_are_measured_in_a_bounded_address_space() -> None:
    """All cosines of 32 documents would take 670 MB with their answers."""
    bounded(many, megabytes=380)
