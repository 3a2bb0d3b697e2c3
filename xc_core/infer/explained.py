"""Answers several questions in one pass through the model, and says which scores spoke for each label.

Questions that share a pass may differ in k, dial and filters. They share the encoder and the scores, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from xc_core.fusion import FittedFusion
from xc_core.infer.predictor import Prediction, Predictor
from xc_core.infer.ranker import Ranker, candidates, distinct, values
from xc_core.scores import Query
from xc_core.shapes import F32, I32, I64, PAD_ID, Bool, Shortlist, among

NOTHING: Final[frozenset[int]] = frozenset()
MOST_RANKED: Final = 16_384
"""Labels of a model up to which all that are not excluded are ranked, if too few candidates are left."""


@dataclass(frozen=True)
class Question:
    """Texts, and how to answer them. Labels are given by id."""

    texts: tuple[str, ...]
    k: int = 5
    """Number of labels per text."""
    tail: float | None = None
    """Position of the dial between P@k (0) and PSP@k (1), by default the model's own."""
    min_probability: float = 0.0
    """Labels that are less likely to be right are left out."""
    exclude: frozenset[int] = NOTHING
    """Labels to leave out."""
    only: frozenset[int] | None = None
    """The labels to rank, whether a score proposes them or not; all that scores propose if None."""


@dataclass(frozen=True)
class Reason:
    """What one score says of a label."""

    score: str
    value: float
    rank: int
    """Place of the label among all candidates of the text by this score, 1 for the best; equal values share it."""
    adds: float | None
    """Points that it adds to the fused score; None if the fusion does not add this score itself."""


@dataclass(frozen=True)
class Explained(Prediction):
    """A predicted label, with the parts of its fused score.

    ``score`` is the sum of what the reasons add, of ``trees``, of ``by_sum`` and of ``dial``, up to rounding.
    """

    reasons: tuple[Reason, ...]
    trees: float | None
    """Points that the trees of the fusion add, which read several scores at once; None for a fusion without trees."""
    dial: float
    """Points that the dial adds for a rare label; 0 at position 0."""
    by_sum: float = 0.0
    """Points that raise a label without train documents to what others have at its plain sum."""


@dataclass(frozen=True)
class _Scored:
    """Candidates of N texts: values of all scores (N x K x F), score of the rule, fused score without dial (N x K)."""

    ids_NK: I32
    values_NKF: F32
    rule_NK: F32
    fused_NK: F32

    def rows(self, rows: slice) -> _Scored:
        return _Scored(self.ids_NK[rows], self.values_NKF[rows], self.rule_NK[rows], self.fused_NK[rows])


def explained(predictor: Predictor, questions: list[Question]) -> list[list[list[Explained]]]:
    """Return, for each question and each of its texts, the k best labels with their reasons, best first.

    A text is answered as ``Predictor.predict`` answers it alone; the values of its scores differ by rounding only.
    Only the beginning of a very long text is read (``MAX_CHARS``). Raises UsageError for a ``tail`` outside 0 to 1, or
    above 0 if the model has no dial; for a ``min_probability`` likewise.
    """
    texts = [text for question in questions for text in question.texts]
    if not texts:
        return [[] for _ in questions]
    query = Query(predictor.embed(texts), texts)
    scored = _scored(predictor, query, questions)
    answers, start = [], 0
    for question in questions:
        scored_texts = scored.rows(slice(start, start + len(question.texts)))
        labels = _answer(predictor, scored_texts, question)
        for place, k in _short_of_labels(scored_texts.ids_NK, question, predictor.ranker.num_labels).items():
            one = replace(question, texts=(question.texts[place],), k=k)
            row = slice(start + place, start + place + 1)
            labels[place] = _wider_answer(predictor, Query(query.doc_ND[row], list(one.texts)), one)
        answers.append(labels)
        start += len(question.texts)
    return answers


def _short_of_labels(ids_NK: I32, question: Question, num_labels: int) -> dict[int, int]:
    """Return the texts of which ``exclude`` leaves fewer candidates than an answer without it has labels.

    They are places, each with the number of labels that the answer should have.
    """
    if not question.exclude or question.only is not None:
        return {}
    filled_NK = ids_NK != PAD_ID
    wanted_N = np.minimum(filled_NK.sum(1), min(question.k, num_labels - len(question.exclude)))
    short_N = np.flatnonzero((_allowed(ids_NK, question) & filled_NK).sum(1) < wanted_N)
    return dict(zip(short_N.tolist(), wanted_N[short_N].tolist(), strict=True))


def _wider_answer(predictor: Predictor, query: Query, question: Question) -> list[Explained]:
    """Return the labels of one text from all that are not excluded; of a large model from those of a wider search.

    If that finds too few, as with label trees, which propose no more labels if asked for more, frequent labels are
    ranked too. So the time is bounded by ``MOST_RANKED`` and by the number of excluded labels.
    """
    ranker = predictor.ranker
    if ranker.num_labels <= MOST_RANKED:
        labels = frozenset(range(ranker.num_labels)) - question.exclude
    else:
        found_K = candidates(ranker.scores, query, ranker.fusion.candidates + len(question.exclude))
        labels = frozenset(found_K[found_K != PAD_ID].tolist()) - question.exclude
        if len(labels) < question.k:
            labels |= _frequent(ranker, question.exclude)
    limited = replace(question, only=labels)
    return _answer(predictor, _scored(predictor, query, [limited]), limited)[0]


def _frequent(ranker: Ranker, exclude: frozenset[int]) -> frozenset[int]:
    """Return the ``MOST_RANKED`` most frequent labels that are not excluded; without a dial the first ones."""
    dial, count = ranker.fusion.dial, min(MOST_RANKED, ranker.num_labels - len(exclude))
    rarity_L = np.arange(ranker.num_labels, dtype=np.float64) if dial is None else dial.log_weight_L.astype(np.float64)
    rarity_L[list(exclude)] = np.inf
    return frozenset(np.argpartition(rarity_L, count - 1)[:count].tolist())


def _scored(predictor: Predictor, query: Query, questions: list[Question]) -> _Scored:
    """Score the candidates of each text, and the labels that its question is limited to.

    Rules that compare candidates with each other see those that the scores propose. So a label among them has the same
    score whatever the question is limited to; each other label is compared with all.
    """
    fusion = predictor.ranker.fusion
    proposed_NK = candidates(predictor.ranker.scores, query, fusion.candidates)
    limited = any(question.only for question in questions)
    ids_NK = distinct(np.concatenate([proposed_NK, _only_labels(questions, len(query))], 1)) if limited else proposed_NK
    values_NKF, found_NK = values(predictor.ranker.scores, query, ids_NK), ids_NK != PAD_ID
    rule_NK = fusion.by_rule(values_NKF, found_NK)
    if limited:
        is_proposed_NK = among(ids_NK, proposed_NK)
        rule_NK = np.where(is_proposed_NK, fusion.by_rule(values_NKF, is_proposed_NK), rule_NK)
    return _Scored(ids_NK, values_NKF, rule_NK, fusion.raised(values_NKF, rule_NK))


def _only_labels(questions: list[Question], size: int) -> I32:
    """Return the labels that the question of each of ``size`` texts is limited to (N x K)."""
    only_NK = np.full((size, max(len(question.only or ()) for question in questions)), PAD_ID, np.int32)
    row = 0
    for question in questions:
        only = sorted(question.only or ())
        only_NK[row : row + len(question.texts), : len(only)] = only
        row += len(question.texts)
    return only_NK


def _answer(predictor: Predictor, scored: _Scored, question: Question) -> list[list[Explained]]:
    fusion = predictor.ranker.fusion
    turned_NK = fusion.turned(scored.ids_NK, scored.fused_NK, question.tail)
    allowed_ids_NK = np.where(_allowed(scored.ids_NK, question), scored.ids_NK, np.int32(PAD_ID))
    ranked = fusion.likely(Shortlist.ranked(allowed_ids_NK, turned_NK), question.min_probability, question.tail)
    probability_NK = fusion.probabilities(Shortlist(scored.ids_NK, turned_NK), question.tail)
    return [
        _explained_labels(predictor, scored, turned_NK, probability_NK, row, ids[ids != PAD_ID].astype(np.int64))
        for row, ids in enumerate(ranked.top(question.k).ids_NK)
    ]


def _allowed(ids_NK: I32, question: Question) -> Bool:
    """Return True for each candidate that the question does not filter out (N x K)."""
    allowed_NK = ~np.isin(ids_NK, list(question.exclude))
    return allowed_NK if question.only is None else allowed_NK & np.isin(ids_NK, list(question.only))


def _explained_labels(
    predictor: Predictor, scored: _Scored, turned_NK: F32, probability_NK: F32 | None, row: int, labels_K: I64
) -> list[Explained]:
    """Return the labels of one text, which are in the order of ``labels_K``, with their reasons."""
    fusion, ids, values_KF = predictor.ranker.fusion, scored.ids_NK[row], scored.values_NKF[row]
    places = {label: place for place, label in enumerate(ids.tolist())}
    places_K = np.array([places[label] for label in labels_K.tolist()], np.int64)
    added = _added(fusion, values_KF[places_K])
    ranks_KF = _ranks(values_KF[ids != PAD_ID], values_KF[places_K])
    fused_K, scores_K = scored.fused_NK[row, places_K].tolist(), turned_NK[row, places_K].tolist()
    by_sum_K = (scored.fused_NK[row, places_K] - scored.rule_NK[row, places_K]).tolist()
    chances_K = [None] * len(labels_K) if probability_NK is None else probability_NK[row, places_K].tolist()
    labels = []
    points = (fused_K, by_sum_K, scores_K, chances_K)
    columns = (labels_K.tolist(), values_KF[places_K].tolist(), ranks_KF.tolist(), added, *points)
    for label, label_values, ranks, adds, fused, by_sum, score, probability in zip(*columns, strict=True):
        reasons = tuple(
            Reason(name, value, rank, adds.get(name))
            for name, value, rank in zip(fusion.names, label_values, ranks, strict=True)
        )
        trees = None if fusion.tree is None else fused - by_sum - sum(reason.adds or 0.0 for reason in reasons)
        uid, title = predictor.uids[label], predictor.titles[label]
        labels.append(Explained(label, uid, title, score, probability, reasons, trees, score - fused, by_sum))
    return labels


def _added(fusion: FittedFusion, values_KF: F32) -> list[dict[str, float]]:
    """Return, for each label, what each score that the fusion adds itself adds to the fused score."""
    added_K = {
        name: (weight * fusion.read_by_sum(name, values_KF).astype(np.float64)).tolist()
        for name, weight in fusion.weight_of().items()
    }
    return [{name: values[place] for name, values in added_K.items()} for place in range(len(values_KF))]


def _ranks(candidate_KF: F32, values_KF: F32) -> I64:
    """Return the rank of each value among those that its score gives to all candidates: 1 + how many are higher."""
    columns = [
        np.searchsorted(np.sort(candidate_K), values_K, side="right")
        for candidate_K, values_K in zip(candidate_KF.T, values_KF.T, strict=True)
    ]
    return 1 + len(candidate_KF) - np.stack(columns, axis=1)
