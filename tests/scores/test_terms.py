"""TF-IDF as by loops over dictionaries, the same as scikit-learn's, shared by the scores that read it."""

from __future__ import annotations

import json
import unicodedata
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.naive import lexical as naive
from tests.scores.toy import LABEL_TEXTS, NO_LABEL_TEXTS, TESTS, TEXTS, TRUTH, WORLD, asked, data_of, truth_of
from xc_core.errors import ConfigError, DataError
from xc_core.params import in_use
from xc_core.scores import LabelWords
from xc_core.scores.terms import Terms, TermSettings


@pytest.fixture(scope="module")
def fitted() -> Terms:
    return Terms.of(data_of(TEXTS, TRUTH), TermSettings())[0]


def test_a_vector_is_that_of_loops_over_dictionaries(fitted: Terms) -> None:
    known = naive.idf(TEXTS + NO_LABEL_TEXTS, fitted.settings.min_documents)
    names = fitted.vectorizer.get_feature_names_out()
    assert sorted(names) == sorted(known)
    assert len(fitted) == len(known)
    for text in [*TESTS[:10], "falcon0 falcon0 falcon0 Castle1 unheard", "", "a b c"]:
        row = fitted.vectors([text])
        found = {names[at]: value for at, value in zip(row.indices, row.data, strict=True)}
        assert found == pytest.approx(naive.vector(text, known), abs=1e-6)


def test_vectors_are_those_of_the_vectoriser_in_one_call_and_text_by_text(fitted: Terms) -> None:
    texts = [*TESTS, "", "unheard", " ".join(TESTS)]
    theirs, ours = fitted.transform(texts), fitted.vectors(texts)
    for name in ("indptr", "indices"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    np.testing.assert_allclose(ours.data, theirs.data, rtol=1e-6)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    for at, text in enumerate(texts):
        np.testing.assert_array_equal(fitted.vectors([text]).toarray(), ours[[at]].toarray())


def test_terms_survive_their_files_bit_for_bit(fitted: Terms, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    again = Terms.open(tmp_path)
    assert (fitted.vectors(TESTS) != again.vectors(TESTS)).nnz == 0
    assert (again.settings, len(again), again.digest) == (fitted.settings, len(fitted), fitted.digest)


def test_a_fit_returns_its_own_texts_as_rows_of_terms() -> None:
    terms, rows = Terms.of(data_of(TEXTS, TRUTH, LABEL_TEXTS), TermSettings(terms=40))
    theirs = terms.transform(TEXTS + LABEL_TEXTS)
    assert rows.shape == theirs.shape == (len(TEXTS) + len(LABEL_TEXTS), 40)
    np.testing.assert_array_equal(rows.toarray(), theirs.toarray())


def test_a_stream_of_texts_is_read_instead_of_the_list() -> None:
    def refuse() -> list[str]:
        raise AssertionError("the list of all texts")

    data = replace(data_of(TEXTS, TRUTH, LABEL_TEXTS), texts=refuse, text_stream=lambda: iter(TEXTS))
    streamed, rows = Terms.of(data, TermSettings())
    listed, expected = Terms.of(data_of(TEXTS, TRUTH, LABEL_TEXTS), TermSettings())
    assert streamed.digest == listed.digest
    assert (rows != expected).nnz == 0


def test_texts_of_other_documents_or_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="250 texts for 240 documents and 11 labels"):
        LabelWords().fit(data_of(TEXTS, truth_of(WORLD.train, 11), LABEL_TEXTS))


def test_scores_of_one_fit_share_the_terms_unless_their_settings_differ() -> None:
    data = data_of(TEXTS, TRUTH, LABEL_TEXTS)
    assert Terms.of(data, TermSettings()) is Terms.of(data, TermSettings())
    assert Terms.of(data, TermSettings()) is not Terms.of(data, TermSettings(ngrams=1))


def test_a_query_is_turned_into_terms_once_for_equal_terms(fitted: Terms, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    query = asked(TESTS)
    assert fitted.of_query(query) is Terms.open(tmp_path).of_query(query)
    other, _ = Terms.of(data_of(TEXTS[:50], TRUTH.rows(np.arange(50))), TermSettings())
    assert other.digest != fitted.digest
    assert other.of_query(query) is not fitted.of_query(query)


def test_terms_that_weigh_otherwise_share_no_query(fitted: Terms) -> None:
    """As those of two folds, which know the same words from other documents."""
    query, other = asked(TESTS), replace(fitted, idf_T=fitted.idf_T[::-1].copy())
    assert not np.array_equal(other.of_query(query).data, fitted.of_query(query).data)


def test_texts_without_a_term_in_common_are_refused() -> None:
    with pytest.raises(DataError, match=r"scores\.NAME=null for each of .*lexical, label_words.* has"):
        Terms.fit(["one", "two"], TermSettings())


@pytest.mark.parametrize(("characters", "refused"), [(-1, True), (0, False), (64, False), (65, True)])
def test_parts_of_words_have_a_longest_length(characters: int, refused: bool) -> None:
    with pytest.raises(ConfigError, match="characters") if refused else nullcontext():
        TermSettings(characters=characters)


def test_parts_of_words_are_read_as_they_were_fitted(tmp_path: Path) -> None:
    """Edges of a word count, words beside each other do not: "cat" and "at c"."""
    terms, rows_NT = Terms.fit(["cat cats", "cat", "xcat"], TermSettings(characters=3))
    assert terms.vectorizer.get_feature_names_out().tolist() == [" ca", "at ", "cat"]
    assert in_use(TermSettings(characters=3)) == {"characters": 3, "min_documents": 2, "terms": 300_000}
    terms.save(tmp_path)
    again = Terms.open(tmp_path)
    assert again.digest == terms.digest != Terms.fit(["cat cats", "cat", "xcat"], TermSettings())[0].digest
    for found in (again.vectors(["cat cats", "cat", "xcat"]), again.transform(["cat cats", "cat", "xcat"])):
        np.testing.assert_allclose(found.toarray(), rows_NT.toarray(), rtol=1e-6)
    assert again.vectors(["ca tsx"]).nnz == 1, "only the part at the first edge"


def test_the_files_of_words_are_those_of_before_parts_of_words(tmp_path: Path) -> None:
    Terms.fit(["cat cats", "cat"], TermSettings())[0].save(tmp_path)
    assert json.loads((tmp_path / "terms.json").read_text()) == {"min_documents": 2, "ngrams": 2, "terms": 300_000}
    assert Terms.open(tmp_path).settings == TermSettings()


@pytest.mark.parametrize("composed", [True, False])
@pytest.mark.parametrize(
    "settings", [TermSettings(), TermSettings(ngrams=1), TermSettings(ngrams=4), TermSettings(characters=4)]
)
def test_a_text_is_split_as_by_scikit_learn(settings: TermSettings, composed: bool) -> None:
    odd = [
        "",
        "x",
        " a  bc\tdef_1 ",
        "ab, ab-CD. ab",
        "e\u0301te\u0301 \u00c9T\u00c9",
        "\u65e5\u672c\u8a9e \u0130I \u00df\u01c5",
    ]
    terms = Terms(settings, ["ab"], np.ones(1, np.float32), composed)
    theirs = terms.vectorizer.build_analyzer()
    for text in [*odd, *TEXTS]:
        assert terms.terms_of(text) == theirs(text)


@pytest.mark.parametrize("settings", [TermSettings(), TermSettings(characters=4)])
def test_an_accented_letter_may_be_one_character_or_two(settings: TermSettings, tmp_path: Path) -> None:
    """As in texts from some file names and PDFs, and from catalogues: two end a word at the accent."""
    texts = ["crème brûlée", "Crème fraîche", "pâté brûlé", "brûlée"]
    composed, decomposed = ([unicodedata.normalize(form, text) for text in texts] for form in ("NFC", "NFD"))
    terms, rows_NT = Terms.fit(composed, settings)
    terms.save(tmp_path)
    for found in (terms, Terms.open(tmp_path), Terms.fit(decomposed, settings)[0]):
        assert found.digest == terms.digest
        for own in (composed, decomposed):
            np.testing.assert_allclose(found.vectors(own).toarray(), rows_NT.toarray(), rtol=1e-6)
            np.testing.assert_array_equal(found.transform(own).toarray(), rows_NT.toarray())


def test_terms_of_earlier_versions_read_texts_as_they_were_fitted(tmp_path: Path) -> None:
    terms, _ = Terms.fit(["creme", "creme"], TermSettings())
    terms.save(tmp_path)
    pl.read_parquet(tmp_path / "terms.parquet", glob=False).write_parquet(tmp_path / "terms.parquet")
    earlier, decomposed = Terms.open(tmp_path), "cre\u0300me creme\u0301"
    assert (terms.vectors([decomposed]).nnz, earlier.vectors([decomposed]).nnz) == (0, 1)
    assert earlier.digest != terms.digest
    earlier.save(tmp_path)
    assert Terms.open(tmp_path).digest == earlier.digest
