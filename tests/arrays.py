"""Arrays that several tests build: unit vectors, and a label matrix from the labels of each document."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.shapes import F32, Array


def unit(vectors: Array) -> F32:
    """Return each row divided by its length."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def matrix(rows: Sequence[Collection[int]], labels: int) -> LabelMatrix:
    """Return the matrix of documents with these labels each."""
    docs, ids = np.array([(i, x) for i, row in enumerate(rows) for x in row], np.int64).reshape(-1, 2).T
    return LabelMatrix.from_pairs(docs, ids, (len(rows), labels))
