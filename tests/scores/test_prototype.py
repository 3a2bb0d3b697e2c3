"""The score ``prototype`` equals a loop over labels, and reads only the documents that it is fitted on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.arrays import masked
from tests.scores.toy import unit
from xc_core.ann import Exact
from xc_core.data.labels import LabelMatrix
from xc_core.scores import Prototype, Query, ScoreData

LABELS, DOCS = 12, 40
TEXTS, VECTORS = unit(LABELS, 1), unit(DOCS, 2)


def truth(docs: int = DOCS) -> LabelMatrix:
    """Return pairs in which the last label has no document."""
    own = np.random.default_rng(0).random((DOCS, LABELS)) < 0.15
    own[:, -1] = False
    return masked(own[:docs])


def data(docs: int = DOCS) -> ScoreData:
    return ScoreData(truth(docs), vectors=lambda: VECTORS[:docs], label_vectors=lambda: TEXTS)


def naive(weight: float, docs: int = DOCS) -> np.ndarray:
    """Return the prototypes, label by label, in float64."""
    own, found = truth(docs), []
    for label, text in enumerate(TEXTS.astype(np.float64)):
        members = [VECTORS[i].astype(np.float64) for i in range(docs) if label in own.row(i)]
        mean = np.sum(members, axis=0) if members else np.zeros_like(text)
        vector = text + weight * (mean / np.linalg.norm(mean) if members else mean)
        found.append(vector / np.linalg.norm(vector))
    return np.array(found)


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_it_equals_a_loop_over_labels(weight: float) -> None:
    found, query = Prototype(weight=weight, index=Exact()).fit(data()), Query(unit(7, 3))
    every = np.tile(np.arange(LABELS, dtype=np.int32), (7, 1))
    scores = query.doc_ND @ naive(weight).T
    np.testing.assert_allclose(found.values(query, every), scores, atol=1e-6)
    best = found.candidates(query, 3)
    assert best is not None
    np.testing.assert_array_equal(best, np.argsort(-scores, axis=1)[:, :3])


def test_a_label_without_documents_has_its_texts_vector() -> None:
    found, query = Prototype().fit(data()), Query(unit(7, 3))
    last = np.full((7, 1), LABELS - 1, np.int32)
    np.testing.assert_allclose(found.values(query, last)[:, 0], query.doc_ND @ TEXTS[-1], atol=1e-6)


def test_documents_that_a_fold_leaves_out_change_nothing() -> None:
    query, every = Query(unit(7, 3)), np.tile(np.arange(LABELS, dtype=np.int32), (7, 1))
    fold = Prototype().fit(data(30)).values(query, every)
    np.testing.assert_allclose(fold, query.doc_ND @ naive(2.0, 30).T, atol=1e-6)
    assert np.abs(fold - Prototype().fit(data()).values(query, every)).max() > 0.01


def test_vectors_of_other_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="30 documents"):
        Prototype().fit(ScoreData(truth(), vectors=lambda: VECTORS[:30], label_vectors=lambda: TEXTS))
