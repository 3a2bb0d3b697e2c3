"""TF-IDF vectors of words and word n-grams, or of characters inside words: the features of the lexical scores.

An accented letter may be one character or two in Unicode; here it is one, since words end where the second would be.

Files: ``terms.parquet`` (term and idf, in the order of columns), ``terms.json`` (settings).
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from xc_core.errors import DataError, MissingError
from xc_core.params import at_least, later, within
from xc_core.plugins import HasUnused
from xc_core.scores.base import Query, ScoreData
from xc_core.scores.ngrams import count_ngrams
from xc_core.shapes import F32

_TERMS: Final = "terms.parquet"
_SETTINGS: Final = "terms.json"
_LONGEST: Final = 64
_WORD: Final = re.compile(r"\b\w\w+\b")
_COMPOSED: Final = {"form": "NFC"}
"""Metadata of terms that were fitted on composed texts; 0.2.0 took texts as they are."""


@dataclass(frozen=True, kw_only=True)
class TermSettings(HasUnused):
    """Which terms are kept. The defaults are those that Annif recommends for label trees."""

    ngrams: int = 2
    """Maximum number of words in a term."""
    min_documents: int = 2
    """Minimum number of train texts that a term occurs in."""
    terms: int = 300_000
    """Maximum number of terms; the most frequent ones are kept."""
    characters: int = later(0, was=0)
    """Number of characters of a term, which is a part of a word, its edges included; 0: terms are words."""

    def __post_init__(self) -> None:
        at_least(self, min_documents=1, terms=1)
        within(self, ngrams=(1, _LONGEST), characters=(0, _LONGEST))

    def unused(self) -> frozenset[str]:
        """Parts of words have one length."""
        return frozenset({"ngrams"}) if self.characters else frozenset()


@dataclass(frozen=True)
class Terms:
    """A fitted vectoriser from texts to unit TF-IDF vectors, with 1 + log(count) as term frequency."""

    settings: TermSettings
    names: list[str]
    """The terms, in the order of columns."""
    idf_T: F32
    composed: bool = True
    """True if texts are composed (NFC) first."""

    @classmethod
    def fit(cls, texts: Iterable[str], settings: TermSettings) -> tuple[Terms, Any]:
        """Fit on N train texts; return the terms, and the texts as rows of terms (scipy CSR, N x T).

        Each text is read once and not kept. Terms and frequencies are those of scikit-learn, and rows those of its
        ``transform``, bit for bit.
        Raises DataError if no term is kept, MissingError if scikit-learn is not installed.
        """
        require("scikit-learn", "sklearn")
        from sklearn.preprocessing import normalize

        split = _character_ngrams if settings.characters else _words_of
        counts = count_ngrams(
            texts,
            lambda text: split(_composed(text).lower(), settings),
            ngrams=1 if settings.characters else settings.ngrams,
            min_documents=settings.min_documents,
            limit=settings.terms,
        )
        if not counts.names:
            raise nothing_to_learn(settings)
        rows_NT = counts.texts_NT
        documents_T = np.bincount(rows_NT.indices, minlength=len(counts.names)).astype(np.float32)
        idf_T = np.log(np.float32(1 + rows_NT.shape[0]) / (documents_T + 1)) + 1
        rows_NT.data = (np.log(rows_NT.data) + 1) * idf_T[rows_NT.indices]
        return cls(settings, counts.names, idf_T), normalize(rows_NT, copy=False)

    @classmethod
    def of(cls, data: ScoreData, settings: TermSettings) -> tuple[Terms, Any]:
        """Fit on the texts of documents, then labels; return what ``fit`` does.

        Scores with the same settings share the result. Raises ValueError if there is not one text for each of them.
        """
        return data.cache.once(("terms", settings), lambda: cls.fit(_each_text(data), settings))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def digest(self) -> str:
        """A hash that is equal for vectorisers that return the same vectors."""
        content = hashlib.blake2b(json.dumps(self.names, ensure_ascii=False).encode(), digest_size=16)
        content.update(np.ascontiguousarray(self.idf_T).tobytes())
        return f"{asdict(self.settings)} {self._metadata} {content.hexdigest()}"

    @property
    def _metadata(self) -> dict[str, str]:
        return _COMPOSED if self.composed else {}

    @cached_property
    def vectorizer(self) -> Any:
        """The fitted TfidfVectorizer of scikit-learn, whose import takes a second; answers do without it."""
        vectorizer = _vectorizer(self.settings, self.names, composed=self.composed)
        vectorizer.idf_ = self.idf_T
        return vectorizer

    def terms_of(self, text: str) -> list[str]:
        """Return the terms of a text, those of other texts too, as scikit-learn's analyser does."""
        split = _character_ngrams if self.settings.characters else _word_ngrams
        return split((_composed(text) if self.composed else text).lower(), self.settings)

    @cached_property
    def _columns_and_idf(self) -> tuple[dict[str, int], F32]:
        """The column of each term, and inverse document frequencies."""
        return {name: column for column, name in enumerate(self.names)}, self.idf_T.astype(np.float32)

    def of_query(self, query: Query) -> Any:
        """Return the texts of a query as rows of terms; scores with equal terms share them."""
        return query.cache.once(("terms", self.digest), lambda: self.vectors(query.texts))

    def vectors(self, texts: list[str]) -> Any:
        """Return texts as rows of terms (scipy CSR, N x T).

        The result equals that of ``transform`` up to rounding; its input checks take ten times as long as a short text.
        """
        from scipy.sparse import csr_matrix

        column_of, idf_T = self._columns_and_idf
        columns_by_text = ((column_of[t] for t in self.terms_of(text) if t in column_of) for text in texts)
        counts_by_text = [sorted(Counter(columns).items()) for columns in columns_by_text]
        size_N = np.array([len(counts) for counts in counts_by_text], np.int64)
        pairs = np.array([*chain.from_iterable(counts_by_text)], np.int32).reshape(-1, 2)
        column_M, count_M = pairs[:, 0], pairs[:, 1].astype(np.float32)
        value_M = (np.log(count_M) + 1) * idf_T[column_M]
        row_M = np.repeat(np.arange(len(texts)), size_N)
        length_N = np.sqrt(np.bincount(row_M, value_M.astype(np.float64) ** 2, len(texts)))
        value_M /= length_N[row_M].astype(np.float32)
        start_N = np.concatenate([[0], np.cumsum(size_N)]).astype(np.int32)
        return csr_matrix((value_M, column_M, start_N), (len(texts), len(idf_T)))

    def transform(self, texts: list[str]) -> Any:
        """Return texts as rows of terms, by scikit-learn itself; raises MissingError if it is not installed."""
        require("scikit-learn", "sklearn")
        return self.vectorizer.transform(texts)

    def save(self, folder: Path) -> None:
        """Write the terms into an existing folder."""
        frame = pl.DataFrame({"term": self.names, "idf": self.idf_T})
        frame.write_parquet(folder / _TERMS, metadata=self._metadata)
        content = asdict(self.settings)
        if not self.settings.characters:  # 0.2.0, which does not know it, can open the file
            del content["characters"]
        (folder / _SETTINGS).write_text(json.dumps(content, sort_keys=True) + "\n", "utf-8")

    @classmethod
    def open(cls, folder: Path) -> Terms:
        """Open the terms that ``save`` wrote."""
        settings = TermSettings(**json.loads((folder / _SETTINGS).read_text("utf-8")))
        saved = pl.read_parquet(folder / _TERMS, glob=False)
        composed = _COMPOSED.items() <= pl.read_parquet_metadata(folder / _TERMS).items()
        return cls(settings, saved["term"].to_list(), saved["idf"].to_numpy(), composed)


def _each_text(data: ScoreData) -> Iterator[str]:
    """Yield the texts of documents, then of labels."""
    truth, count = data.truth, 0
    for count, text in enumerate(chain(data.each_text(), data.label_texts()), 1):  # noqa: B007
        yield text
    if count != len(truth) + truth.num_labels:
        raise ValueError(f"{count} texts for {len(truth)} documents and {truth.num_labels} labels")


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _words_of(text: str, settings: TermSettings) -> list[str]:
    """Return the words of at least two characters."""
    return _WORD.findall(text)


def _word_ngrams(text: str, settings: TermSettings) -> list[str]:
    """Return words, and runs of up to ``ngrams`` of them, as scikit-learn does."""
    words = _words_of(text, settings)
    sizes = range(2, min(settings.ngrams, len(words)) + 1)
    return words + [" ".join(words[start : start + size]) for size in sizes for start in range(len(words) - size + 1)]


def _character_ngrams(text: str, settings: TermSettings) -> list[str]:
    """Return the runs of characters of each word, with a space before and after it, as scikit-learn does."""
    size = settings.characters
    padded = (f" {word} " for word in text.split())
    return [word[start : start + size] for word in padded for start in range(max(len(word) - size, 0) + 1)]


def _vectorizer(settings: TermSettings, terms: list[str], *, composed: bool) -> Any:
    """Return scikit-learn's vectoriser with the columns ``terms``."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    options: dict[str, Any] = {"sublinear_tf": True, "dtype": np.float32, "vocabulary": terms}
    if composed:
        options["preprocessor"] = lambda text: _composed(text).lower()
    if settings.characters:
        options |= {"analyzer": "char_wb", "ngram_range": (settings.characters, settings.characters)}
    else:
        options |= {"ngram_range": (1, settings.ngrams)}
    return TfidfVectorizer(**options)


def require(package: str, module: str) -> None:
    """Raise MissingError if a package of the extra ``lexical`` is not installed."""
    try:
        __import__(module)
    except ImportError as error:
        raise MissingError(
            f"no installed package {package}",
            expected="the packages of the extra lexical, to fit scores by words and to add labels to them",
            do="pip install -c constraints.txt numba scikit-learn",
        ) from error


def nothing_to_learn(settings: TermSettings) -> DataError:
    """Return the error for texts that have no term in common."""
    return DataError(
        f"no train document with a label and a term that {settings.min_documents} train documents have",
        expected="words that several documents share, from which a lexical score can learn",
        do="leave the scores by words out: --set scores.NAME=null for each of lexical, label_words, characters and "
        "label_characters that the recipe has",
    )
