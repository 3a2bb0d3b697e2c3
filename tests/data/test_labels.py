"""LabelMatrix equals an implementation with Python sets, on any pairs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.data.labels import LabelMatrix, ragged_positions
from xc_core.shapes import PAD_ID

Pairs = list[tuple[int, int]]


@st.composite
def matrices(draw: st.DrawFn) -> tuple[LabelMatrix, list[set[int]]]:
    """Draw pairs in any order, with repeats; return the matrix, and the set of labels of each document."""
    documents, labels = draw(st.integers(0, 8)), draw(st.integers(0, 8))
    places = st.tuples(st.integers(0, max(documents - 1, 0)), st.integers(0, max(labels - 1, 0)))
    pairs: Pairs = draw(st.lists(places, max_size=30)) if documents and labels else []
    twin: list[set[int]] = [set() for _ in range(documents)]
    for doc, label in pairs:
        twin[doc].add(label)
    docs, ids = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    return LabelMatrix.from_pairs(
        docs, ids.astype(draw(st.sampled_from([np.int32, np.int64]))), (documents, labels)
    ), twin


def as_sets(matrix: LabelMatrix) -> list[set[int]]:
    return [set(matrix.row(doc).tolist()) for doc in range(len(matrix))]


def test_a_few_documents_cost_nothing_of_all_others() -> None:
    matrix = LabelMatrix.none(1 << 20, 1)
    tracemalloc.start()
    try:
        matrix.rows(np.arange(2))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_identity_gives_each_label_a_document_of_its_own() -> None:
    matrix = LabelMatrix.identity(3)
    assert (as_sets(matrix), matrix.shape) == ([{0}, {1}, {2}], (3, 3))
    assert (matrix.indptr.dtype, matrix.indices.dtype) == (np.int64, np.int32)


@settings(deadline=None, max_examples=80)
@given(matrices())
def test_from_pairs_row_counts_frequency_and_pairs(drawn: tuple[LabelMatrix, list[set[int]]]) -> None:
    matrix, twin = drawn
    assert as_sets(matrix) == twin and len(matrix) == len(twin) and matrix.shape == (len(twin), matrix.num_labels)
    assert matrix.counts_N.tolist() == [len(row) for row in twin]
    frequency = [sum(label in row for row in twin) for label in range(matrix.num_labels)]
    assert matrix.frequency_L().tolist() == frequency
    docs, labels = matrix.pairs()
    assert list(zip(docs.tolist(), labels.tolist(), strict=True)) == [
        (d, x) for d, row in enumerate(twin) for x in sorted(row)
    ]
    assert (matrix.indptr.dtype, matrix.indices.dtype, matrix.frequency_L().dtype) == (np.int64, np.int32, np.int64)


@settings(deadline=None, max_examples=60)
@given(matrices(), st.integers(1, 4))
def test_first_keeps_the_smallest_ids_of_each_document(drawn: tuple[LabelMatrix, list[set[int]]], count: int) -> None:
    matrix, twin = drawn
    assert as_sets(matrix.first(count)) == [set(sorted(row)[:count]) for row in twin]
    assert matrix.first(count).shape == matrix.shape


@settings(deadline=None, max_examples=60)
@given(matrices(), st.data())
def test_a_union_has_the_pairs_of_both(drawn: tuple[LabelMatrix, list[set[int]]], data: st.DataObject) -> None:
    matrix, twin = drawn
    kept = np.array([data.draw(st.booleans()) for _ in matrix.indices], bool)
    parts = matrix.where(kept), matrix.where(~kept)
    assert as_sets(parts[0].union(parts[1])) == twin
    assert as_sets(matrix.union(parts[0])) == twin
    assert as_sets(matrix.union(LabelMatrix.none(*matrix.shape))) == twin


@settings(deadline=None, max_examples=60)
@given(matrices(), st.data())
def test_rows_may_be_taken_in_any_order_and_more_than_once(
    drawn: tuple[LabelMatrix, list[set[int]]], data: st.DataObject
) -> None:
    matrix, twin = drawn
    chosen = data.draw(st.lists(st.integers(0, len(twin) - 1), max_size=12)) if twin else []
    taken = matrix.rows(np.array(chosen, np.int64))
    assert as_sets(taken) == [twin[doc] for doc in chosen] and taken.num_labels == matrix.num_labels
    assert as_sets(taken.transpose()) == [
        {at for at, doc in enumerate(chosen) if label in twin[doc]} for label in range(matrix.num_labels)
    ]


@settings(deadline=None, max_examples=60)
@given(matrices())
def test_transpose_turns_documents_into_labels(drawn: tuple[LabelMatrix, list[set[int]]]) -> None:
    matrix, twin = drawn
    turned = matrix.transpose()
    assert as_sets(turned) == [{doc for doc, row in enumerate(twin) if x in row} for x in range(matrix.num_labels)]
    assert turned.shape == matrix.shape[::-1]
    again = turned.transpose()
    assert again.indptr.tolist() == matrix.indptr.tolist() and again.indices.tolist() == matrix.indices.tolist()


@settings(deadline=None, max_examples=60)
@given(matrices(), st.data())
def test_contains_is_membership_and_padding_is_never_in(
    drawn: tuple[LabelMatrix, list[set[int]]], data: st.DataObject
) -> None:
    matrix, twin = drawn
    if not matrix.num_labels or not twin:
        return
    every = np.arange(len(twin))[:, None]
    candidates = np.concatenate([[PAD_ID], np.arange(matrix.num_labels), [PAD_ID]])[None, :]
    expected = [[label != PAD_ID and label in row for label in candidates[0].tolist()] for row in twin]
    assert matrix.contains(every, candidates).tolist() == expected
    docs = np.array(data.draw(st.lists(st.integers(0, len(twin) - 1), max_size=9)), np.int64)
    labels = np.array([data.draw(st.integers(PAD_ID, matrix.num_labels - 1)) for _ in docs], np.int32)
    assert matrix.contains(docs, labels).tolist() == [int(x) in twin[d] for d, x in zip(docs, labels, strict=True)]


def test_contains_does_not_overflow_if_documents_times_labels_exceed_32_bits() -> None:
    size = 3_000_000
    matrix = LabelMatrix.from_pairs(np.array([0, 2_000]), np.array([size - 1, size - 1], np.int32), (2_001, size))
    docs, labels = np.array([0, 2_000, 2_000], np.int32), np.array([size - 1, size - 1, 0], np.int32)
    assert matrix.contains(docs, labels).tolist() == [True, True, False]


def test_arguments_are_not_changed() -> None:
    docs, labels = np.array([2, 0, 2, 2]), np.array([1, 1, 0, 1], np.int32)
    matrix = LabelMatrix.from_pairs(docs, labels, (3, 2))
    rows = np.array([2, 1])
    matrix.rows(rows), matrix.transpose(), matrix.contains(rows, labels[:2])
    assert docs.tolist() == [2, 0, 2, 2] and labels.tolist() == [1, 1, 0, 1] and rows.tolist() == [2, 1]


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5)), max_size=20))
def test_ragged_positions_lays_ranges_end_to_end(ranges: list[tuple[int, int]]) -> None:
    starts, counts = (np.array([pair[side] for pair in ranges], np.int64) for side in (0, 1))
    expected = [position for start, count in ranges for position in range(start, start + count)]
    assert ragged_positions(starts, counts).tolist() == expected


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (3, 4)])
def test_a_matrix_without_pairs(shape: tuple[int, int]) -> None:
    none = np.zeros(0, np.int64)
    matrix = LabelMatrix.from_pairs(none, none, shape)
    assert matrix.shape == shape and matrix.transpose().shape == shape[::-1] and not matrix.counts_N.any()
