"""The score ``label_words``: the cosine of the document's text and the label's text as TF-IDF vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from xc_core.arrays import read_arrays
from xc_core.errors import CorruptError
from xc_core.scores.base import SCORES, FittedScore, NewLabels, Query, Score, ScoreData
from xc_core.scores.terms import Terms, TermSettings, require
from xc_core.shapes import F32, I32, PAD_ID, spans

_LABELS: Final = "labels.safetensors"
_TEXTS_AT_ONCE: Final = 64
"""Texts compared at a time, at most."""
_TERMS_AT_ONCE: Final = 500_000
"""Terms of label texts compared at a time: 64 texts x 300 candidates x some 20 terms, which stay in the cache."""


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

        content, do = "terms and label texts of one fit", "run the stage scores again"
        arrays = read_arrays(folder / _LABELS, "data", "indices", "indptr", content=content, do=do)
        try:
            shape = (len(arrays["indptr"]) - 1, len(terms))
            labels_LT = csr_matrix((arrays["data"], arrays["indices"], arrays["indptr"]), shape)
            labels_LT.check_format()  # scipy itself reads rows without checks of bounds
        except (TypeError, ValueError) as error:
            raise CorruptError(
                f"label texts in {folder} that cannot be read: {error}", expected=content, do=do
            ) from error
        return cls(terms, labels_LT)

    @property
    def num_labels(self) -> int:
        """Number of labels, L."""
        return int(self.labels_LT.shape[0])

    def with_texts(self, texts: list[str]) -> Matches:
        """Return the score with more label texts at the end; of their words, those count that the fit knows."""
        from scipy.sparse import vstack

        return Matches(self.terms, vstack([self.labels_LT, self.terms.transform(texts)], format="csr"))

    def best(self, query: Query, k: int) -> I32:
        """Return the at most ``k`` labels of each text with the highest cosines above 0 (N x K), holes last."""
        terms_NT, k = self.terms.of_query(query), min(k, self.num_labels)
        ids_NK = np.full((terms_NT.shape[0], k), PAD_ID, np.int32)
        for rows in spans(len(ids_NK), _TEXTS_AT_ONCE):
            cosines_BL = terms_NT[rows] @ self.labels_LT.T
            row_M = np.repeat(np.arange(rows.stop - rows.start), np.diff(cosines_BL.indptr))
            order = np.lexsort((cosines_BL.indices, -cosines_BL.data, row_M))
            rank_M = np.arange(len(order)) - cosines_BL.indptr[row_M]
            kept = rank_M < k
            ids_NK[rows.start + row_M[kept], rank_M[kept]] = cosines_BL.indices[order][kept]
        return ids_NK

    def values(self, query: Query, ids_NK: I32) -> F32:
        """Return the cosine of each text and each of its candidates' texts; 0 for a hole."""
        terms_NT = self.terms.of_query(query)
        out = np.zeros(ids_NK.shape, np.float32)
        text_T = np.zeros(terms_NT.shape[1], terms_NT.dtype)
        width = ids_NK.shape[1] * max(self.labels_LT.nnz / max(self.num_labels, 1), 1)
        for rows in spans(len(ids_NK), min(_TEXTS_AT_ONCE, max(int(_TERMS_AT_ONCE // max(width, 1)), 1))):
            out[rows] = self._cosines(terms_NT[rows], np.maximum(ids_NK[rows], 0), text_T)
        return np.where(ids_NK == PAD_ID, 0, out).astype(np.float32)

    def _cosines(self, terms_BT: Any, ids_BK: I32, text_T: F32) -> F32:
        """Return the cosines of texts and labels (B x K); ``text_T`` is all 0, before and after.

        A text is spread over all terms, and a label's terms are looked up there. So the time depends on the length of
        the labels' texts, not on that of the documents, which may have thousands of terms.
        """
        labels_PT = self.labels_LT[ids_BK.ravel()]
        products = np.empty_like(labels_PT.data)
        ends = labels_PT.indptr[:: ids_BK.shape[1] or 1]
        for text, (start, end) in enumerate(pairwise(ends)):
            own = slice(*terms_BT.indptr[text : text + 2])
            text_T[terms_BT.indices[own]] = terms_BT.data[own]
            products[start:end] = labels_PT.data[start:end] * text_T[labels_PT.indices[start:end]]
            text_T[terms_BT.indices[own]] = 0
        labels_PT.data = products
        labels_PT.eliminate_zeros()
        return np.asarray(labels_PT.sum(axis=1)).reshape(ids_BK.shape)

    def save(self, folder: Path) -> None:
        """Write the terms and the label texts."""
        self.terms.save(folder)
        self.save_texts(folder)

    def save_texts(self, folder: Path) -> None:
        """Write the label texts alone."""
        arrays = {name: getattr(self.labels_LT, name) for name in ("indptr", "indices", "data")}
        save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, folder / _LABELS)
