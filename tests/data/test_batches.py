"""Chunks of similar length: every position once, within the budget, in time linear in the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.data.batches import by_length

LENGTHS = st.lists(st.integers(0, 40), max_size=60)


def naive_chunks(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Put rows, shortest first, into a chunk until the next one would exceed the budget."""
    chunks: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if chunks and (len(chunks[-1]) + 1) * lengths[position] <= max_tokens:
            chunks[-1].append(position)
        else:
            chunks.append([position])
    return chunks


@settings(deadline=None, max_examples=150)
@given(LENGTHS.map(lambda lengths: [max(length, 1) for length in lengths]), st.integers(1, 100))
def test_chunks_equal_a_naive_implementation(lengths: list[int], max_tokens: int) -> None:
    assert [chunk.tolist() for chunk in by_length(np.array(lengths, np.int64), max_tokens)] == naive_chunks(
        lengths, max_tokens
    )


@settings(deadline=None, max_examples=100)
@given(LENGTHS, st.integers(1, 100))
def test_every_position_once_and_within_the_budget(lengths: list[int], max_tokens: int) -> None:
    chunks = by_length(np.array(lengths, np.int64), max_tokens)
    assert sorted(position for chunk in chunks for position in chunk.tolist()) == list(range(len(lengths)))
    for chunk in chunks:
        longest = max(lengths[position] for position in chunk)
        assert len(chunk) == 1 or len(chunk) * longest <= max_tokens
    flat = [lengths[position] for chunk in chunks for position in chunk]
    assert flat == sorted(flat)


def cost(chunks: list[list[int]], lengths: list[int], pass_cost: int) -> int:
    return sum(pass_cost + len(chunk) * max(lengths[position] for position in chunk) for chunk in chunks)


def naive_least(lengths: list[int], pass_cost: int) -> int:
    """Return the least cost of all ways to cut the ascending lengths."""
    ascending = sorted(lengths)
    best = [0]
    for end in range(1, len(ascending) + 1):
        best.append(min(best[start] + pass_cost + (end - start) * ascending[end - 1] for start in range(end)))
    return best[-1]


@settings(deadline=None, max_examples=150)
@given(LENGTHS, st.integers(0, 60))
def test_with_a_cost_per_chunk_the_sum_is_the_least_if_no_chunk_is_too_large(
    lengths: list[int], pass_cost: int
) -> None:
    chunks = [chunk.tolist() for chunk in by_length(np.array(lengths, np.int64), 10**6, pass_cost)]
    assert [lengths[position] for chunk in chunks for position in chunk] == sorted(lengths)
    assert cost(chunks, lengths, pass_cost) == naive_least(lengths, pass_cost)


@settings(deadline=None, max_examples=150)
@given(LENGTHS, st.integers(1, 100), st.integers(0, 60))
def test_with_a_cost_per_chunk_every_position_is_there_once_within_the_budget(
    lengths: list[int], max_tokens: int, pass_cost: int
) -> None:
    chunks = by_length(np.array(lengths, np.int64), max_tokens, pass_cost)
    assert sorted(position for chunk in chunks for position in chunk.tolist()) == list(range(len(lengths)))
    assert all(len(chunk) == 1 or len(chunk) * np.array(lengths)[chunk].max() <= max_tokens for chunk in chunks)


def test_a_cost_per_chunk_saves_padding_up_to_what_chunks_cost() -> None:
    lengths = np.array([2] * 8 + [10] * 8)
    assert [len(chunk) for chunk in by_length(lengths, 1000)] == [16]
    assert [len(chunk) for chunk in by_length(lengths, 1000, 63)] == [8, 8], "64 padded tokens are saved"
    assert [len(chunk) for chunk in by_length(lengths, 1000, 65)] == [16]
    assert [len(chunk) for chunk in by_length(lengths, 40, 63)] == [8, 4, 4], "chunks are filled up to the budget"


def test_a_length_costs_as_many_chunks_as_the_budget_divides_it_into() -> None:
    """A short text in a chunk of long ones saves no chunk if these need another one for it."""
    chunks = by_length(np.array([1, 10, 10, 10, 10]), 20, 20)
    assert [chunk.tolist() for chunk in chunks] == [[0], [1, 2], [3, 4]]


def test_equal_lengths_keep_their_order() -> None:
    assert [chunk.tolist() for chunk in by_length(np.full(5, 3), 6)] == [[0, 1], [2, 3], [4]]


def test_a_text_over_the_budget_is_a_chunk_of_its_own() -> None:
    assert [chunk.tolist() for chunk in by_length(np.array([9, 1, 30]), 8)] == [[1], [0], [2]]


def test_lengths_are_not_changed() -> None:
    lengths = np.array([3, 1, 2])
    by_length(lengths, 4)
    assert lengths.tolist() == [3, 1, 2]


@pytest.mark.parametrize("shape", ["equal", "spread", "heavy tail"])
def test_work_grows_with_the_number_of_rows_only(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the elements of every window that is searched, because times vary on a busy machine."""
    size, seen = 20_000, []
    lengths = {
        "equal": np.full(size, 12),
        "spread": np.arange(size) % 500 + 1,
        "heavy tail": (500 / (np.arange(size) % 499 + 1)).astype(np.int64),
    }[shape]
    real = np.searchsorted
    monkeypatch.setattr(np, "searchsorted", lambda a, v, side: (seen.append(len(a)), real(a, v, side))[1])
    chunks = by_length(lengths, 4096)
    assert len(seen) == len(chunks) and sum(seen) < 4 * size, f"{sum(seen)} elements in {len(seen)} windows"
