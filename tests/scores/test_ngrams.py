"""Counts of n-grams: those of loops over dictionaries, and of scikit-learn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from tests.naive import lexical as naive
from tests.scores.toy import TEXTS
from xc_core.scores.ngrams import Counts, count_ngrams
from xc_core.scores.terms import Terms, TermSettings

ODD = [
    "",
    "ÅNGSTRÖM ångström",
    "red red red red",
    "a b c",
    "x_y 12 x_y 12",
    "12 x_y",
    "red",
    " \t",
    "İstanbul ﬁve red red",
]
RANDOM = np.random.default_rng(3)
DRAWN = [" ".join(RANDOM.choice(["aa", "bb", "cc", "dd", "e", "ff"], RANDOM.integers(0, 9))) for _ in range(200)]


def split(text: str) -> list[str]:
    return [word for word in naive.terms(text) if " " not in word]


def count(texts: list[str], ngrams: int = 2, min_documents: int = 2, limit: int = 10**6) -> Counts:
    return count_ngrams(iter(texts), split, ngrams=ngrams, min_documents=min_documents, limit=limit)


@pytest.mark.parametrize("ngrams", [1, 2, 3, 4])
@pytest.mark.parametrize("min_documents", [1, 2, 5])
def test_counts_are_those_of_loops(ngrams: int, min_documents: int) -> None:
    texts = DRAWN + ODD
    found = count(texts, ngrams, min_documents)
    terms = [Counter(naive.ngrams(text, ngrams)) for text in texts]
    documents = Counter(term for counts in terms for term in counts)
    assert found.names == sorted(term for term, n in documents.items() if n >= min_documents)
    kept = set(found.names)
    for row, counts in enumerate(terms):
        one = found.texts_NT[[row]]
        own = {found.names[at]: value for at, value in zip(one.indices, one.data, strict=True)}
        assert own == {term: n for term, n in counts.items() if term in kept}


@pytest.mark.parametrize("texts", [TEXTS, DRAWN, ODD, DRAWN + ODD])
@pytest.mark.parametrize(
    "settings",
    [
        TermSettings(),
        TermSettings(ngrams=1),
        TermSettings(ngrams=3, min_documents=1),
        TermSettings(characters=2, terms=9),
        TermSettings(characters=4, min_documents=1),
    ],
)
def test_a_fit_equals_that_of_scikit_learn(texts: list[str], settings: TermSettings) -> None:
    options: dict[str, Any] = {"min_df": settings.min_documents, "max_features": settings.terms}
    if settings.characters:
        options |= {"analyzer": "char_wb", "ngram_range": (settings.characters,) * 2}
    else:
        options |= {"ngram_range": (1, settings.ngrams)}
    theirs = TfidfVectorizer(sublinear_tf=True, dtype=np.float32, **options)
    expected_NT = theirs.fit_transform(texts)
    terms, found_NT = Terms.fit(iter(texts), settings)
    assert terms.vectorizer.get_feature_names_out().tolist() == theirs.get_feature_names_out().tolist()
    np.testing.assert_array_equal(terms.vectorizer.idf_, theirs.idf_)
    expected_NT.sort_indices()
    again_NT = theirs.transform(texts)  # adds the squares of a row in the order of its columns, as a fit does here
    for part in ("indptr", "indices", "data"):
        ours, other = getattr(found_NT, part), getattr(again_NT, part)
        assert ours.dtype == other.dtype
        np.testing.assert_array_equal(ours, other)
    np.testing.assert_array_equal(found_NT.indices, expected_NT.indices)
    np.testing.assert_allclose(found_NT.data, expected_NT.data, rtol=3e-7)


@pytest.mark.parametrize("limit", [1, 2, 5, 8, 20, 60, 1000])
def test_at_the_limit_the_most_frequent_stay_and_of_equals_those_of_scikit_learn(limit: int) -> None:
    texts = DRAWN + ODD + TEXTS
    whole, cut = count(texts), count(texts, limit=limit)
    total = dict(zip(whole.names, np.asarray(whole.texts_NT.sum(axis=0)).ravel(), strict=True))
    rarest = min(total[name] for name in cut.names)
    assert {name for name in total if total[name] > rarest} <= set(cut.names)
    theirs = TfidfVectorizer(ngram_range=(1, 2), min_df=2, max_features=limit, dtype=np.float32).fit(texts)
    assert cut.names == theirs.get_feature_names_out().tolist()
    assert len(cut.names) == min(limit, len(whole.names))
    columns = [whole.names.index(name) for name in cut.names]
    np.testing.assert_array_equal(cut.texts_NT.toarray(), whole.texts_NT[:, columns].toarray())


@pytest.mark.parametrize("texts", [[], [""], ["", "a"], ["one", "two"]])
@pytest.mark.parametrize("ngrams", [1, 3])
def test_no_common_word_gives_no_columns(texts: list[str], ngrams: int) -> None:
    found = count(texts, ngrams)
    assert (found.names, found.texts_NT.shape) == ([], (len(texts), 0))


def test_texts_are_read_once_and_not_kept() -> None:
    """A text is released before the one after the next is read."""

    class Text(str):
        alive = 0

        def __init__(self, *_: object) -> None:
            Text.alive += 1

        def __del__(self) -> None:
            Text.alive -= 1

    most = 0

    def stream() -> Iterator[str]:
        nonlocal most
        for _ in range(50):
            yield Text("red sky")
            most = max(most, Text.alive)

    Terms.fit(stream(), TermSettings())
    assert most <= 2
