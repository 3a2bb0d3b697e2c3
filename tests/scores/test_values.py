"""The value of each score that reads vectors or counts, computed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from xc_core.ann import Hnsw
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError, CorruptError
from xc_core.sampling.noise import FrequencyNoise
from xc_core.scores import (
    SCORES,
    Classifier,
    FittedScore,
    Frequency,
    LabelText,
    Neighbours,
    Noise,
    Prior,
    Prototype,
    Query,
    ScoreData,
)
from xc_core.scores.vectors import VectorScore, candidate_products
from xc_core.shapes import PAD_ID

VOTERS = LabelMatrix.from_pairs(np.array([0, 0, 1]), np.array([0, 2, 2]), (2, 3))
"""Two train documents, equal to the two documents of the query: the first has the labels 0 and 2, the other 2."""
COUNTED = LabelMatrix.from_pairs(np.arange(6), np.array([0, 0, 0, 0, 0, 1]), (6, 3))
"""Five train documents of label 0, one of label 1, none of label 2."""
NEAR = 1 / (1 + math.exp(-0.4 / Neighbours().temperature))
"""The vote share of the nearer train document, if the cosines are 1 and 0.6."""
_TEXT, _DOCUMENTS = np.array([0.6, 0.8]), np.array([1.6, 0.8]) / math.hypot(1.6, 0.8)
_PROTOTYPE = (_TEXT + _DOCUMENTS) / np.linalg.norm(_TEXT + _DOCUMENTS)
FIRST, SECOND = float(_PROTOTYPE[0]), float(_PROTOTYPE @ [0.6, 0.8])
"""Cosines of label 2, whose documents are both of the query, with the first and with the second document."""
TEXTS_LD = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], np.float32)
ROWS_LD = np.array([[0.0, 1.0], [0.8, 0.6], [1.0, 0.0]], np.float32)
DOCS = np.array([[1.0, 0.0], [0.6, 0.8]], np.float32)
IDS = np.array([[0, 1, 2], [2, 0, PAD_ID]], np.int32)
DATA = ScoreData(
    VOTERS,
    vectors=lambda: DOCS,
    label_vectors=lambda: TEXTS_LD,
    rows=lambda: ROWS_LD,
    noise=lambda: FrequencyNoise(np.log([0.5, 0.4, 0.1])),
)
FITTED: dict[str, FittedScore] = {
    "label_text": LabelText().fit(DATA),
    "classifier": Classifier().fit(DATA),
    "frequency": Frequency().fit(ScoreData(COUNTED)),
    "noise": Noise().fit(DATA),
    "neighbours": Neighbours().fit(DATA),
    "prior": Prior(temperature=0.1).fit(ScoreData(COUNTED)),
    "prototype": Prototype(weight=1.0).fit(DATA),
}
BY_HAND = {
    "label_text": [[1.0, 0.0, 0.6], [1.0, 0.6]],
    "classifier": [[0.0, 0.8, 1.0], [0.6, 0.8]],
    "frequency": [[5.0, 1.0, 0.0], [0.0, 5.0]],
    "noise": [[math.log(0.5), math.log(0.4), math.log(0.1)], [math.log(0.1), math.log(0.5)]],
    "neighbours": [[NEAR, 0.0, 1.0], [1.0, 1 - NEAR]],
    "prior": [[0.1 * math.log(5), 0.0, 0.1 * math.log(0.5)], [0.1 * math.log(0.5), 0.1 * math.log(5)]],
    "prototype": [[1.0, 0.0, FIRST], [SECOND, 0.6]],
}
BEST = {
    "label_text": [[0, 2], [2, 1]],
    "classifier": [[2, 1], [1, 0]],
    "frequency": None,
    "noise": [[0, 1], [0, 1]],
    "neighbours": [[0, 2], [0, 2]],
    "prior": [[0, 1], [0, 1]],
    "prototype": [[0, 2], [2, 1]],
}
"""Candidates for k = 2."""
ELSEWHERE = {"label_words", "label_characters", "lexical", "characters", "biased_rows"}
"""Scores that read texts or train rows; they have tests of their own."""


def query() -> Query:
    return Query(DOCS)


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_a_score_has_the_value_computed_by_hand(name: str) -> None:
    found = FITTED[name].values(query(), IDS)
    assert found.dtype == np.float32
    assert FITTED[name].num_labels == 3
    for row, ids, expected in zip(found, IDS, BY_HAND[name], strict=True):
        assert row[ids != PAD_ID].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_a_score_proposes_its_best_labels(name: str) -> None:
    found = FITTED[name].candidates(query(), 2)
    assert (None if found is None else found.tolist()) == BEST[name]


def test_every_score_is_checked_by_hand() -> None:
    own = {name for name in SCORES if SCORES[name].__module__.startswith("xc_core.")}
    assert own == ELSEWHERE | set(BY_HAND), "add it to BY_HAND, or write a test of its own and add it to ELSEWHERE"


def test_the_files_of_every_score_are_in_the_page_of_data_formats() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data-formats.md").read_text("utf-8")
    _, _, table = page.partition("| score | files |")
    own = {name for name in SCORES if SCORES[name].__module__.startswith("xc_core.")}
    missing = {name for name in own if f"`{name}`" not in table.partition("\n\n")[0]}
    assert missing == set(), "add their files to the table of scores in docs/data-formats.md"


@pytest.mark.parametrize("documents", [0, 1, 15, 16, 17, 40])
def test_products_are_the_same_whatever_block_a_document_falls_into(documents: int) -> None:
    random = np.random.default_rng(0)
    doc_ND = random.normal(size=(documents, 8)).astype(np.float32)
    vectors_LD = random.normal(size=(30, 8)).astype(np.float32)
    ids_NK = random.integers(0, 30, (documents, 5)).astype(np.int32)
    expected = np.einsum("nd,nkd->nk", doc_ND.astype(float), vectors_LD[ids_NK].astype(float))
    np.testing.assert_allclose(candidate_products(doc_ND, ids_NK, vectors_LD), expected, atol=1e-5)


def test_a_label_text_score_without_a_search_proposes_nothing_and_scores_the_same() -> None:
    plain = LabelText(search=False)
    fitted = plain.fit(DATA)
    assert fitted.candidates(query(), 2) is None
    assert fitted.figures(query()) == {}
    np.testing.assert_array_equal(fitted.values(query(), IDS), FITTED["label_text"].values(query(), IDS))
    assert (plain.unused(), LabelText().unused()) == ({"index"}, frozenset())


def test_a_joined_search_ranks_by_the_sum_of_both_scores_and_values_are_those_of_the_rows(tmp_path: Path) -> None:
    """UniDEC, section 3.4: document 0 has the sums 1.0, 0.8, 1.6, document 1 has 1.4, 1.64, 1.6."""
    joined = Classifier(joined=True)
    fitted = joined.fit(DATA)
    fitted.save(tmp_path)
    for score in (fitted, joined.open(tmp_path)):
        found = score.candidates(query(), 2)
        assert found is not None
        assert found.tolist() == [[2, 0], [1, 2]]
        np.testing.assert_array_equal(score.values(query(), IDS), FITTED["classifier"].values(query(), IDS))


@pytest.mark.parametrize(
    ("score", "files"),
    [
        (LabelText(), {"vectors.npy", "vectors.json"}),
        (LabelText(search=False), {"vectors.npy", "vectors.json"}),
        (LabelText(index=Hnsw()), {"vectors.npy", "vectors.json", "index/index.json", "index/index.faiss"}),
        (Classifier(joined=True), {"vectors.npy", "vectors.json", "index/index.json", "index/index.npy"}),
    ],
)
def test_vectors_that_are_searched_exactly_are_stored_once(
    score: LabelText | Classifier, files: set[str], tmp_path: Path
) -> None:
    fitted = score.fit(DATA)
    fitted.save(tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == files
    before, after = (found.candidates(query(), 2) for found in (fitted, score.open(tmp_path)))
    assert (before is None) == (after is None)
    if before is not None and after is not None:
        np.testing.assert_array_equal(after, before)


def test_vectors_and_an_index_of_different_labels_are_refused(tmp_path: Path) -> None:
    for folder, vectors in ((tmp_path / "one", ROWS_LD), (tmp_path / "two", ROWS_LD[:2])):
        folder.mkdir()
        VectorScore.build(vectors, Hnsw()).save(folder)
    (tmp_path / "two" / "vectors.npy").replace(tmp_path / "one" / "vectors.npy")
    with pytest.raises(CorruptError, match="2 vectors and an index of 3"):
        VectorScore.open(tmp_path / "one")


def test_the_recall_of_an_index_is_the_share_of_exact_search_that_it_finds() -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((5000, 8)).astype(np.float32)
    documents = Query(random.standard_normal((50, 8)).astype(np.float32))
    weak = VectorScore.build(vectors, Hnsw(links=2, build_effort=4, search_effort=1))
    assert VectorScore.build(vectors, LabelText().index).figures(documents) == {"recall": 1.0}
    assert 0.0 < weak.figures(documents)["recall"] < 0.9
    assert weak.figures(Query(documents.doc_ND[:0])) == {}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("label_text", "label vectors"),
        ("classifier", "classifier rows"),
        ("neighbours", "vectors"),
        ("noise", "noise distributions"),
        ("lexical", "texts"),
        ("label_words", "texts"),
    ],
)
def test_a_score_whose_data_is_absent_is_an_error_that_says_what_to_do(name: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found) as caught:
        SCORES[name]().fit(ScoreData(VOTERS))
    assert "leave the score out" in caught.value.do


@pytest.mark.parametrize("texts", [None, ["one"], lambda: ["one"], ["one", "two", "three"]])
def test_a_query_without_one_text_per_document_is_an_error(texts: list[str] | None) -> None:
    with pytest.raises(ValueError, match=r"\d texts for 2 documents"):
        _ = Query(DOCS, texts).texts


def test_texts_of_a_query_are_read_once_and_only_if_a_score_asks() -> None:
    calls: list[int] = []

    def read() -> list[str]:
        calls.append(1)
        return ["one", "two"]

    documents = Query(DOCS, read)
    FITTED["classifier"].values(documents, IDS)
    assert (calls, len(documents)) == ([], 2)
    assert documents.texts == documents.texts == ["one", "two"]
    assert calls == [1]


def test_an_evaluation_reads_as_much_of_a_text_as_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xc_core.scores.base.MAX_CHARS", 8)
    assert Query(DOCS, lambda: ["falcon0 castle0", "river1"]).texts == ["falcon0 ", "river1"]
