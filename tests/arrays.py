"""Arrays that several tests build: unit vectors, and a label matrix from the labels of each document."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.shapes import F32, Array, Shortlist


def unit(vectors: Array) -> F32:
    """Return each row divided by its length."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def matrix(rows: Sequence[Collection[int]], labels: int) -> LabelMatrix:
    """Return the matrix of documents with these labels each."""
    docs, ids = np.array([(i, x) for i, row in enumerate(rows) for x in row], np.int64).reshape(-1, 2).T
    return LabelMatrix.from_pairs(docs, ids, (len(rows), labels))


def masked(own_NL: Array) -> LabelMatrix:
    """Return the matrix with a pair where ``own_NL`` is not 0."""
    docs, labels = np.nonzero(own_NL)
    return LabelMatrix.from_pairs(docs, labels, (own_NL.shape[0], own_NL.shape[1]))


def stacked(blocks: Iterable[tuple[slice, dict[str, Shortlist]]]) -> dict[str, Shortlist]:
    """Return the shortlists of all blocks of ``Ranker.blocks``, by rule."""
    found = [lists for _, lists in blocks]
    return {name: Shortlist.stack([lists[name] for lists in found]) for name in found[0]}


def of_unit_length(row: Array, mean: Array) -> Array:
    """Return the unit vector on the ray from the mean row through ``row``."""
    apart = row - mean
    return np.asarray(mean + np.roots([apart @ apart, 2 * apart @ mean, mean @ mean - 1]).max() * apart)
