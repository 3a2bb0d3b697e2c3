"""Hard negatives and the audit of batches against plain sets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrays import matrix, unit
from tests.naive import sampling as naive
from xc_core.sampling import (
    Documents,
    Importance,
    InBatch,
    audit_batches,
    hard_negatives,
    missed_by_pools,
)
from xc_core.shapes import F32, PAD_ID, Shortlist


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


def test_without_hard_negatives_the_audit_is_not_a_number() -> None:
    assert math.isnan(audit_batches(shortlist([[]], 2), np.array([0]), matrix([{0}], 2), [np.array([0])]))


def test_scores_stay_with_their_labels() -> None:
    found = hard_negatives(shortlist([[3, 1, 2, 0]], 4), matrix([{1, 3}], 5), 3)
    assert found.ids_NK.tolist() == [[2, 0, PAD_ID]]
    assert found.scores_NK.tolist() == [[-2.0, -3.0, -math.inf]]


def directions(random: np.random.Generator, size: int) -> F32:
    return unit(random.standard_normal((size, 3)).astype(np.float32))


@pytest.mark.parametrize("positives", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_hard_negatives_missed_by_pools_equal_a_loop(seed: int, positives: int) -> None:
    random = np.random.default_rng(seed)
    rows = [set(random.choice(9, random.integers(0, 4), replace=False).tolist()) for _ in range(20)]
    truth, radius = matrix(rows, 10), 1.0
    docs, labels = directions(random, 20), directions(random, 10)
    batches = np.array_split(random.permutation(20), 5)
    source = InBatch(positives=positives).build(Documents(truth), 7)
    hard = missed = 0
    for number, batch in enumerate(batches):
        pool = {*source.pool(batch, -1 - number).labels_U.tolist()}
        for i in batch.tolist():
            for x in set().union(*rows) - rows[i]:
                if math.dist(docs[i], labels[x]) <= radius:
                    hard, missed = hard + 1, missed + (x not in pool)
    assert 0 < missed < hard
    found = missed_by_pools((docs, labels), truth, batches, source, radius=radius, seed=0)
    assert found == pytest.approx(missed / hard)


def test_a_batch_of_all_documents_misses_nothing_and_the_share_of_none_is_not_a_number() -> None:
    random = np.random.default_rng(0)
    truth = matrix([{i % 4} for i in range(8)], 4)
    vectors = directions(random, 8), directions(random, 4)
    source = InBatch(positives=0).build(Documents(truth), 0)
    assert missed_by_pools(vectors, truth, [np.arange(8)], source, radius=2.0, seed=0) == 0.0
    assert missed_by_pools(vectors, truth, [np.array([i]) for i in range(8)], source, radius=2.0, seed=0) == 1.0
    assert math.isnan(missed_by_pools(vectors, truth, [np.arange(8)], source, radius=0.0, seed=0))


def test_a_filtered_pair_is_no_hard_negative_that_a_batch_could_miss() -> None:
    """Of six pairs the first batch holds two; the other document's two are filtered, or missed."""
    truth, filters = matrix([{0}, {1}, {2}], 3), matrix([set(), set(), {0, 1}], 3)
    vectors, batches = (np.eye(3, dtype=np.float32),) * 2, [np.array([0, 1]), np.array([2])]
    for aside, missed in ((None, 4 / 6), (filters, 2 / 4)):
        source = InBatch(positives=0).build(Documents(truth, aside), 0)
        assert missed_by_pools(vectors, truth, batches, source, radius=2.0, seed=0) == pytest.approx(missed)


def test_a_label_without_weight_for_a_document_is_missed() -> None:
    truth = matrix([{0}, {1}], 3)
    config = Importance(positives=0, hard=1, uniform=0, search_in="texts", warmup_epochs=0)
    source = config.build(Documents(truth), 0)
    vectors = np.eye(3, dtype=np.float32)[:2], np.eye(3, dtype=np.float32)
    source.load({"hard": np.array([[2], [2]], np.int32), "epoch": np.array([0])})
    assert missed_by_pools(vectors, truth, [np.arange(2)], source, radius=2.0, seed=0) == 1.0
