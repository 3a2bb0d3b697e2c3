"""Shortlists are sorted as a slow sort does it, and by one sort of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import search as naive
from xc_core.errors import DataError
from xc_core.shapes import PAD_ID, Shortlist, among, as_slice

SCORES = st.sampled_from([0.0, -0.0, 1.5, -1.5, 1e-45, -1e-45, 3e38, -3e38, np.inf, -np.inf]) | st.floats(width=32)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 2**31 - 2) | st.just(PAD_ID), SCORES), min_size=1, max_size=20))
def test_ranked_equals_a_slow_sort(pairs: list[tuple[int, float]]) -> None:
    """Scores of either sign, zeros of both signs, infinities, equal scores, holes, ids up to the largest."""
    ids, scores = [pair[0] for pair in pairs], np.array([pair[1] for pair in pairs], np.float32)
    scores[np.isnan(scores)] = 0
    found = Shortlist.ranked(np.array([ids]), scores[None])
    expected = naive.ranked(ids, scores.tolist())
    assert list(zip(found.ids_NK[0].tolist(), found.scores_NK[0].tolist(), strict=True)) == expected


def test_scores_that_are_not_numbers_come_last() -> None:
    """As before them: a score that overflowed may not become the best label."""
    scores = np.array([[np.nan, -np.inf, 2.0, -np.nan, 3.0]], np.float32)
    found = Shortlist.ranked(np.array([[0, 1, 2, 3, 4]]), scores)
    assert found.ids_NK[0].tolist() == [4, 2, 1, 0, 3]
    assert np.isnan(found.scores_NK[0, 3:]).all()


def test_every_row_is_ranked_alone() -> None:
    random = np.random.default_rng(0)
    ids, scores = random.integers(-1, 40, (50, 30)), random.standard_normal((50, 30)).round(1).astype(np.float32)
    found = Shortlist.ranked(ids, scores)
    for row in range(50):
        expected = naive.ranked(ids[row].tolist(), scores[row].tolist())
        assert found.ids_NK[row].tolist() == [pair[0] for pair in expected]


def test_ids_that_follow_one_another_are_a_slice() -> None:
    assert as_slice(np.array([3, 4, 5])) == slice(3, 6)
    for ids in ([], [3, 3, 5], [4, 3], [1, 3]):
        assert isinstance(as_slice(np.array(ids, np.int64)), np.ndarray)


@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(0, 5))
def test_ids_are_looked_for_in_their_own_row(seed: int, width: int, other: int) -> None:
    random = np.random.default_rng(seed)
    ids, known = (random.integers(-1, 4, (3, columns)).astype(np.int32) for columns in (width, other))
    wanted = [
        [one != PAD_ID and one in row for one in own] for own, row in zip(ids.tolist(), known.tolist(), strict=True)
    ]
    assert among(ids, known).tolist() == wanted


def test_a_hole_is_among_no_labels_whatever_the_text_before_it_has() -> None:
    ids_NK, known_NK = np.array([[4, 0], [PAD_ID, 4]], np.int32), np.array([[2, 4], [3, PAD_ID]], np.int32)
    assert among(ids_NK, known_NK).tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5])
def test_the_first_labels_of_a_shortlist_are_cut_or_padded_to_the_width_asked_for(k: int) -> None:
    short = Shortlist(
        np.array([[4, 2, 7], [1, 0, PAD_ID]], np.int32), np.array([[3, 2, 1], [5, 4, -np.inf]], np.float32)
    )
    first = short.top(k)
    assert first.ids_NK.tolist() == [[4, 2, 7, *[PAD_ID] * 2][:k], [1, 0, *[PAD_ID] * 3][:k]]
    assert first.scores_NK.tolist() == [[3, 2, 1, *[-np.inf] * 2][:k], [5, 4, *[-np.inf] * 3][:k]]


def test_a_shortlist_without_some_labels_ends_in_holes() -> None:
    ids_NK, scores_NK = (
        np.array([[4, 2, 7], [1, 0, PAD_ID]], np.int32),
        np.array([[3, 2, 1], [5, 4, -np.inf]], np.float32),
    )
    left = Shortlist(ids_NK, scores_NK).without(np.isin(ids_NK, (2, 1)))
    assert left.ids_NK.tolist() == [[4, 7, PAD_ID], [0, PAD_ID, PAD_ID]]
    assert left.scores_NK.tolist() == [[3, 1, -np.inf], [4, -np.inf, -np.inf]]
    assert (left.ids_NK.dtype, left.scores_NK.dtype) == (np.int32, np.float32)


def test_the_lists_of_another_program_become_a_shortlist() -> None:
    found = Shortlist.of([[3, 0], [], np.array([PAD_ID, 2, PAD_ID], np.int64)], 4)
    assert found.ids_NK.tolist() == [[3, 0], [PAD_ID, PAD_ID], [2, PAD_ID]]
    assert Shortlist.of([[3, 0], [1, 2]], 4).ids_NK.tolist() == [[3, 0], [1, 2]]
    assert found.ids_NK.dtype == np.int32
    assert Shortlist.ranked(found.ids_NK, found.scores_NK).ids_NK.tolist() == found.ids_NK.tolist()
    assert Shortlist.of([], 4).ids_NK.shape == (0, 0)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([0, 4], "the label 4 in row 1"),
        ([-2], "the label -2 in row 1"),
        ([2, 1, 2], "the label 2 twice in row 1"),
        ([0.5], "labels of the type float64"),
        (["n02084071"], "labels of the type <U"),
    ],
)
def test_a_list_that_no_evaluation_should_read_is_refused(row: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Shortlist.of([[1], row], 4)
