"""Uniform and mined labels in a pool: every label is drawn equally often, and searches find what sets find."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.naive import sampling as naive
from tests.naive import search
from xc_core.data.labels import LabelMatrix
from xc_core.sampling import NEGATIVES, TEXTS, Documents, Mined, NegativeSource
from xc_core.shapes import F32, PAD_ID

SIZE, LABELS, WIDTH = 40, 25, 8
DOCS = np.array([3, 17, 22, 39])


def truth() -> LabelMatrix:
    docs, labels = np.nonzero(np.random.default_rng(0).random((SIZE, LABELS)) < 0.12)
    return LabelMatrix.from_pairs(docs, labels, (SIZE, LABELS))


def positives() -> list[set[int]]:
    return [set(truth().row(doc).tolist()) for doc in range(SIZE)]


def source(kind: str, **settings: Any) -> NegativeSource:
    return NEGATIVES[kind](**settings).build(Documents(truth()), 0)


def refresh(own: NegativeSource, epoch: int, docs: F32, texts: F32) -> dict[str, float]:
    """Refresh a source that has to search the label texts: there are no other vectors."""
    return own.refresh(epoch, docs, {TEXTS: texts})


def banks() -> tuple[F32, F32]:
    random = np.random.default_rng(1)
    return tuple(random.standard_normal((n, WIDTH)).astype(np.float32) for n in (SIZE, LABELS))  # type: ignore[return-value]


def test_a_mixture_holds_the_sampled_positives_and_the_drawn_labels() -> None:
    for step in range(20):
        in_batch = set(source("in-batch").pool(DOCS, step).labels_U.tolist())
        mixed = source("mixture", uniform=5).pool(DOCS, step).labels_U.tolist()
        assert in_batch <= set(mixed)
        assert len(in_batch) < len(mixed) <= len(in_batch) + 5


def test_every_label_is_drawn_equally_often() -> None:
    """Chi-square of 4,000 draws of 5 of 25 labels: 24 degrees of freedom, beyond 51.2 once in a thousand."""
    drawer = source("mixture", uniform=5)
    nobody = np.zeros(0, np.int64)
    counts = np.bincount(np.concatenate([drawer.pool(nobody, step).labels_U for step in range(4000)]), minlength=LABELS)
    expected = 4000 * 5 / LABELS
    statistic = ((counts - expected) ** 2 / expected).sum() / (1 - 5 / LABELS)
    assert counts.sum() == 20_000
    assert statistic < 51.2


@pytest.mark.parametrize("uniform", [LABELS, LABELS + 1, 10_000])
def test_a_mixture_of_as_many_labels_as_there_are_is_all_labels(uniform: int) -> None:
    found = source("mixture", uniform=uniform).pool(DOCS, 0)
    assert found.labels_U.tolist() == list(range(LABELS))
    assert found.known_BU.tolist() == [[label in positives()[doc] for label in range(LABELS)] for doc in DOCS]


def test_mined_labels_are_the_nearest_that_are_no_positives() -> None:
    docs, labels = banks()
    mined = source("mined", hard=4, search=4)
    figures = refresh(mined, 1, docs, labels)
    nearest = naive.hard_negatives(search.nearest(labels, docs, LABELS), positives(), 4)
    assert [sorted(row) for row in mined.arrays()["hard"].tolist()] == [sorted(row) for row in nearest]
    assert figures == {"hard_negatives": 4.0, "hard_recall": 1.0}
    wanted = set().union(*(nearest[doc] for doc in DOCS))
    pooled = set(mined.pool(DOCS, 0).labels_U.tolist())
    assert pooled == wanted | set(source("in-batch").pool(DOCS, 0).labels_U.tolist())


def test_hard_negatives_of_many_documents_are_not_stale_either_right_after_their_search() -> None:
    """Staleness is measured on a sample of 256."""
    random = np.random.default_rng(1)
    docs, texts = (random.standard_normal((n, WIDTH)).astype(np.float32) for n in (300, LABELS))
    mined = Mined(search=4).build(Documents(LabelMatrix.none(300, LABELS)), 0)
    assert refresh(mined, 1, docs, texts)["hard_recall"] == 1.0


def test_as_many_are_drawn_as_asked_for_and_each_equally_often() -> None:
    docs, labels = banks()
    mined = source("mined", hard=2, search=6, positives=1)
    refresh(mined, 1, docs, labels)
    own = set(mined.arrays()["hard"][3].tolist())
    counts = dict.fromkeys(own, 0)
    for step in range(3000):
        sampled = set(source("in-batch").pool(DOCS[:1], step).labels_U.tolist())
        drawn = set(mined.pool(DOCS[:1], step).labels_U.tolist()) - sampled
        assert len(drawn) == 2
        assert drawn <= own
        for label in drawn:
            counts[label] += 1
    deviation = math.sqrt(3000 * (1 / 3) * (2 / 3))
    assert all(abs(count - 1000) < 4 * deviation for count in counts.values())


def test_a_neighbours_hard_negative_that_is_a_positive_is_learnt_from_if_positives_are_shared() -> None:
    docs, labels = banks()
    chosen = {}
    for share in (True, False):
        mined = source("mined", hard=6, search=6, share=share)
        refresh(mined, 1, docs, labels)
        found = mined.pool(np.arange(SIZE), 0)
        assert found.known_BU.tolist() == naive.masks(found.labels_U.tolist(), positives())
        chosen[share] = found.chosen_BU
        assert (found.chosen_BU == found.known_BU).all() == share
    assert chosen[True].sum() > 2 * chosen[False].sum()


def test_labels_are_searched_only_when_due_and_the_result_is_state() -> None:
    docs, labels = banks()
    mined = source("mined", refresh_every=2, warmup_epochs=1)
    due = [bool(refresh(mined, epoch, docs, labels)) for epoch in range(6)]
    assert due == [False, True, False, True, False, True]
    other = source("mined")
    other.load(mined.arrays())
    first, second = mined.pool(DOCS, 7), other.pool(DOCS, 7)
    assert first.labels_U.tolist() == second.labels_U.tolist()


def test_a_document_with_too_few_negatives_adds_no_hole_to_the_pool() -> None:
    full = LabelMatrix.from_pairs(np.array([0, 0, 0, 1]), np.array([0, 1, 2, 0]), (2, 4))
    mined = Mined(hard=3, search=3).build(Documents(full), 0)
    random = np.random.default_rng(0)
    refresh(mined, 1, *(random.standard_normal((n, WIDTH)).astype(np.float32) for n in (2, 4)))
    assert (mined.arrays()["hard"] == PAD_ID).any()
    assert set(mined.pool(np.array([0]), 0).labels_U.tolist()) <= {0, 1, 2, 3}
