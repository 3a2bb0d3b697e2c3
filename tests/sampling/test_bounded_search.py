"""Searches for hard negatives and the figures of batches: memory and work that hostile shapes must not blow up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests import arrays
from tests.arrays import masked
from tests.bounded import bounded
from xc_core.ann import Exact, Index
from xc_core.data.labels import LabelMatrix
from xc_core.sampling import Documents, InBatch, hard_negatives, missed_by_pools, search_negatives
from xc_core.shapes import F32, PAD_ID, Shortlist

MANY = 20_000
"""Labels of the one document that has very many."""


def unit(size: int, width: int) -> F32:
    return arrays.unit(np.random.default_rng(size).standard_normal((size, width), np.float32))


def one_with_many(docs: int, labels: int) -> LabelMatrix:
    """Return documents with one label each, but for the one in the middle, which has MANY."""
    counts = np.ones(docs, np.int64)
    counts[docs // 2] = MANY
    ids = np.concatenate([np.arange(count) if count > 1 else [i % labels] for i, count in enumerate(counts)])
    return LabelMatrix.from_pairs(np.repeat(np.arange(docs), counts), ids, (docs, labels))


def one_document_with_many_labels() -> Callable[[], None]:
    docs, labels = unit(8_000, 8), unit(MANY + 100, 8)
    known, index = one_with_many(len(docs), len(labels)), Exact().build(labels)

    def search() -> None:
        found = search_negatives(index, docs, np.arange(len(docs)), known, 20)
        assert found.filled_NK.all()
        assert not known.contains(np.arange(len(docs))[:, None], found.ids_NK).any()

    return search


def test_one_document_with_many_labels_does_not_widen_the_search_of_all() -> None:
    """If it did, 8,000 x 20,020 candidates would be in memory: 2 GB."""
    bounded(one_document_with_many_labels, megabytes=160)


@dataclass
class Counting:
    """An index that records how many candidates it was asked for."""

    inner: Index
    asked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.inner.size

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        self.asked.append((len(queries_BD), k))
        return self.inner.search(queries_BD, k)


def test_each_document_is_searched_for_at_most_twice_what_it_needs() -> None:
    docs, labels = unit(500, 4), unit(MANY + 100, 4)
    known, index = one_with_many(500, len(labels)), Counting(Exact().build(labels))
    search_negatives(index, docs, np.arange(500), known, 7)  # type: ignore[arg-type]
    assert sorted(index.asked) == [(1, len(labels)), (499, 8)]


def test_hard_negatives_are_those_of_one_wide_search() -> None:
    """Rows in another order, many numbers of labels per document, more asked for than there are labels."""
    random = np.random.default_rng(0)
    docs, labels, rows = unit(300, 4), unit(90, 4), random.permutation(300)[:200]
    held = random.random((200, 90)) < random.random((200, 1)) ** 3
    known, index = masked(held), Exact().build(labels)
    for k in (1, 7, 95):
        wide = hard_negatives(index.search(docs[rows], k + int(known.counts_N.max())), known, k)
        found = search_negatives(index, docs, rows, known, k)
        assert np.array_equal(found.ids_NK, wide.ids_NK)
        np.testing.assert_allclose(found.scores_NK, wide.scores_NK, rtol=1e-6)
    assert (found.ids_NK == PAD_ID).any()


def test_no_documents_have_no_hard_negatives() -> None:
    found = search_negatives(Exact().build(unit(9, 4)), unit(5, 4), np.zeros(0, np.int64), LabelMatrix.none(0, 9), 3)
    assert found.ids_NK.shape == (0, 3)


def million_labels() -> Callable[[], None]:
    """Batches of 256 documents with random positives among 1 M labels."""
    docs, labels = unit(512, 8), unit(1_000_000, 8)
    pairs = np.random.default_rng(0).integers(0, len(labels), 512 * 4)
    truth = LabelMatrix.from_pairs(np.repeat(np.arange(512), 4), pairs, (512, len(labels)))
    source = InBatch(positives=0).build(Documents(truth), 0)

    def measure() -> None:
        batches = np.array_split(np.arange(512), 2)
        assert missed_by_pools((docs, labels), truth, batches, source, radius=2.0, seed=0) > 0

    return measure


def test_batches_are_measured_without_scores_of_all_labels() -> None:
    """They would take 256 x 1 M x 5 bytes = 1.3 GB."""
    bounded(million_labels, megabytes=128)
