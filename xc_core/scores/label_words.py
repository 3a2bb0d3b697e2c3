"""The score ``label_words``: the cosine of the document's text and the label's text as TF-IDF vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file, save_file

from xc_core.errors import CorruptError
from xc_core.scores.base import SCORES, FittedScore, NewLabels, Query, Score, ScoreData
from xc_core.scores.terms import Terms, TermSettings, require
from xc_core.shapes import F32, I32, PAD_ID

_LABELS: Final = "labels.safetensors"
_TEXTS_AT_ONCE: Final = 64
"""Texts compared at a time: 64 texts x 300 candidates x some 20 terms stay in the CPU cache."""


@SCORES.register("label_words")
@dataclass(frozen=True, kw_only=True)
class LabelWords(Score):
    """Compares the words of a text with those of the label's text."""

    code_version = "2"  # decomposed accented letters ended words
    searches = False

    terms: TermSettings = field(default_factory=TermSettings)

    def check(self) -> None:
        """Raise MissingError if scikit-learn is not installed."""
        require("scikit-learn", "sklearn")

    def fit(self, data: ScoreData) -> FittedScore:
        """Fit the terms on the texts of documents and labels."""
        terms, rows_NT = Terms.of(data, self.terms)
        return Matches(terms, rows_NT[len(data.truth) :])

    def extended(self, fitted: FittedScore, new: NewLabels) -> FittedScore:
        """Add the new texts; of their words, those count that the fit knows."""
        assert isinstance(fitted, Matches)
        return fitted.with_texts(new.texts())

    def open(self, folder: Path) -> FittedScore:
        """Open the terms and the label texts; raise CorruptError if they are of two fits."""
        return Matches.open(folder, Terms.open(folder))


@SCORES.register("label_characters")
@dataclass(frozen=True, kw_only=True)
class LabelCharacters(LabelWords):
    """Compares parts of the words."""

    terms: TermSettings = field(default_factory=lambda: TermSettings(characters=4))


@dataclass(frozen=True)
class Matches(FittedScore):
    """The label texts as rows of terms (scipy CSR, unit vectors)."""

    terms: Terms
    labels_LT: Any

    @classmethod
    def open(cls, folder: Path, terms: Terms) -> Matches:
        """Open what ``save_texts`` wrote; raise CorruptError if it is of another fit than ``terms``."""
        from scipy.sparse import csr_matrix

        arrays = load_file(folder / _LABELS)
        if arrays["indices"].max(initial=0) >= len(terms):
            raise CorruptError(
                f"label texts with terms that are not in {folder}",
                expected="terms and label texts of one fit",
                do="run the stage scores again",
            )
        shape = (len(arrays["indptr"]) - 1, len(terms))
        return cls(terms, csr_matrix((arrays["data"], arrays["indices"], arrays["indptr"]), shape))

    @property
    def num_labels(self) -> int:
        """Number of labels, L."""
        return int(self.labels_LT.shape[0])

    def with_texts(self, texts: list[str]) -> Matches:
        """Return the score with more label texts at the end; of their words, those count that the fit knows."""
        from scipy.sparse import vstack

        return Matches(self.terms, vstack([self.labels_LT, self.terms.transform(texts)], format="csr"))

    def values(self, query: Query, ids_NK: I32) -> F32:
        """Return the cosine of each text and each of its candidates' texts; 0 for a hole."""
        terms_NT = self.terms.of_query(query)
        out = np.zeros(ids_NK.shape, np.float32)
        for start in range(0, len(ids_NK), _TEXTS_AT_ONCE):
            ids_BK = np.maximum(ids_NK[start : start + _TEXTS_AT_ONCE], 0)
            rows = np.repeat(np.arange(start, start + len(ids_BK)), ids_BK.shape[1])
            products = terms_NT[rows].multiply(self.labels_LT[ids_BK.ravel()]).sum(axis=1)
            out[start : start + len(ids_BK)] = np.asarray(products).reshape(ids_BK.shape)
        return np.where(ids_NK == PAD_ID, 0, out).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write the terms and the label texts."""
        self.terms.save(folder)
        self.save_texts(folder)

    def save_texts(self, folder: Path) -> None:
        """Write the label texts alone."""
        arrays = {name: getattr(self.labels_LT, name) for name in ("indptr", "indices", "data")}
        save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, folder / _LABELS)
