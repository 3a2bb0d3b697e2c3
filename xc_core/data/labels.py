"""Which labels are positive for which documents, as a sparse binary matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import EllipsisType
from typing import Final

import numpy as np

from xc_core.shapes import I32, I64, PAD_ID, Array, Bool

_CELLS: Final = 1 << 18
"""Pairs looked up at a time: 256 K of them need 9 MB."""


@dataclass(frozen=True, slots=True)
class LabelMatrix:
    """N documents x L labels in CSR: ``indices`` (int32, ascending within a row) and ``indptr`` (int64, N + 1)."""

    indptr: I64
    indices: I32
    num_labels: int

    @classmethod
    def from_pairs(cls, doc_ids: Array, label_ids: Array, shape: tuple[int, int]) -> LabelMatrix:
        """Build from pairs in any order; a repeated pair counts once."""
        keys = doc_ids.astype(np.int64) * shape[1] + label_ids
        if not (keys[1:] > keys[:-1]).all():  # pairs of an artefact are sorted
            doc_ids, label_ids = np.divmod(np.unique(keys), max(shape[1], 1))
        indptr = np.zeros(shape[0] + 1, np.int64)
        np.cumsum(np.bincount(doc_ids, minlength=shape[0]), out=indptr[1:])
        return cls(indptr, label_ids.astype(np.int32), shape[1])

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """(N, L)."""
        return len(self), self.num_labels

    @property
    def counts_N(self) -> I64:
        """Number of positives of each document (N)."""
        return np.diff(self.indptr)

    def frequency_L(self) -> I64:
        """Return the number of documents of each label (L)."""
        return np.bincount(self.indices, minlength=self.num_labels).astype(np.int64)

    def row(self, doc: int) -> I32:
        """Return the positives of one document."""
        return self.indices[self.indptr[doc] : self.indptr[doc + 1]]

    def rows(self, docs: I64) -> LabelMatrix:
        """Return the matrix of the documents ``docs``, in that order."""
        starts = self.indptr[docs]
        counts = self.indptr[docs + 1] - starts  # not of all documents: each step of a training asks for its batch
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return LabelMatrix(indptr, self.indices[ragged_positions(starts, counts)], self.num_labels)

    @classmethod
    def none(cls, num_docs: int, num_labels: int) -> LabelMatrix:
        """Return documents without any label."""
        return cls(np.zeros(num_docs + 1, np.int64), np.zeros(0, np.int32), num_labels)

    @classmethod
    def identity(cls, num_labels: int) -> LabelMatrix:
        """Return L documents, each with its own label: label texts used as documents."""
        return cls(np.arange(num_labels + 1, dtype=np.int64), np.arange(num_labels, dtype=np.int32), num_labels)

    def above(self, other: LabelMatrix) -> LabelMatrix:
        """Return the documents of this matrix, then those of ``other``."""
        indptr = np.concatenate([self.indptr, self.indptr[-1] + other.indptr[1:]])
        return LabelMatrix(indptr, np.concatenate([self.indices, other.indices]), self.num_labels)

    def union(self, other: LabelMatrix) -> LabelMatrix:
        """Return the matrix of the pairs that are in either matrix; both have the same shape."""
        docs = np.concatenate([self.pairs()[0], other.pairs()[0]])
        return LabelMatrix.from_pairs(docs, np.concatenate([self.indices, other.indices]), self.shape)

    def pairs(self) -> tuple[I64, I32]:
        """Return (document, label) of every positive, by document, then label."""
        return np.repeat(np.arange(len(self)), self.counts_N), self.indices

    def places(self) -> I64:
        """Return the place of each positive among those of its document, from 0; in the order of ``pairs``."""
        return np.arange(len(self.indices)) - np.repeat(self.indptr[:-1], self.counts_N)

    def contains(self, docs: Array, labels: Array) -> Bool:
        """Return True where ``labels`` is positive for ``docs`` (arrays that broadcast); always False for PAD_ID."""
        docs, labels = np.broadcast_arrays(docs, labels)
        keys = np.repeat(np.arange(len(self)) * np.int64(self.num_labels), self.counts_N)
        keys += self.indices
        positive = np.zeros(labels.shape, bool)
        for block in _blocks(labels.shape):
            positive[block] = self._in_keys(keys, docs[block], labels[block])
        return positive

    def _in_keys(self, keys: I64, docs: Array, labels: Array) -> Bool:
        """Return True for pairs whose ``doc * L + label`` is among the rising ``keys``; False for PAD_ID."""
        queries = docs.astype(np.int64) * self.num_labels + labels
        positions = np.searchsorted(keys, queries)
        hit = np.zeros(queries.shape, bool)
        inside = positions < len(keys)
        hit[inside] = keys[positions[inside]] == queries[inside]
        return np.asarray(hit & (labels != PAD_ID))

    def where(self, kept_P: Bool) -> LabelMatrix:
        """Return the matrix with only the marked pairs; ``kept_P`` has the order of ``pairs``."""
        indptr = np.concatenate([[0], np.cumsum(kept_P)]).astype(np.int64)[self.indptr]
        return LabelMatrix(indptr, self.indices[kept_P], self.num_labels)

    def first(self, count: int) -> LabelMatrix:
        """Return the matrix with only the first ``count`` positives, by id, of each document."""
        return self.where(self.places() < count)

    def only(self, labels_L: Bool) -> LabelMatrix:
        """Return the matrix with only the pairs of marked labels."""
        return self.where(labels_L[self.indices])

    def transpose(self) -> LabelMatrix:
        """Return labels x documents."""
        docs, labels = self.pairs()
        order = np.argsort(labels, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(self.frequency_L())]).astype(np.int64)
        return LabelMatrix(indptr, docs[order].astype(np.int32), len(self))


def ragged_positions(starts: I64, counts: I64) -> I64:
    """Return the flat positions of ragged rows: starts[0], starts[0]+1, ... (counts[0] of them), and so on."""
    total = int(counts.sum())
    ends = np.cumsum(counts)
    return np.asarray(np.arange(total) + np.repeat(starts - (ends - counts), counts), np.int64)


def _blocks(shape: tuple[int, ...]) -> Iterator[EllipsisType | slice]:
    """Yield the rows of an array in blocks of at most _CELLS numbers, at least one row each."""
    if not shape:
        yield ...
        return
    step = max(_CELLS // max(math.prod(shape[1:]), 1), 1)
    yield from (slice(start, start + step) for start in range(0, shape[0], step))
