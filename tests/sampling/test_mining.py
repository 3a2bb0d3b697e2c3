"""Hard negatives and the audit of batches against plain sets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import sampling as naive
from xc_core.data.labels import LabelMatrix
from xc_core.sampling import audit_batches, hard_negatives
from xc_core.shapes import PAD_ID, Shortlist


def matrix(rows: list[set[int]], labels: int) -> LabelMatrix:
    docs, ids = np.array([(i, x) for i, row in enumerate(rows) for x in row], np.int64).reshape(-1, 2).T
    return LabelMatrix.from_pairs(docs, ids, (len(rows), labels))


def shortlist(rows: list[list[int]], k: int) -> Shortlist:
    ids = np.array([row + [PAD_ID] * (k - len(row)) for row in rows], np.int32).reshape(-1, k)
    scores = np.where(ids == PAD_ID, -np.inf, -np.arange(k, dtype=np.float32))
    return Shortlist(ids, scores.astype(np.float32))


def plain(found: Shortlist) -> list[list[int]]:
    return [row[row != PAD_ID].tolist() for row in found.ids_NK]


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 9), st.integers(1, 9), st.integers(1, 5))
def test_hard_negatives_and_their_audit_equal_the_slow_twins(
    seed: int, size: int, width: int, k: int, batches: int
) -> None:
    random = np.random.default_rng(seed)
    truth = [set(np.flatnonzero(random.random(12) < 0.2).tolist()) for _ in range(size)]
    docs = np.sort(random.choice(size, random.integers(1, size + 1), replace=False))
    ranked = [random.permutation(12)[: random.integers(0, width + 1)].tolist() for _ in docs]
    own = [truth[doc] for doc in docs]
    found = hard_negatives(shortlist(ranked, width), matrix(own, 12), k)
    assert found.k == k
    assert plain(found) == naive.hard_negatives(ranked, own, k)
    parts = [part for part in np.array_split(random.permutation(size), batches) if len(part)]
    share = audit_batches(found, docs, matrix(truth, 12), parts)
    slow = naive.audit(plain(found), docs.tolist(), truth, [part.tolist() for part in parts])
    assert share == pytest.approx(slow, nan_ok=True)


def test_an_audit_by_hand() -> None:
    truth = matrix([{0}, {1}, {2}, {3}], 5)
    negatives = shortlist([[1, 2], [0]], 2)
    docs = np.array([0, 2])
    assert audit_batches(negatives, docs, truth, [np.array([0, 1]), np.array([2, 3])]) == pytest.approx(1 / 3)
    assert audit_batches(negatives, docs, truth, [np.arange(4)]) == 1.0
    assert audit_batches(negatives, docs, truth, [np.array([i]) for i in range(4)]) == 0.0


def test_without_hard_negatives_there_is_nothing_to_say() -> None:
    assert math.isnan(audit_batches(shortlist([[]], 2), np.array([0]), matrix([{0}], 2), [np.array([0])]))


def test_scores_stay_with_their_labels() -> None:
    found = hard_negatives(shortlist([[3, 1, 2, 0]], 4), matrix([{1, 3}], 5), 3)
    assert found.ids_NK.tolist() == [[2, 0, PAD_ID]]
    assert found.scores_NK.tolist() == [[-2.0, -3.0, -math.inf]]
