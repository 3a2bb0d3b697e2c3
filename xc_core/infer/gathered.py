"""The candidates that a fusion is fitted on and compared by: documents that no score has seen, with their positives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from typing import Any, Final, Self, TypeVar

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.folds import Fold, unseen
from xc_core.data.labels import LabelMatrix
from xc_core.fusion import FittedFusion, Fusion, Inputs, Pairs
from xc_core.infer.ranker import candidates, distinct, values
from xc_core.scores import FittedScore, Query, Scores
from xc_core.seeds import generator
from xc_core.shapes import F32, F64, I32, I64, PAD_ID, Array, Bool, Shortlist, among

T = TypeVar("T")
_BESIDE: Final = 100
"""Positives of a document, the first by id, that are added to its row of candidates. All rows have one width, so that
a document with very many positives would widen all of them."""


@dataclass(frozen=True)
class HeldOut:
    """Documents that a fold has not seen, with the labels that the fold knows enough about."""

    fold: str
    rows: I64
    truth: LabelMatrix
    revealing_L: Bool
    """Labels whose pairs are left out, because scores of the fold reveal that they have held-out positives."""

    @classmethod
    def of(cls, corpus: Corpus, fold: Fold, rows: I64) -> Self:
        """Return the documents ``rows`` without revealing labels; a document that has no other labels is left out.

        If more than half of all pairs would be left out, all are kept.
        """
        revealing_L, all_pairs = fold.revealing_labels(corpus), corpus.labels.rows(rows)
        if 2 * len(all_pairs.only(revealing_L).indices) > len(all_pairs.indices):
            revealing_L = np.zeros_like(revealing_L)
        truth = all_pairs.only(~revealing_L)
        kept = np.flatnonzero((truth.counts_N > 0) | (all_pairs.counts_N == 0))
        return cls(fold.name, rows[kept], truth.rows(kept), revealing_L)

    @classmethod
    def of_all(cls, corpus: Corpus, folds: list[Fold], limit: int) -> list[Self]:
        """Return the documents of each fold that it has not seen, ``limit`` at most of all folds together."""
        return [cls.of(corpus, fold, rows) for fold, rows in unseen(folds, corpus, limit)]

    def query(self, corpus: Corpus, embeddings: Embeddings) -> Query:
        """Return the documents as the scores read them."""
        doc_ND = np.ascontiguousarray(embeddings.documents_ND[self.rows])
        return Query(doc_ND, cache(partial(corpus.texts_of, "documents", self.rows)))


@dataclass(frozen=True)
class Surplus:
    """Positives beyond the first _BESIDE of a document that no score proposed, in R rows as wide as its candidates."""

    doc_R: I64
    """The document of each row; one with very many positives has several rows."""
    ids_RK: I32
    values_RKF: F32

    def among(self, docs: I64, size: int) -> Surplus:
        """Return the rows of ``docs``, which are numbered in their order; there were ``size`` documents."""
        place_N = np.full(size, -1)
        place_N[docs] = np.arange(len(docs))
        doc_R = place_N[self.doc_R]
        kept = doc_R >= 0
        return Surplus(doc_R[kept], self.ids_RK[kept], self.values_RKF[kept])


@dataclass(frozen=True)
class Candidates:
    """Candidates of documents and their scores' values: labels that the scores propose, and all positives."""

    ids_NK: I32
    values_NKF: F32
    positive_NK: Bool
    found_NK: Bool
    """True for a candidate that a score proposed; only these are candidates in serving."""
    truth: LabelMatrix
    """The positives of the documents (N x L), without pairs that are left out of the fit."""
    surplus: Surplus | None = None
    """Positives beyond those among ``ids_NK``."""

    @classmethod
    def of(cls, held_out: HeldOut, corpus: Corpus, query: Query, scores: Mapping[str, FittedScore], k: int) -> Self:
        """Return about ``k`` candidates of each score, which has not seen the documents, and all positives.

        ``query`` holds the documents (``HeldOut.query``).
        """
        truth = held_out.truth
        proposed_NK = candidates(scores, query, k)
        found_NK = np.where(held_out.revealing_L[proposed_NK], PAD_ID, proposed_NK).astype(np.int32)
        filters = corpus.filters.rows(held_out.rows)
        ids_NK = _with_positives(found_NK, truth.first(_BESIDE), filters)
        doc_R, ids_RK = _surplus_positives(ids_NK, truth, filters)
        surplus = None
        if len(doc_R):
            surplus_query = Query(query.doc_ND[doc_R], lambda: [query.texts[doc] for doc in doc_R.tolist()])
            surplus = Surplus(doc_R, ids_RK, values(scores, surplus_query, ids_RK))
        return cls(
            ids_NK,
            values(scores, query, ids_NK),
            truth.contains(np.arange(len(truth))[:, None], ids_NK),
            among(ids_NK, found_NK),
            truth,
            surplus,
        )

    @classmethod
    def concat(cls, parts: list[Candidates], rows: I64) -> Candidates:
        """Return all parts together, ordered by ``rows``, the documents of the parts one after the other."""
        width, back = max(part.ids_NK.shape[1] for part in parts), np.argsort(rows)

        def stacked(name: str, hole: int) -> Any:
            return np.concatenate([padded(getattr(part, name), width, hole) for part in parts])[back]

        truth = reduce(LabelMatrix.above, (part.truth for part in parts)).rows(back)
        ids_NK, values_NKF = stacked("ids_NK", PAD_ID), stacked("values_NKF", 0)
        surplus = cls._surplus(parts, width)
        surplus = None if surplus is None else surplus.among(back, len(back))
        return cls(ids_NK, values_NKF, stacked("positive_NK", 0), stacked("found_NK", 0), truth, surplus)

    @staticmethod
    def _surplus(parts: list[Candidates], width: int) -> Surplus | None:
        """Return the surplus of all parts; their documents are numbered one after the other."""
        starts = np.cumsum([0, *(len(part.truth) for part in parts)])
        surpluses = ((start, part.surplus) for start, part in zip(starts, parts, strict=False))
        with_surplus = [(start, surplus) for start, surplus in surpluses if surplus is not None]
        if not with_surplus:
            return None
        ids = np.concatenate([padded(surplus.ids_RK, width, PAD_ID) for _, surplus in with_surplus])
        values_RKF = np.concatenate([padded(surplus.values_RKF, width, 0) for _, surplus in with_surplus])
        return Surplus(np.concatenate([start + surplus.doc_R for start, surplus in with_surplus]), ids, values_RKF)

    def only(self, columns: list[int], found_NK: Bool) -> Candidates:
        """Return the values of some scores and the candidates (N x K) that these propose, without the other ones."""
        ids_NK = np.where(found_NK | self.positive_NK, self.ids_NK, PAD_ID).astype(np.int32)
        surplus = self.surplus and replace(self.surplus, values_RKF=self.surplus.values_RKF[..., columns])
        return replace(
            self, ids_NK=ids_NK, values_NKF=self.values_NKF[..., columns], found_NK=found_NK, surplus=surplus
        )

    def fit(
        self, rule: Fusion, inputs: Inputs, weights_L: F64, rows: I64 | slice = slice(None), *, raises_new: bool = False
    ) -> FittedFusion:
        """Fit on the candidates of ``rows``, including positives that no score proposed (NGAME, appendix C).

        ``raises_new``: labels without train documents are raised (``FittedFusion.by_sum``).
        """
        pairs = self.pairs(rule, weights_L, rows)
        fitted = rule.fit(inputs, pairs)
        return fitted.with_by_sum(inputs, pairs) if raises_new else fitted

    def pairs(self, rule: Fusion, weights_L: F64, rows: I64 | slice) -> Pairs:
        """Return the candidates of ``rows`` with their targets, and the surplus of these documents below them."""
        ids_NK, values_NKF = self.ids_NK[rows], self.values_NKF[rows]
        positive_NK, found_NK, doc_N = self.positive_NK[rows], self.found_NK[rows], None
        if self.surplus is not None:
            surplus = self.surplus.among(np.arange(len(self.truth))[rows], len(self.truth))
            doc_N = np.concatenate([np.arange(len(ids_NK)), surplus.doc_R])
            ids_NK = np.concatenate([ids_NK, surplus.ids_RK])
            values_NKF = np.concatenate([values_NKF, surplus.values_RKF])
            positive_NK = np.concatenate([positive_NK, surplus.ids_RK != PAD_ID])
            found_NK = np.concatenate([found_NK, np.zeros(surplus.ids_RK.shape, bool)])
        target_NK = rule.target(positive_NK, weights_L[ids_NK].astype(np.float32))
        return Pairs(values_NKF, target_NK, ids_NK != PAD_ID, found_NK, doc_N)

    def cross_fit(
        self,
        rule: Fusion,
        inputs: Inputs,
        weights_L: F64,
        second_N: Bool,
        level: FittedFusion | None = None,
        *,
        raises_new: bool = False,
    ) -> Shortlist:
        """Rank each document by ``rule`` fitted on the other part; ``second_N`` divides the documents into two.

        A rule that is fitted to an order has scores of any level, so those of two fits cannot be compared. With
        ``level``, the rule fitted on all documents, one number is added to the scores of each part: their mean over
        all candidates is then that of ``level``. ``raises_new``: as for ``fit``.
        """
        halves = np.flatnonzero(~second_N), np.flatnonzero(second_N)
        fits = [self.fit(rule, inputs, weights_L, half, raises_new=raises_new) for half in reversed(halves)]
        crossed = [self.rank(fit, half) for fit, half in zip(fits, halves, strict=True)]
        if level is not None:
            crossed = [_at_level(part, self.rank(level, half)) for part, half in zip(crossed, halves, strict=True)]
        return Shortlist.stack(crossed).rows(np.argsort(np.concatenate(halves)))

    def rank(self, fusion: FittedFusion, rows: I64 | slice = slice(None)) -> Shortlist:
        """Rank the candidates that scores proposed, as in serving."""
        ids_NK = np.where(self.found_NK[rows], self.ids_NK[rows], PAD_ID).astype(np.int32)
        return fusion.rank(ids_NK, self.values_NKF[rows])


def gather_each(
    held_out: list[HeldOut],
    corpus: Corpus,
    embeddings: Embeddings,
    scores: Scores,
    k: int,
    read: Callable[[Candidates, Mapping[str, FittedScore], Query], T],
) -> list[T]:
    """Gather the candidates of each fold's documents, about ``k`` of each score; return what ``read`` makes of them.

    ``read`` also gets the scores of the fold and the query, which keeps their searches. One fold is in memory at once.
    """

    def gathered(subset: HeldOut) -> T:
        fitted, query = scores.fitted(subset.fold), subset.query(corpus, embeddings)
        return read(Candidates.of(subset, corpus, query, fitted, k), fitted, query)

    return [gathered(subset) for subset in held_out]


def second_half(families_N: I64, division: int = 0) -> Bool:
    """Mark the documents of the second half of the families (N); divisions above 0 are drawn."""
    families = int(families_N.max()) + 1
    order = generator(division, "ablation").permutation(families) if division else np.arange(families)
    return np.asarray(order[families_N] % 2 == 1)


def _at_level(part: Shortlist, level: Shortlist) -> Shortlist:
    """Return ``part`` with the mean score of ``level``, another ranking of the same candidates."""
    own, other = (short.scores_NK[short.ids_NK != PAD_ID] for short in (part, level))
    if not len(own):
        return part
    return replace(part, scores_NK=part.scores_NK + np.float32(other.mean() - own.mean()))


def _with_positives(found_NK: I32, truth: LabelMatrix, filters: LabelMatrix) -> I32:
    """Return the found candidates and all positives of each document, without filtered pairs.

    As negatives, filtered pairs would teach that a label with the document's own text is wrong.
    """
    positives = np.full((len(truth), int(truth.counts_N.max(initial=1))), PAD_ID, np.int32)
    docs, labels = truth.pairs()
    positives[docs, truth.places()] = labels
    candidate_NK = np.concatenate([found_NK, positives], axis=1)
    filtered_NK = filters.contains(np.arange(len(truth))[:, None], candidate_NK)
    return distinct(np.where(filtered_NK, PAD_ID, candidate_NK).astype(np.int32))


def _surplus_positives(ids_NK: I32, truth: LabelMatrix, filters: LabelMatrix) -> tuple[I64, I32]:
    """Return the positives that are not among ``ids_NK``, in rows of K, with the document of each row (R, R x K)."""
    docs, labels = truth.where(truth.places() >= _BESIDE).pairs()
    filled_NK, width = ids_NK != PAD_ID, ids_NK.shape[1]
    candidate_pairs = LabelMatrix.from_pairs(np.nonzero(filled_NK)[0], ids_NK[filled_NK], truth.shape)
    missing = ~(candidate_pairs.contains(docs, labels) | filters.contains(docs, labels))
    surplus = LabelMatrix.from_pairs(docs[missing], labels[missing], truth.shape)
    rows_N = -(-surplus.counts_N // width)
    (docs, labels), place = surplus.pairs(), surplus.places()
    ids_RK = np.full((int(rows_N.sum()), width), PAD_ID, np.int32)
    ids_RK[(np.cumsum(rows_N) - rows_N)[docs] + place // width, place % width] = labels
    return np.repeat(np.arange(len(truth)), rows_N), ids_RK


def padded(values_NK: Array, width: int, hole: int) -> Array:
    """Return N x K (x F) values with ``width`` columns, the last ones filled with ``hole``."""
    padding = [(0, 0), (0, width - values_NK.shape[1]), *[(0, 0)] * (values_NK.ndim - 2)]
    return np.pad(values_NK, padding, constant_values=hole)
