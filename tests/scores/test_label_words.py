"""The score ``label_words``: the cosine of both texts' TF-IDF vectors as by loops, and the same after a reload."""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_matrix

from tests.conftest import TOPICS
from tests.naive import lexical as naive
from tests.scores.toy import LABEL_TEXTS, TESTS, TEXTS, TRUTH, asked, data_of
from xc_core.data.labels import LabelMatrix
from xc_core.errors import CorruptError
from xc_core.scores import LabelCharacters, LabelWords, label_words
from xc_core.scores.label_words import Matches
from xc_core.scores.terms import Terms
from xc_core.shapes import PAD_ID

EVERY = np.tile(np.arange(len(TOPICS), dtype=np.int32), (len(TESTS), 1))


def fit(label_texts: list[str] | None = None) -> Matches:
    fitted = LabelWords().fit(data_of(TEXTS, TRUTH, label_texts))
    assert isinstance(fitted, Matches)
    return fitted


@pytest.fixture(scope="module")
def matching() -> Matches:
    return fit(LABEL_TEXTS)


@pytest.mark.parametrize("together", [7, 64])
def test_a_value_is_the_cosine_of_both_texts_terms_as_by_loops(
    matching: Matches, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_words, "_TEXTS_AT_ONCE", together)
    known = naive.idf(TEXTS + LABEL_TEXTS, 2)
    ids = np.random.default_rng(0).integers(-1, len(TOPICS), (len(TESTS), 150)).astype(np.int32)
    found = matching.values(asked(TESTS), ids)
    assert found.dtype == np.float32
    labels = [naive.vector(text, known) for text in LABEL_TEXTS]
    for text, row, scores in zip(TESTS, ids.tolist(), found.tolist(), strict=True):
        own = naive.vector(text, known)
        for label, score in zip(row, scores, strict=True):
            expected = 0.0 if label < 0 else sum(value * labels[label].get(term, 0.0) for term, value in own.items())
            assert score == pytest.approx(expected, abs=1e-6)


def test_values_survive_the_files_and_are_zero_without_label_texts(matching: Matches, tmp_path: Path) -> None:
    matching.save(tmp_path)
    again = LabelWords().open(tmp_path)
    np.testing.assert_array_equal(again.values(asked(TESTS), EVERY), matching.values(asked(TESTS), EVERY))
    assert (again.num_labels, again.candidates(asked(TESTS), 5)) == (len(TOPICS), None)
    assert not fit().values(asked(TESTS), EVERY).any()
    assert matching.values(asked([]), EVERY[:0]).shape == (0, len(TOPICS))
    assert matching.values(asked(TESTS), EVERY[:, :0]).shape == (len(TESTS), 0), "no candidate at all"


@pytest.mark.parametrize("at_once", [1, 7, 64])
@pytest.mark.parametrize("k", [1, 3, 99])
def test_the_best_labels_are_those_of_the_highest_cosines(
    matching: Matches, at_once: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_words, "_TEXTS_AT_ONCE", at_once)
    query = asked(["quixotic", *TESTS, *TEXTS[:20]])
    cosines, found = matching.values(query, np.tile(np.arange(len(TOPICS), dtype=np.int32), (len(query), 1))), []
    for row in cosines.tolist():
        best = sorted((label for label in range(len(TOPICS)) if row[label] > 0), key=lambda label: (-row[label], label))
        found.append((best + [PAD_ID] * len(TOPICS))[: min(k, len(TOPICS))])
    assert matching.best(query, k).tolist() == found
    assert found[0][0] == PAD_ID and PAD_ID not in [row[0] for row in found[1:]]


def test_label_texts_without_a_term_are_opened_again(tmp_path: Path) -> None:
    fit([""] * len(TOPICS)).save(tmp_path)
    assert not LabelWords().open(tmp_path).values(asked(TESTS), EVERY).any()


@pytest.mark.parametrize(
    ("array", "place", "value"),
    [("indices", -1, 10**6), ("indices", 0, -1), ("indptr", 0, 1), ("indptr", 3, 2**30), ("indptr", -1, 2**30)],
)
def test_label_texts_of_other_terms_are_refused_when_opened(
    matching: Matches, tmp_path: Path, array: str, place: int, value: int
) -> None:
    """With such ends of rows, the process would end without a message."""
    matching.save(tmp_path)
    path = tmp_path / "labels.safetensors"
    parts = load_file(path)
    parts[array][place] = value
    save_file(parts, path)
    with pytest.raises(CorruptError, match=r"label texts in .* that cannot be read"):
        LabelWords().open(tmp_path)


def test_the_last_term_is_one_of_the_terms(matching: Matches, tmp_path: Path) -> None:
    matching.save(tmp_path)
    path = tmp_path / "labels.safetensors"
    parts = load_file(path)
    for term, is_right in ((len(matching.terms) - 1, True), (len(matching.terms), False)):
        parts["indices"][-1] = term
        save_file(parts, path)
        with nullcontext() if is_right else pytest.raises(CorruptError, match="must be <"):
            LabelWords().open(tmp_path)


def test_parts_of_words_are_compared_too() -> None:
    texts, labels = ["kissalla koiralla", "kissoissa koirissa", "kissan linnun", "linnut"], ["kissa", "lintu"]
    truth = LabelMatrix.from_pairs(np.arange(4), np.array([0, 0, 0, 1]), (4, 2))
    found = LabelCharacters().fit(data_of(texts, truth, labels))
    both = np.array([[0, 1]], np.int32)
    assert (found.values(asked(["kissoille"]), both) > 0).tolist() == [[True, False]]
    words = LabelWords().fit(data_of([*texts, "kissan"], truth.above(LabelMatrix.none(1, 2)), labels))
    assert not words.values(asked(["kissoille"]), both).any()


def random_rows(rows: int, each: int, terms: int) -> csr_matrix:
    """Return rows that have ``each`` of the terms."""
    rng = np.random.default_rng(0)
    columns = np.concatenate([np.sort(rng.choice(terms, each, replace=False)) for _ in range(rows)])
    return csr_matrix((rng.random(rows * each, np.float32), columns, np.arange(rows + 1) * each), (rows, terms))


@pytest.mark.parametrize(("text_terms", "label_terms"), [(5_000, 5), (20, 500)])
def test_long_texts_are_not_copied_for_each_of_their_candidates(text_terms: int, label_terms: int) -> None:
    """Bytes of all pairs' terms at once: 40 texts x 100 candidates x 5,000 x 8 = 160 MB, or 16 MB of label terms."""
    texts, labels = random_rows(40, text_terms, 20_000), random_rows(200, label_terms, 20_000)
    matches = Matches(cast(Terms, SimpleNamespace(of_query=lambda query: texts)), labels)
    ids = np.random.default_rng(1).integers(0, 200, (40, 100)).astype(np.int32)
    tracemalloc.start()
    found = matches.values(asked([]), ids)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6
    expected = np.take_along_axis((texts @ labels.T).toarray(), ids.astype(np.int64), axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
