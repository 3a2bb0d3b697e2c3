"""The recall of an index is measured against exact search over the vectors that the index holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.scores.toy import unit
from xc_core.ann import Both, Exact, ExactIndex, HasAlwaysExact, Hnsw, IndexPart, Ivf, with_more
from xc_core.data.labels import LabelMatrix
from xc_core.scores import Classifier, Query, ScoreData
from xc_core.scores.vectors import VectorScore


@pytest.mark.parametrize("joined", [False, True])
def test_an_exact_index_has_a_recall_of_one_also_over_sums(joined: bool) -> None:
    rows, texts = unit(300, 1), unit(300, 2)
    score = VectorScore.build(rows, Exact(), rows + texts if joined else None)
    assert score.figures(Query(unit(20, 3))) == {"recall": 1.0}


BIASED = np.concatenate([unit(300, 1), np.linspace(-1, 1, 300, dtype=np.float32)[:, None]], axis=1)


@pytest.mark.parametrize("index", [Exact(), Hnsw(), Ivf()])
@pytest.mark.parametrize("joined", [False, True])
def test_rows_with_a_bias_are_searched_and_scored_with_it(index: IndexPart, joined: bool, tmp_path: Path) -> None:
    docs, texts = unit(20, 3), unit(300, 2)
    data = ScoreData(LabelMatrix.none(1, 300), rows=lambda: BIASED, label_vectors=lambda: texts)
    part = Classifier(index=index, joined=joined)
    part.fit(data).save(tmp_path)
    found, query = part.open(tmp_path), Query(docs)
    scores = docs @ BIASED[:, :-1].T + BIASED[:, -1]
    every = np.tile(np.arange(300, dtype=np.int32), (20, 1))
    np.testing.assert_allclose(found.values(query, every), scores, atol=1e-5)
    best = np.argsort(-(scores + docs @ texts.T if joined else scores), axis=1)[:, :5]
    proposed = found.candidates(query, 5)
    assert proposed is not None
    hits = np.mean([len(np.intersect1d(a, b)) / 5 for a, b in zip(proposed, best, strict=True)])
    assert hits == 1.0 if isinstance(index, Exact) else hits > 0.8
    without = np.argsort(-(docs @ BIASED[:, :-1].T), axis=1)[:, :5]
    assert np.mean([len(np.intersect1d(a, b)) / 5 for a, b in zip(proposed, without, strict=True)]) < 0.5


def test_the_recall_of_an_index_over_rows_with_a_bias_is_measured_with_it() -> None:
    assert VectorScore.build(BIASED, Exact()).figures(Query(unit(20, 3))) == {"recall": 1.0}


@pytest.mark.parametrize("index", [Exact(), Hnsw(links=2, build_effort=4, search_effort=1), Ivf(probes=1), Both()])
@pytest.mark.parametrize("joined", [False, True])
def test_a_saved_score_measures_the_recall_of_its_own_index(index: IndexPart, joined: bool, tmp_path: Path) -> None:
    vectors, texts, query = unit(2000, 1), unit(2000, 2), Query(unit(20, 3))
    score = VectorScore.build(vectors, index, vectors + texts if joined else None)
    score.save(tmp_path)
    measured = VectorScore.open(tmp_path, joined=joined).figures(query)
    assert measured == score.figures(query)
    assert (measured["recall"] < 0.9) == isinstance(index, (Hnsw, Ivf))


def test_the_recall_is_measured_on_the_first_documents_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xc_core.scores.vectors.ALONE", 7)
    score, asked = VectorScore.build(unit(2000, 1), Ivf()), []
    search = type(score.index).search
    monkeypatch.setattr(type(score.index), "search", lambda self, docs, k: asked.append(docs) or search(self, docs, k))
    docs = unit(20, 3)
    score.figures(Query(docs))
    np.testing.assert_array_equal(asked, docs[:7, None])


def test_a_graph_that_answers_nothing_has_the_recall_of_exact_search(monkeypatch: pytest.MonkeyPatch) -> None:
    score = VectorScore.build(unit(2000, 1), Both(links=2, build_effort=1, recall=0.999999))
    assert isinstance(score.index, HasAlwaysExact)
    assert score.index.always_exact
    monkeypatch.setattr(ExactIndex, "search", None)  # nothing is measured
    assert score.figures(Query(unit(20, 3))) == {"recall": 1.0}


def test_a_query_that_is_searched_for_few_labels_can_be_searched_for_more() -> None:
    """Scores of a query share a search, but only one for as many labels."""
    random = np.random.default_rng(0)
    labels_LD, query = random.normal(size=(9, 4)).astype(np.float32), Query(random.normal(size=(3, 4)).astype("f4"))
    score, order = VectorScore.build(labels_LD, Exact()), np.argsort(-(query.doc_ND @ labels_LD.T), axis=1)
    for k in (2, 5):
        for found in (score.candidates(query, k), score.alone(query, k)):
            assert found is not None
            np.testing.assert_array_equal(found, order[:, :k])


@pytest.mark.parametrize("index", [Exact(), Hnsw(), Ivf()])
def test_a_search_over_sums_finds_new_labels_by_their_sums_and_a_score_alone_by_its_own_values(
    index: IndexPart,
) -> None:
    """The new labels have the vectors of the documents as texts, and none of their rows fits."""
    rows, texts, docs = unit(203, 1), unit(203, 2), unit(3, 3)
    rows[200:], texts[200:] = -0.1 * docs, 2 * docs
    score = VectorScore.build(rows[:200], index, rows[:200] + texts[:200])
    grown, query = score.extended(rows[200:], rows + texts), Query(docs)
    joint, alone = grown.candidates(query, 1), grown.alone(query, 1)
    assert joint is not None and alone is not None
    assert joint[:, 0].tolist() == [200, 201, 202]
    assert alone[:, 0].tolist() == (docs @ rows.T).argmax(1).tolist()


def test_cells_of_equally_long_vectors_are_built_again_if_a_later_vector_is_longer() -> None:
    """Cells are visited in the order of directions, so a long vector in a far cell would not be found."""
    index = Ivf().build(unit(200, 0))
    assert with_more(index, unit(3, 1)) is not None
    assert with_more(index, unit(3, 1) * np.float32(2)) is None


def test_an_index_that_cannot_take_more_vectors_is_built_again() -> None:
    """IVF stores a coordinate that evens out lengths, so a longer vector cannot be added."""
    lengths = np.random.default_rng(0).lognormal(size=(200, 1)).astype(np.float32)
    vectors, more = unit(200, 0) * lengths, unit(3, 1) * 100
    score = VectorScore.build(vectors, Ivf())
    assert score.index is not None
    assert with_more(score.index, more) is None
    grown = score.extended(more)
    found = grown.candidates(Query(unit(3, 1)), 1)
    assert found is not None
    assert (found[:, 0] == [200, 201, 202]).all()
    assert (score.num_labels, grown.num_labels) == (200, 203)
