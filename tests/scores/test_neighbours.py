"""The neighbours' vote against a loop over documents and voters; a train document without labels does not vote."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.arrays import masked
from tests.scores.toy import unit
from xc_core.ann.faiss_index import FaissIndex
from xc_core.data.labels import LabelMatrix
from xc_core.errors import CorruptError
from xc_core.scores import Neighbours, Query, ScoreData, Size, neighbours
from xc_core.scores.neighbours import Voters, Votes
from xc_core.shapes import F32, PAD_ID

DOCUMENTS, LABELS = 12, 20
NEAREST, TEMPERATURE = Neighbours().nearest, Neighbours().temperature


def fit(vectors: F32, truth: LabelMatrix, settings: Neighbours | None = None) -> Voters:
    fitted = (settings or Neighbours()).fit(ScoreData(truth, vectors=lambda: vectors))
    assert isinstance(fitted, Voters)
    return fitted


def world(voters: int) -> tuple[F32, LabelMatrix, Voters]:
    """Return train vectors, their labels (the first voter has none), and the fitted score."""
    held = np.random.default_rng(2).random((voters, LABELS)) < 0.15
    held[0] = False
    truth = masked(held)
    vectors = unit(voters, 1)
    return vectors, truth, fit(vectors, truth)


def by_loop(vectors: F32, truth: LabelMatrix, doc: F32) -> list[float]:
    """Return the share of each label in the votes for one document."""
    cosines = sorted(((float(doc @ v), j) for j, v in enumerate(vectors.astype(float))), reverse=True)[:NEAREST]
    weights = [math.exp(cosine / TEMPERATURE) for cosine, _ in cosines]
    votes = [0.0] * LABELS
    for weight, (_, voter) in zip(weights, cosines, strict=True):
        for label in truth.row(voter).tolist():
            votes[label] += weight / sum(weights)
    return votes


@pytest.mark.parametrize("voters", [1, 7, NEAREST, 100])
def test_the_votes_are_those_of_a_loop(voters: int) -> None:
    vectors, truth, fitted = world(voters)
    docs = unit(DOCUMENTS, 3)
    ids = np.random.default_rng(4).permuted(np.tile(np.arange(LABELS, dtype=np.int32), (DOCUMENTS, 1)), axis=1)
    found = fitted.values(Query(docs), ids)
    expected = np.array([by_loop(vectors, truth, doc) for doc in docs])
    np.testing.assert_allclose(found, np.take_along_axis(expected, ids, 1), atol=2e-6)


def test_many_documents_are_searched_in_cells_and_the_votes_are_nearly_the_same(tmp_path: Path) -> None:
    docs, labels = Query(unit(50, 3)), np.tile(np.arange(LABELS, dtype=np.int32), (50, 1))
    vectors, truth, exact = world(3000)
    expected = exact.values(docs, labels)
    settings = Neighbours(exact_up_to=2999, probes=64)
    cells = fit(vectors, truth, settings)
    assert isinstance(cells.index, FaissIndex)
    assert not isinstance(fit(vectors, truth, Neighbours(exact_up_to=3000)).index, FaissIndex)
    assert np.abs(cells.values(docs, labels) - expected).sum(1).mean() < 0.02
    cells.save(tmp_path)
    np.testing.assert_array_equal(settings.open(tmp_path).values(docs, labels), cells.values(docs, labels))


def test_a_plan_is_told_of_the_index_that_a_fit_builds() -> None:
    """A query is compared with all documents, or with the centre of each cell and the documents of those it visits."""
    vectors, truth, _ = world(3000)
    size = Size(3000, LABELS, len(truth.indices), vectors.shape[1])
    for settings in (Neighbours(exact_up_to=3000), Neighbours(exact_up_to=2999, probes=4)):
        found, fitted = settings.footprint(size), fit(vectors, truth, settings)
        cells = fitted.index.index.nlist if isinstance(fitted.index, FaissIndex) else 0
        assert found.cells == ((cells,) if cells else ())
        assert found.compared == (cells + 4 * 3000 // cells if cells else 3000)
        assert found.written == vectors.nbytes


def test_the_share_of_the_nearest_documents_that_cells_find_is_measured() -> None:
    docs = unit(50, 3)
    vectors, _, exact = world(3000)
    assert exact.figures(Query(docs)) == {}, "an exact search finds all"
    cells = fit(vectors, exact.truth, Neighbours(exact_up_to=0, probes=8))
    true, found = (voters.index.search(docs, NEAREST).ids_NK for voters in (exact, cells))
    share = np.mean([len(set(a) & set(b)) / NEAREST for a, b in zip(true.tolist(), found.tolist(), strict=True)])
    assert cells.figures(Query(docs)) == {"document_recall": pytest.approx(share)}
    assert 0.1 < share < 0.9
    assert cells.figures(Query(docs[:0])) == {}


@pytest.mark.parametrize("voters", [1, 7, 100])
def test_candidates_are_the_labels_with_a_vote_each_once_holes_last(voters: int) -> None:
    vectors, truth, fitted = world(voters)
    docs = unit(DOCUMENTS, 3)
    found = fitted.candidates(Query(docs), 5)
    assert found is not None
    for ids, doc in zip(found, docs, strict=True):
        assert ids[ids != PAD_ID].tolist() == [label for label, vote in enumerate(by_loop(vectors, truth, doc)) if vote]
        assert not (np.diff((ids == PAD_ID).astype(int)) < 0).any()


@pytest.mark.parametrize("most", [1, 3, 9])
def test_of_too_many_labels_those_with_the_most_votes_are_proposed(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, truth, votes = world(100)
    monkeypatch.setattr(neighbours, "MOST", most)
    docs = unit(DOCUMENTS, 5)
    assert votes.candidates(Query(docs), LABELS).shape[1] > 9, "as many as are asked for"
    for doc, found in zip(docs, votes.candidates(Query(docs), 1), strict=True):
        share = by_loop(vectors, truth, doc)
        best = sorted((label for label in range(LABELS) if share[label]), key=lambda label: -share[label])[:most]
        assert found[found != PAD_ID].tolist() == sorted(best)


def test_of_equal_votes_the_first_labels_are_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MOST", 2)
    votes = fit(unit(1, 1), LabelMatrix.from_pairs(np.zeros(5, int), np.array([9, 3, 7, 4, 8]), (1, LABELS)))
    assert votes.candidates(Query(unit(2, 5)), 1).tolist() == [[3, 4], [3, 4]]


def test_a_hole_has_no_vote() -> None:
    _, _, fitted = world(50)
    holes = np.full((DOCUMENTS, 3), PAD_ID, np.int32)
    assert (fitted.values(Query(unit(DOCUMENTS, 3)), holes) == 0).all()


def test_the_nearest_are_searched_once_per_query(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, fitted = world(50)
    calls: list[int] = []
    vote = Voters.vote

    def counted(self: Voters, doc_BD: F32) -> object:
        calls.append(len(doc_BD))
        return vote(self, doc_BD)

    monkeypatch.setattr(Voters, "vote", counted)
    docs, ids = Query(unit(DOCUMENTS, 3)), np.zeros((DOCUMENTS, 1), np.int32)
    fitted.candidates(docs, 5)
    fitted.values(docs, ids)
    assert calls == [DOCUMENTS]
    world(50)[2].values(docs, ids)
    assert calls == [DOCUMENTS, DOCUMENTS], "another fitted score has votes of its own"


def test_settings_decide_who_votes_and_how_much() -> None:
    vectors, truth, _ = world(50)
    docs, ids = Query(unit(DOCUMENTS, 3)), np.tile(np.arange(LABELS, dtype=np.int32), (DOCUMENTS, 1))
    one = fit(vectors, truth, Neighbours(nearest=1)).values(docs, ids)
    best = (docs.doc_ND @ vectors.T).argmax(1)
    assert one.tolist() == [[float(label in truth.row(voter)) for label in range(LABELS)] for voter in best.tolist()]
    flat = fit(vectors, truth, Neighbours(nearest=50, temperature=100)).values(docs, ids)
    np.testing.assert_allclose(flat, np.tile(truth.frequency_L() / 50, (DOCUMENTS, 1)), atol=1e-2)


def test_vectors_and_labels_of_different_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="3 vectors for 2 documents"):
        fit(unit(3, 0), LabelMatrix.from_pairs(np.array([0, 1]), np.array([0, 0]), (2, 1)))


def test_an_index_and_labels_of_different_documents_are_refused_when_opened(tmp_path: Path) -> None:
    for voters in (7, 8):
        (tmp_path / str(voters)).mkdir()
        world(voters)[2].save(tmp_path / str(voters))
    (tmp_path / "7" / "labels.safetensors").replace(tmp_path / "8" / "labels.safetensors")
    with pytest.raises(CorruptError, match="8 vectors and labels of 7 documents"):
        Neighbours().open(tmp_path / "8")


def test_without_a_vote_no_label_is_proposed() -> None:
    none = Votes(np.zeros(0, np.int64), np.zeros(0, np.float32), 3, LABELS)
    assert none.labels(5).shape == (3, 0)
