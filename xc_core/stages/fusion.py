"""Stage fusion: fits the fusion on candidates and positives of validation documents that no score has seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from typing import Any, Final

import numpy as np

from xc_core.artifacts import read_made
from xc_core.chain.context import Context
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.folds import Fold, unseen
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import VALIDATION
from xc_core.errors import MovedError
from xc_core.fusion import FittedFusion, Fusion, Inputs, Pairs, summed
from xc_core.fusion.base import SUM
from xc_core.fusion.dial import fit_dial
from xc_core.fusion.fallback import better_part
from xc_core.infer.score import candidates, distinct, values
from xc_core.metrics.evaluation import FUSION
from xc_core.metrics.ranking import PerDocument, per_document
from xc_core.recipes.settings import FusionSettings, inputs_of
from xc_core.scores import FittedScore, Query, Scores
from xc_core.shapes import F32, F64, I32, I64, PAD_ID, Array, Bool, Shortlist

_SHOWN = ("P_at_1", "P_at_5", "PSP_at_5")
_BESIDE: Final = 100
"""Positives of a document, by id, that stand beside its candidates, which are as wide as those of all documents."""


@dataclass(frozen=True)
class Surplus:
    """Positives that no score proposed, of documents with more than _BESIDE, in R rows as wide as candidates are."""

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
    def concat(cls, parts: list[Candidates], rows: I64) -> Candidates:
        """Return all parts together, ordered by ``rows``, the documents of the parts one after the other."""
        width, back = max(part.ids_NK.shape[1] for part in parts), np.argsort(rows)

        def joined(name: str, hole: int) -> Any:
            return np.concatenate([_wide(getattr(part, name), width, hole) for part in parts])[back]

        truth = reduce(LabelMatrix.above, (part.truth for part in parts)).rows(back)
        ids_NK, values_NKF = joined("ids_NK", PAD_ID), joined("values_NKF", 0)
        surplus = cls._surplus(parts, width)
        surplus = None if surplus is None else surplus.among(back, len(back))
        return cls(ids_NK, values_NKF, joined("positive_NK", 0), joined("found_NK", 0), truth, surplus)

    @staticmethod
    def _surplus(parts: list[Candidates], width: int) -> Surplus | None:
        """Return the surplus of all parts; their documents are numbered one after the other."""
        starts = np.cumsum([0, *(len(part.truth) for part in parts)])
        found = [(start, part.surplus) for start, part in zip(starts, parts, strict=False) if part.surplus is not None]
        if not found:
            return None
        ids = np.concatenate([_wide(own.ids_RK, width, PAD_ID) for _, own in found])
        values_RKF = np.concatenate([_wide(own.values_RKF, width, 0) for _, own in found])
        return Surplus(np.concatenate([start + own.doc_R for start, own in found]), ids, values_RKF)

    def fit(
        self, settings: FusionSettings, inputs: Inputs, weights_L: F64, rows: I64 | slice = slice(None)
    ) -> FittedFusion:
        """Fit on the candidates of ``rows``, including positives that no score proposed (NGAME, appendix C)."""
        fitted = settings.rule.fit(inputs, self._pairs(settings.rule, weights_L, rows))
        return replace(fitted, candidates=settings.candidates, offsets=inputs.offsets)

    def _pairs(self, rule: Fusion, weights_L: F64, rows: I64 | slice) -> Pairs:
        """Return the candidates of ``rows`` with their targets, and the surplus of these documents below them."""
        ids_NK, values_NKF = self.ids_NK[rows], self.values_NKF[rows]
        positive_NK, found_NK, doc_N = self.positive_NK[rows], self.found_NK[rows], None
        if self.surplus is not None:
            own = self.surplus.among(np.arange(len(self.truth))[rows], len(self.truth))
            doc_N = np.concatenate([np.arange(len(ids_NK)), own.doc_R])
            ids_NK = np.concatenate([ids_NK, own.ids_RK])
            values_NKF = np.concatenate([values_NKF, own.values_RKF])
            positive_NK = np.concatenate([positive_NK, own.ids_RK != PAD_ID])
            found_NK = np.concatenate([found_NK, np.zeros(own.ids_RK.shape, bool)])
        target_NK = rule.target(positive_NK, weights_L[ids_NK].astype(np.float32))
        return Pairs(values_NKF, target_NK, ids_NK != PAD_ID, found_NK, doc_N)

    def rank(self, fusion: FittedFusion, rows: I64 | slice = slice(None)) -> Shortlist:
        """Rank the candidates that scores proposed, as in serving."""
        ids_NK = np.where(self.found_NK[rows], self.ids_NK[rows], PAD_ID).astype(np.int32)
        return fusion.rank(ids_NK, self.values_NKF[rows])


def run(context: Context[FusionSettings]) -> None:
    """Gather candidates, fit, and compare with each score alone by two-fold cross-fitting."""
    settings, corpus, scores = context.settings, context.read(Corpus), context.read(Scores)
    inputs = inputs_of(scores.parts)
    held = [_held_out(corpus, fold, rows) for fold, rows in unseen(scores.folds, corpus, settings.rows)]
    if not any(len(one.rows) for one in held):
        _without_validation(context, inputs)
        return
    embeddings = context.read(Embeddings)
    parts = [_gathered(settings, corpus, embeddings, scores.fitted(one.fold), one) for one in held]
    rows, weights_L = np.concatenate([one.rows for one in held]), corpus.weights()
    gathered, families_N = Candidates.concat(parts, rows), corpus.families(np.sort(rows))
    fitted = gathered.fit(settings, inputs, weights_L)
    ranked = _ranked(settings, inputs, gathered, weights_L, fitted, families_N)
    documents = _per_document(ranked, gathered.truth, weights_L)
    compared = {name: own.total() for name, own in documents.items()}
    better = _instead(settings, compared, documents)
    served = fitted.part(better) if better else fitted
    figures: dict[str, float] | None = None
    if better or FUSION in ranked or not settings.rule.learns:  # otherwise the rule has seen all documents
        unseen_ranking = ranked.get(better or FUSION) or gathered.rank(served)
        served, figures = _with_dial(context, served, unseen_ranking, gathered.truth, weights_L)
    served.write(context.build.path)
    context.build.facts |= {
        "documents": len(gathered.truth),
        "revealing_labels": {one.fold: int(one.revealing_L.sum()) for one in held},
        "pairs": int((gathered.ids_NK != PAD_ID).sum()),
        "rule": settings.rule.kind,
        "served": better or FUSION,
        "figures": figures or {},
        "validation": compared,
    }
    shown = ", ".join(f"{name} {value['P_at_1']:.1f} / {value['PSP_at_5']:.1f}" for name, value in compared.items())
    at_zero = ", the dial (tail) at 0" if served.turns else ""
    context.report(f"fusion: P@1 / PSP@5 on validation, cross-fitted{at_zero}: {shown}")
    if better and FUSION in compared:
        part, rule = (" / ".join(f"{compared[name][metric]:.1f}" for metric in _SHOWN) for name in (better, FUSION))
        context.report(
            f"fusion: {better} alone is better than the rule (P@1 / P@5 / PSP@5 {part} against {rule}; "
            "the rule is clearly better in none), so it is used instead"
        )
    elif better:
        context.report(f"fusion: too few validation documents to test the rule on, so {better} is used instead")


def extend(context: Context[FusionSettings]) -> None:
    """Give labels that are new at the end the weight of labels without documents; the rule and its figures stay."""
    old = FittedFusion.open(context.old)
    served = old if old.dial is None else replace(old, dial=old.dial.extended(context.read(Corpus).weights()))
    served.write(context.build.path)
    context.build.facts |= read_made(context.old).facts


def _with_dial(
    context: Context[FusionSettings], fusion: FittedFusion, ranked: Shortlist, truth: LabelMatrix, weights_L: F64
) -> tuple[FittedFusion, dict[str, float]]:
    """Return ``fusion`` with a dial fitted on ``ranked``, documents it has not seen, and its figures; report the curve.

    The figures are those at the default position of the dial, as the model is served.
    """
    found = fit_dial(ranked, truth, weights_L, context.settings.tail_cost)
    if found is None:
        context.report(
            "fusion: no dial between P@k and PSP@k (--tail): the candidates have too few positives, or the fused score "
            "does not tell them from other candidates"
        )
        return fusion, _per_document({FUSION: ranked}, truth, weights_L)[FUSION].total()
    dial, curve = found
    context.build.facts["tail"] = {"default": dial.default, "reach": dial.reach, "curve": curve}
    if dial.reach:
        some = [one for one in curve if one in curve[::2] or one["tail"] == dial.default]
        shown = ", ".join(f"{one['tail']:g}: {one['P_at_1']:.1f} / {one['PSP_at_5']:.1f}" for one in some)
        context.report(f"fusion: P@1 / PSP@5 at positions of the dial (tail): {shown}; default {dial.default:g}")
    else:
        context.report("fusion: no weight of rare labels raises PSP@5 on validation, so the dial (tail) has no effect")
    served = next(one for one in curve if one["tail"] == dial.default)
    return replace(fusion, dial=dial), {metric: served[metric] for metric in _SHOWN}


def _instead(
    settings: FusionSettings, compared: dict[str, dict[str, float]], documents: dict[str, PerDocument]
) -> str | None:
    """Return the part that is served instead of the rule, or None.

    It is a better one; or, if all documents are of one family so that the rule cannot be cross-fitted, the sum.
    """
    if not settings.fallback or not settings.rule.learns:
        return None
    if FUSION not in compared:
        return SUM if SUM in compared else next(iter(compared), None)
    return better_part(FUSION, compared, documents)


@dataclass(frozen=True)
class HeldOut:
    """Documents that a fold has not seen, with the labels that the fold knows enough about."""

    fold: str
    rows: I64
    truth: LabelMatrix
    revealing_L: Bool
    """Labels whose pairs are left out, because scores of the fold reveal that they have held-out positives."""


def _held_out(corpus: Corpus, fold: Fold, rows: I64) -> HeldOut:
    """Return the documents ``rows`` without revealing labels; a document that has no other labels is left out.

    If more than half of all pairs would be left out, all are kept.
    """
    revealing_L, every = fold.revealing_labels(corpus), corpus.labels.rows(rows)
    if 2 * len(every.only(revealing_L).indices) > len(every.indices):
        revealing_L = np.zeros_like(revealing_L)
    truth = every.only(~revealing_L)
    kept = np.flatnonzero((truth.counts_N > 0) | (every.counts_N == 0))
    return HeldOut(fold.name, rows[kept], truth.rows(kept), revealing_L)


def _gathered(
    settings: FusionSettings, corpus: Corpus, embeddings: Embeddings, scores: dict[str, FittedScore], held: HeldOut
) -> Candidates:
    """Return the candidates of documents, found and scored by ``scores`` that have not seen the documents."""
    rows, truth = held.rows, held.truth
    doc_ND = np.ascontiguousarray(embeddings.documents_ND[rows])
    texts = cache(partial(corpus.texts_of, "documents", rows))
    query = Query(doc_ND, texts)
    proposed_NK = candidates(scores, query, settings.candidates)
    found_NK = np.where(held.revealing_L[proposed_NK], PAD_ID, proposed_NK).astype(np.int32)
    filters = corpus.filters.rows(rows)
    ids_NK = _with_positives(found_NK, truth.first(_BESIDE), filters)
    doc_R, ids_RK = _beyond(ids_NK, truth, filters)
    surplus = None
    if len(doc_R):
        again = Query(doc_ND[doc_R], lambda: [texts()[doc] for doc in doc_R.tolist()])
        surplus = Surplus(doc_R, ids_RK, values(scores, again, ids_RK))
    own_rows, width = np.arange(len(truth))[:, None], np.int64(truth.num_labels + 1)
    return Candidates(
        ids_NK,
        values(scores, query, ids_NK),
        truth.contains(own_rows, ids_NK),
        np.isin(own_rows * width + ids_NK, own_rows * width + found_NK) & (ids_NK != PAD_ID),
        truth,
        surplus,
    )


def _with_positives(found_NK: I32, truth: LabelMatrix, filters: LabelMatrix) -> I32:
    """Return the found candidates and all positives of each document, without filtered pairs.

    As negatives, filtered pairs would teach that a label with the document's own text is wrong.
    """
    positives = np.full((len(truth), int(truth.counts_N.max(initial=1))), PAD_ID, np.int32)
    docs, labels = truth.pairs()
    positives[docs, truth.places()] = labels
    both_NK = np.concatenate([found_NK, positives], axis=1)
    filtered_NK = filters.contains(np.arange(len(truth))[:, None], both_NK)
    return distinct(np.where(filtered_NK, PAD_ID, both_NK).astype(np.int32))


def _beyond(ids_NK: I32, truth: LabelMatrix, filters: LabelMatrix) -> tuple[I64, I32]:
    """Return the positives that are not among ``ids_NK``, in rows of K, with the document of each row (R, R x K)."""
    docs, labels = truth.where(truth.places() >= _BESIDE).pairs()
    real, width = ids_NK != PAD_ID, ids_NK.shape[1]
    held = LabelMatrix.from_pairs(np.nonzero(real)[0], ids_NK[real], truth.shape)
    left = ~(held.contains(docs, labels) | filters.contains(docs, labels))
    rest = LabelMatrix.from_pairs(docs[left], labels[left], truth.shape)
    rows_N = -(-rest.counts_N // width)
    (docs, labels), place = rest.pairs(), rest.places()
    ids_RK = np.full((int(rows_N.sum()), width), PAD_ID, np.int32)
    ids_RK[(np.cumsum(rows_N) - rows_N)[docs] + place // width, place % width] = labels
    return np.repeat(np.arange(len(truth)), rows_N), ids_RK


def _wide(values_NK: Array, width: int, hole: int) -> Array:
    """Return N x K (x F) values with ``width`` columns, the last ones filled with ``hole``."""
    more = [(0, 0), (0, width - values_NK.shape[1]), *[(0, 0)] * (values_NK.ndim - 2)]
    return np.pad(values_NK, more, constant_values=hole)


def _without_validation(context: Context[FusionSettings], inputs: Inputs) -> None:
    """Write the sum of the scores, because a rule is only fitted on validation documents that no score has seen.

    Raises MovedError if there are validation documents and the scores were trained on all of them.
    """
    if not len(context.read(Corpus).rows(VALIDATION)):
        context.report("fusion: there are no validation documents, so no rule is fitted and the scores are summed")
    elif context.settings.rule.learns:
        raise MovedError(
            f"the fusion {context.settings.rule.kind!r}, and scores that were trained on all validation documents",
            expected="scores that have not seen the documents that the fusion is fitted on",
            do="train the encoder with encoder.refit=false, or set fusion.rule=sum",
        )
    else:
        context.report("fusion: the scores were trained on all validation documents, so nothing is measured on them")
    plain = summed(context.settings.rule, inputs)
    replace(plain, candidates=context.settings.candidates, offsets=inputs.offsets).write(context.build.path)
    context.build.facts |= {"documents": 0, "pairs": 0, "rule": "sum", "validation": {}}


def _ranked(
    settings: FusionSettings,
    inputs: Inputs,
    gathered: Candidates,
    weights_L: F64,
    fitted: FittedFusion,
    families_N: I64,
) -> dict[str, Shortlist]:
    """Rank by each score, by their sum, and by the fusion fitted on the other half of the families."""
    ranked = {name: gathered.rank(part) for name, part in fitted.parts().items()}
    if settings.rule.learns and families_N.max() > 0:
        halves = np.flatnonzero(families_N % 2 == 0), np.flatnonzero(families_N % 2 == 1)
        fits = [gathered.fit(settings, inputs, weights_L, half) for half in reversed(halves)]
        crossed = [gathered.rank(own, half) for own, half in zip(fits, halves, strict=True)]
        back = np.argsort(np.concatenate(halves))
        ranked[FUSION] = Shortlist.stack(crossed).rows(back)
    return ranked


def _per_document(ranked: dict[str, Shortlist], truth: LabelMatrix, weights_L: F64) -> dict[str, PerDocument]:
    """Return the figures that are shown of each ranking, per document."""
    found = {name: per_document(short, truth, weights_L) for name, short in ranked.items()}
    return {
        name: PerDocument({m: own.num[m] for m in _SHOWN}, {m: own.den[m] for m in _SHOWN})
        for name, own in found.items()
    }
