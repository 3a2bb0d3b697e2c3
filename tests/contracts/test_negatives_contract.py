"""The contract of a source of negatives, for every source in the table: a pool of labels and correct masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.naive import sampling as naive
from xc_core.data.labels import LabelMatrix
from xc_core.sampling import NEGATIVES, ROWS, TEXTS, Documents, NegativeSource, Pool
from xc_core.shapes import I32, I64, PAD_ID

pytestmark = [
    pytest.mark.parametrize("kind", NEGATIVES.names()),
    pytest.mark.parametrize("positives", [0, 1, 3]),
]

SIZE, LABELS = 60, 25
SETTINGS = {"importance": {"hard": 1}}


def truth() -> LabelMatrix:
    """0 to 6 positives a document; documents 0 and 1 have none."""
    random = np.random.default_rng(0)
    rows = random.random((SIZE, LABELS)) < 0.12
    rows[:2] = False
    docs, labels = np.nonzero(rows)
    return LabelMatrix.from_pairs(docs, labels, (SIZE, LABELS))


def stored() -> I32:
    """Return up to 3 hard negatives per document; every fourth document has 2."""
    random = np.random.default_rng(2)
    rows = [random.permutation([label for label in range(LABELS) if label not in own])[:3] for own in positives_of()]
    hard_NK = np.array(rows, np.int32)
    hard_NK[::4, -1] = PAD_ID
    return hard_NK


def positives_of() -> list[set[int]]:
    return [set(truth().row(doc).tolist()) for doc in range(SIZE)]


def build(kind: str, positives: int, seed: int = 0) -> NegativeSource:
    return NEGATIVES[kind](positives=positives, **SETTINGS.get(kind, {})).build(Documents(truth(), hard=stored), seed)


def refreshed(kind: str, positives: int, seed: int = 0) -> NegativeSource:
    """Return a source after the refreshes of two epochs."""
    source = build(kind, positives, seed)
    random = np.random.default_rng(5)
    docs, texts, rows = (random.standard_normal((size, 8)).astype(np.float32) for size in (SIZE, LABELS, LABELS))
    for epoch in range(2):
        source.refresh(epoch, docs, {TEXTS: texts, ROWS: rows})
    return source


def pool(kind: str, positives: int, docs: I64, step: int = 3, seed: int = 0) -> Pool:
    return refreshed(kind, positives, seed).pool(docs, step)


def plain(found: Pool) -> list[object]:
    return [found.labels_U.tolist(), found.chosen_BU.tolist(), found.known_BU.tolist()]


DOCS = np.array([7, 0, 33, 12, 59, 1, 20, 21])


def test_pooled_labels_are_distinct_and_rising(kind: str, positives: int) -> None:
    found = pool(kind, positives, DOCS)
    assert found.labels_U.dtype == np.int64
    assert (np.diff(found.labels_U) > 0).all()
    assert found.chosen_BU.shape == found.known_BU.shape == (len(DOCS), len(found.labels_U))


def test_every_positive_in_the_pool_is_known_whichever_document_added_it(kind: str, positives: int) -> None:
    found = pool(kind, positives, DOCS)
    own = [positives_of()[doc] for doc in DOCS.tolist()]
    assert found.known_BU.tolist() == naive.masks(found.labels_U.tolist(), own)


def test_as_many_positives_are_chosen_as_asked_for_and_there_are(kind: str, positives: int) -> None:
    found = pool(kind, positives, DOCS)
    assert not (found.chosen_BU & ~found.known_BU).any()
    have = truth().counts_N[DOCS]
    assert found.chosen_BU.sum(1).tolist() == (np.minimum(have, positives) if positives else have).tolist()


def test_seed_and_step_decide_the_pool_and_nothing_else(kind: str, positives: int) -> None:
    everyone = np.arange(SIZE)
    first = plain(pool(kind, positives, everyone))
    assert plain(pool(kind, positives, everyone)) == first
    others = [plain(pool(kind, positives, everyone, step=4)), plain(pool(kind, positives, everyone, seed=1))]
    assert all((other != first) == bool(positives) for other in others)


@pytest.mark.parametrize("width", [1, 4, 100])
def test_blocks_are_the_pool_cut_along_its_labels(kind: str, positives: int, width: int) -> None:
    found = pool(kind, positives, DOCS)
    blocks: list[Any] = list(found.blocks(width))
    assert max(len(block.labels_U) for block in blocks) <= width
    for name in ("labels_U", "chosen_BU", "known_BU", "weight_BU", "noise_BU"):
        whole = getattr(found, name)
        if whole is None:
            assert all(getattr(block, name) is None for block in blocks)
        else:
            np.testing.assert_array_equal(np.concatenate([getattr(b, name) for b in blocks], axis=-1), whole)


def test_weights_are_not_negative_and_known_positives_have_none_unless_drawn(kind: str, positives: int) -> None:
    found = pool(kind, positives, DOCS)
    if found.weight_BU is not None:
        assert (found.weight_BU >= 0).all()
        assert found.noise_BU is not None or not (found.weight_BU * found.known_BU).any()
        assert not found.weight_BU[1].any() or found.noise_BU is None, "document 0 has no pair to draw for"


@pytest.mark.parametrize("docs", [[], [0], [0, 1]])
def test_documents_without_positives_make_empty_rows(kind: str, positives: int, docs: list[int]) -> None:
    found = pool(kind, positives, np.array(docs, np.int64))
    assert found.chosen_BU.shape[0] == len(docs)
    assert not found.chosen_BU.any()
    assert not found.known_BU.any()


def test_saved_state_continues_with_the_same_pools(kind: str, positives: int) -> None:
    old, new = refreshed(kind, positives), build(kind, positives)
    new.load({name: array.copy() for name, array in old.arrays().items()})
    found, again = old.pool(DOCS, 4), new.pool(DOCS, 4)
    for name in ("labels_U", "chosen_BU", "known_BU", "weight_BU", "noise_BU"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))


def test_a_source_that_does_not_search_keeps_no_hard_negatives(kind: str, positives: int) -> None:
    """Plans count what is kept, and pilots draw that many."""
    settings = NEGATIVES[kind](positives=positives, **SETTINGS.get(kind, {}))
    assert (settings.kept > 0) == (settings.searches is not None)
