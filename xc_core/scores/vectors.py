"""A score by inner products: one vector per label, an index that finds candidates, products as values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from xc_core.ann import (
    Exact,
    ExactIndex,
    HasAlwaysExact,
    Index,
    IndexPart,
    exact_search,
    load_index,
    recall,
    save_index,
    with_more,
)
from xc_core.errors import CorruptError
from xc_core.scores.base import FittedScore, NewLabels, Query, Score
from xc_core.shapes import F32, I32, Shortlist, extended, spans

_DOCS_AT_ONCE: Final = 16
"""Documents whose candidate vectors are gathered at a time: 16 x 200 x 384 x 4 bytes = 5 MB fit into the CPU cache."""
_RECALL_AT: Final = 100
"""Labels per document for which the recall of an index is measured."""
ALONE: Final = 300
"""Documents, at most, that are asked one at a time for it."""
_VECTORS: Final = "vectors.npy"
_INDEX: Final = "index"
_CONTENT: Final = "vectors.json"


class ByVectors(Score):
    """Base of scores whose ``fit`` returns a ``VectorScore``."""

    def extended(self, fitted: FittedScore, new: NewLabels) -> FittedScore:
        """Add the vectors of the new labels' texts."""
        assert isinstance(fitted, VectorScore)
        return fitted.extended(new.label_vectors[new.before :])

    def open(self, folder: Path) -> FittedScore:
        """Open the vectors and the index."""
        return VectorScore.open(folder)


@dataclass(frozen=True)
class VectorScore(FittedScore):
    """The inner product of a document's vector and a label's vector.

    Label vectors that are one coordinate wider than documents have a bias there, which is added to the product.
    """

    vectors_LD: F32
    index: Index | None
    """Finds candidates; None for a score that does not search."""
    searched_LD: F32 | None = None
    """The vectors that the index should hold, for measuring its recall; None if only the index has them."""
    joined: bool = False
    """True if the index is over other vectors than ``vectors_LD``, so its search depends on another score too."""

    @classmethod
    def build(cls, vectors_LD: F32, part: IndexPart | None, searched_LD: F32 | None = None) -> VectorScore:
        """Return the score with an index over ``searched_LD``, by default over the vectors themselves."""
        searched = vectors_LD if searched_LD is None else searched_LD
        return cls(vectors_LD, None if part is None else part.build(searched), searched, searched_LD is not None)

    @property
    def num_labels(self) -> int:
        """Number of labels, L."""
        return len(self.vectors_LD)

    def candidates(self, query: Query, k: int) -> I32 | None:
        """Return the ``k`` labels that the index finds; None without an index."""
        return None if self.index is None else self._search(self.index, query, k)

    def alone(self, query: Query, k: int) -> I32 | None:
        """Return the ``k`` labels with the highest values: by the index if it is over these vectors, else exactly."""
        searches_own_vectors = self.index is not None and not self.joined
        return self.candidates(query, k) if searches_own_vectors else self._search(self._exact, query, k)

    @cached_property
    def _exact(self) -> ExactIndex:
        """Exact search over the vectors themselves; kept, because on a card it holds a copy of them."""
        return ExactIndex(self.vectors_LD)

    def _search(self, index: Index, query: Query, k: int) -> I32:
        """Search once per query, for all callers."""
        key = ("vectors", id(self), index is self.index, k)
        return query.cache.once(key, lambda: index.search(self._query_vectors(query), k).ids_NK)

    def values(self, query: Query, ids_NK: I32) -> F32:
        """Return the inner product of each document with each of its candidates."""
        return candidate_products(self._query_vectors(query), ids_NK, self.vectors_LD)

    def _query_vectors(self, query: Query) -> F32:
        """Return the documents' vectors, with a last coordinate of 1 if the label vectors have a bias."""
        doc_ND = query.doc_ND
        if doc_ND.shape[1] + 1 != self.vectors_LD.shape[1]:
            return doc_ND
        return query.cache.once("biased", lambda: extended(doc_ND, 1.0))

    def figures(self, query: Query) -> dict[str, float]:
        """Return the recall at 100 of the index against exact search; nothing without an index or documents.

        Documents are asked one at a time, as a service does: an index may search several in another way.
        """
        if self.index is None or not len(query):
            return {}
        if isinstance(self.index, HasAlwaysExact) and self.index.always_exact:
            return {"recall": 1.0}
        query_ND = self._query_vectors(query)[:ALONE]
        if self.searched_LD is None:
            exact = exact_search(self.index, query_ND, _RECALL_AT)
        else:
            exact = Exact().build(self.searched_LD).search(query_ND, _RECALL_AT)
        if exact is None:
            return {}
        found = Shortlist.stack([self.index.search(query_D[None], _RECALL_AT) for query_D in query_ND])
        return {"recall": recall(found, exact)}

    def extended(self, vectors_ND: F32, searched_LD: F32 | None = None) -> VectorScore:
        """Return the score with more labels, whose vectors are ``vectors_ND``.

        ``searched_LD`` are the vectors of all labels in the index, by default the score's own. The index is extended,
        or built again if its kind has to be.
        """
        all_LD = np.concatenate([self.vectors_LD, vectors_ND])
        searched = all_LD if searched_LD is None else searched_LD
        if self.index is None:
            return VectorScore(all_LD, None, searched, self.joined)
        if self.index.vectors_LD is self.vectors_LD:
            return VectorScore(all_LD, ExactIndex(all_LD), searched, self.joined)
        index = with_more(self.index, searched[self.num_labels :]) or self.index.part.build(searched)
        return VectorScore(all_LD, index, searched, self.joined)

    def save(self, folder: Path) -> None:
        """Write the vectors, and the index unless it is exact search over the same vectors."""
        np.save(folder / _VECTORS, self.vectors_LD)
        kind = "none" if self.index is None else "own"
        if self.index is not None and self.index.vectors_LD is self.vectors_LD:
            kind = "exact"
        elif self.index is not None:
            (folder / _INDEX).mkdir()
            save_index(self.index, folder / _INDEX)
        (folder / _CONTENT).write_text(json.dumps({"index": kind}) + "\n", "utf-8")

    @classmethod
    def open(cls, folder: Path, *, joined: bool = False) -> VectorScore:
        """Open the score that ``save`` wrote; the vectors are memory-mapped copy-on-write.

        Raises CorruptError if vectors and index have different numbers of labels.
        """
        vectors_LD = np.asarray(np.load(folder / _VECTORS, mmap_mode="c", allow_pickle=False))
        kind = json.loads((folder / _CONTENT).read_text("utf-8"))["index"]
        index: Index | None = ExactIndex(vectors_LD) if kind == "exact" else None
        if kind == "own":
            index = load_index(folder / _INDEX)
        if index is not None and index.size != len(vectors_LD):
            raise CorruptError(
                f"{len(vectors_LD)} vectors and an index of {index.size} in {folder}",
                expected="the same number in both",
                do="run the stage scores again",
            )
        return cls(vectors_LD, index, None if joined else vectors_LD, joined)


def candidate_products(doc_ND: F32, ids_NK: I32, vectors_LD: F32) -> F32:
    """Return the inner product of each document with each of its candidates (N x K); any number for a hole."""
    out = np.empty(ids_NK.shape, np.float32)
    for part in spans(len(doc_ND), _DOCS_AT_ONCE):
        vectors_NKD = np.take(vectors_LD, np.maximum(ids_NK[part], 0), axis=0)
        out[part] = np.matmul(vectors_NKD, doc_ND[part][:, :, None])[:, :, 0]
    return out
