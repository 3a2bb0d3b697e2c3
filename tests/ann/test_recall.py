"""Recall against sets, and against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import search as naive
from xc_core.ann import recall
from xc_core.shapes import PAD_ID, Shortlist


def shortlist(rows: list[list[int]], k: int) -> Shortlist:
    ids = np.array([row + [PAD_ID] * (k - len(row)) for row in rows], np.int32).reshape(-1, k)
    return Shortlist(ids, np.zeros(ids.shape, np.float32))


def test_recall_by_hand() -> None:
    true = shortlist([[0, 1], [4], []], 2)
    assert recall(shortlist([[1, 7, 0], [3, 2, 5], [0, 1, 2]], 3), true) == pytest.approx(2 / 3)
    assert recall(shortlist([[4], [0], [1]], 1), true) == 0.0
    assert recall(true, true) == 1.0


def test_without_a_true_label_recall_is_1() -> None:
    assert recall(shortlist([[1]], 1), shortlist([[]], 1)) == 1.0


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9), st.integers(1, 9))
def test_recall_equals_the_sets(seed: int, size: int, k: int, true_k: int) -> None:
    random = np.random.default_rng(seed)
    found, true = (
        shortlist([random.permutation(12)[: random.integers(0, width + 1)].tolist() for _ in range(size)], width)
        for width in (k, true_k)
    )
    assert recall(found, true) == pytest.approx(naive.recall(found, true))


def test_unequal_numbers_of_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="1 shortlists against 2"):
        recall(shortlist([[1]], 1), shortlist([[1], [2]], 1))
