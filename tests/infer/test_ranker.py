"""From vectors to shortlists: candidates are the union of the labels that scores propose, ranked by the fusion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tests.arrays import stacked
from tests.arrays import unit as unit_vectors
from tests.naive import search as naive
from xc_core.ann import Exact
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError, XCError
from xc_core.fusion import FittedFusion, Inputs, RegressionTree, Sum, Tree, summed
from xc_core.infer import ranker as module
from xc_core.infer.ranker import Ranker, candidates, distinct
from xc_core.scores import FittedScore, Neighbours, Query, ScoreData
from xc_core.scores.frequency import PerLabel
from xc_core.scores.vectors import VectorScore
from xc_core.shapes import F32, I32, PAD_ID

LABELS, WIDTH, DOCUMENTS = 23, 6, 11


def unit(size: int, seed: int) -> F32:
    return unit_vectors(np.random.default_rng(seed).normal(size=(size, WIDTH)))


ROWS, TEXTS, DOCS = unit(LABELS, 1), unit(LABELS, 2), unit(DOCUMENTS, 3)
SCORES: dict[str, FittedScore] = {
    "label_text": VectorScore.build(TEXTS, Exact()),
    "classifier": VectorScore.build(ROWS, Exact()),
    "frequency": PerLabel(np.arange(LABELS, dtype=np.int64), "frequency", searches=False),
}
ROWS_ALONE = {**SCORES, "label_text": VectorScore.build(TEXTS, None)}
SUMMED = ("label_text", "classifier")
STUMP = RegressionTree.fit(np.array([[0.0], [20.0]], np.float32), np.array([0.0, 5.0]), depth=1, min_leaf=1)
"""Labels seen more than 10 times get 5 points."""


def make(
    add: tuple[str, ...] = SUMMED,
    asked: int = 4,
    tree: RegressionTree | None = None,
    scores: Mapping[str, FittedScore] = SCORES,
) -> Ranker:
    features = () if tree is None else ("frequency",)
    rule = Sum(add=add) if tree is None else Tree(add=add, features=features)
    return Ranker(scores, FittedFusion(rule, tuple(scores), add, (), features, tree, asked))


def no_texts() -> list[str]:
    raise AssertionError("no score here reads texts")


@dataclass(frozen=True)
class Case:
    """A ranker, and the score of each (document, label) pair computed without it."""

    ranker: Ranker
    score_NL: np.ndarray
    searched: tuple[F32, ...] = (ROWS, TEXTS)
    """The vectors in which candidates are searched."""


PAIRS = {"label_text": DOCS.astype(float) @ TEXTS.T, "classifier": DOCS.astype(float) @ ROWS.T}
CASES = {
    "sum": Case(make(), PAIRS["label_text"] + PAIRS["classifier"]),
    "one score": Case(make(("classifier",)), PAIRS["classifier"]),
    "tree": Case(
        make(("label_text",), tree=STUMP),
        PAIRS["label_text"] + 5.0 * (np.arange(LABELS) > 10),
    ),
    "rows alone": Case(make(scores=ROWS_ALONE), sum(PAIRS.values()), (ROWS,)),
    "all labels": Case(make(asked=1000), sum(PAIRS.values())),
}


def expected_candidates(case: Case) -> list[set[int]]:
    k = min(case.ranker.fusion.candidates, LABELS)
    found = [naive.nearest(vectors, DOCS, k) for vectors in case.searched]
    return [set().union(*own) for own in zip(*found, strict=True)]


def test_labels_that_two_scores_propose_take_no_place_twice() -> None:
    """A place costs time and memory: each score is asked for the value of each."""
    twice = {"one": SCORES["classifier"], "other": SCORES["classifier"]}
    assert candidates(twice, Query(DOCS), 4).shape == (DOCUMENTS, 4)


@pytest.mark.parametrize("name", CASES)
def test_a_shortlist_is_the_candidates_by_falling_score(name: str) -> None:
    case = CASES[name]
    short = case.ranker.shortlist(Query(DOCS))
    for at, (ids, scores) in enumerate(zip(short.ids_NK, short.scores_NK, strict=True)):
        best = sorted(expected_candidates(case)[at], key=lambda label: -case.score_NL[at, label])
        assert ids[: len(best)].tolist() == best
        assert scores[: len(best)] == pytest.approx(case.score_NL[at, best], abs=1e-5)
        assert (ids[len(best) :] == PAD_ID).all()
        assert (scores[len(best) :] == -np.inf).all()


@pytest.mark.parametrize("k", [1, 3, 8, 30])
def test_k_cuts_or_pads_the_whole_shortlist(k: int) -> None:
    ranker = CASES["sum"].ranker
    whole, cut = ranker.shortlist(Query(DOCS)), ranker.shortlist(Query(DOCS), k)
    assert cut.ids_NK.shape == (DOCUMENTS, k)
    np.testing.assert_array_equal(cut.ids_NK, whole.top(k).ids_NK)
    np.testing.assert_array_equal(cut.scores_NK, whole.top(k).scores_NK)


def test_blocks_whose_neighbours_name_more_or_fewer_labels_are_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = LabelMatrix.from_pairs(np.array([0, 1, 1, 1, 2]), np.array([4, 5, 6, 7, 8]), (3, LABELS))
    votes = Neighbours(nearest=1).fit(ScoreData(truth, vectors=lambda: DOCS[:3]))
    ranker = make(("neighbours",), asked=1, scores={**SCORES, "neighbours": votes})
    whole = ranker.shortlist(Query(DOCS[:3]))
    monkeypatch.setattr(module, "DOCS_AT_ONCE", 1)
    (found,) = stacked(ranker.blocks(DOCS, np.arange(3), no_texts, {"fusion": ranker.fusion}, "scoring")).values()
    np.testing.assert_array_equal(found.ids_NK, whole.ids_NK)
    np.testing.assert_array_equal(found.scores_NK, whole.scores_NK)


def test_every_rule_ranks_the_same_candidates_by_its_own_score() -> None:
    ranker = CASES["sum"].ranker
    found = stacked(ranker.blocks(DOCS, np.arange(DOCUMENTS), no_texts, ranker.fusion.parts(), "scoring"))
    for name, scores in (*PAIRS.items(), ("sum", sum(PAIRS.values()))):
        for at in range(DOCUMENTS):
            ids = found[name].ids_NK[at][found[name].filled_NK[at]]
            assert ids.tolist() == sorted(expected_candidates(CASES["sum"])[at], key=lambda i: -scores[at, i])


def test_no_rows_give_an_empty_shortlist_of_every_rule() -> None:
    ranker = CASES["sum"].ranker
    found = stacked(ranker.blocks(DOCS, np.zeros(0, np.int64), list, ranker.fusion.parts(), "scoring"))
    assert {name: len(short) for name, short in found.items()} == {"label_text": 0, "classifier": 0, "sum": 0}


def test_scores_that_propose_no_labels_are_refused() -> None:
    without = {name: own for name, own in ROWS_ALONE.items() if name != "classifier"}
    with pytest.raises(ConfigError, match=r"label_text, frequency"):
        candidates(without, Query(DOCS), 4)


def test_the_plain_sum_of_the_inputs_ranks_as_the_sum_of_the_named_scores() -> None:
    whole = Ranker(SCORES, summed(Sum(), Inputs(tuple(SCORES), SUMMED)))
    named = make(asked=100)
    np.testing.assert_array_equal(whole.shortlist(Query(DOCS)).ids_NK, named.shortlist(Query(DOCS)).ids_NK)
    assert whole.num_labels == LABELS


@settings(deadline=None, max_examples=100)
@given(arrays(np.int32, array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6), elements=st.integers(-1, 5)))
def test_distinct_keeps_each_id_once_in_rising_order_holes_last(ids_NK: np.ndarray) -> None:
    before = ids_NK.copy()
    found = distinct(ids_NK)
    assert (found.shape, found.dtype) == (ids_NK.shape, np.int32)
    for row, own in zip(found.tolist(), ids_NK.tolist(), strict=True):
        kept = sorted(set(own) - {PAD_ID})
        assert row == kept + [PAD_ID] * (len(own) - len(kept))
    np.testing.assert_array_equal(ids_NK, before)


JOINED = VectorScore.build(ROWS, Exact(), ROWS + TEXTS)
SILENT = VectorScore.build(TEXTS, None)


@pytest.mark.parametrize(
    ("name", "own", "vectors_LD"),
    [("classifier", JOINED, ROWS), ("label_text", SILENT, TEXTS)],
    ids=["joined", "silent"],
)
def test_a_score_alone_ranks_the_labels_nearest_to_its_own_vectors(
    name: str, own: VectorScore, vectors_LD: F32
) -> None:
    """Whatever other vectors the index of the model searches, and whether it searches at all."""
    ranker = make(scores={**SCORES, "classifier": JOINED, "label_text": SILENT})
    rules = {"fusion": ranker.fusion, name: FittedFusion(Sum(), tuple(SCORES), (name,))}
    rows = np.arange(DOCUMENTS)
    alone = stacked(ranker.blocks(DOCS, rows, no_texts, rules, "ranking", [name]))
    nearest = np.argsort(-(DOCS @ vectors_LD.T), axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(alone[name].ids_NK, nearest)
    among_all = stacked(ranker.blocks(DOCS, rows, no_texts, rules, "ranking"))
    np.testing.assert_array_equal(alone["fusion"].ids_NK, among_all["fusion"].ids_NK)
    assert (among_all[name].ids_NK != nearest).any()


def test_a_score_that_proposes_nothing_cannot_be_ranked_alone() -> None:
    ranker = make()
    assert ranker.searching(Query(DOCS[:1])) == {"label_text", "classifier"}
    with pytest.raises(ConfigError, match="one of classifier, label_text"):
        stacked(ranker.blocks(DOCS, np.arange(3), no_texts, {"frequency": ranker.fusion}, "ranking", ["frequency"]))


class Repeating(PerLabel):
    """A score of a plug-in that proposes the most frequent label three times."""

    def candidates(self, query: Query, k: int) -> I32:
        return np.tile(np.array([LABELS - 1, 3, LABELS - 1, LABELS - 1], np.int32), (len(query), 1))


@pytest.mark.parametrize("others", [(), ("classifier",)], ids=["one", "two"])
def test_a_label_that_a_score_proposes_twice_is_ranked_once(others: tuple[str, ...]) -> None:
    """The only score that searches, and each score in the ablation, answered with it each time."""
    repeating = Repeating(np.arange(LABELS, dtype=np.int64), "repeating", searches=True)
    scores = {"repeating": repeating, **{name: SCORES[name] for name in others}}
    ranker = make(add=tuple(scores), scores=scores)
    rules = {"fusion": ranker.fusion, "repeating": ranker.fusion}
    found = stacked(ranker.blocks(DOCS, np.arange(DOCUMENTS), no_texts, rules, "ranking", ["repeating"]))
    assert found["repeating"].ids_NK.tolist() == [[LABELS - 1, 3, PAD_ID, PAD_ID]] * DOCUMENTS
    assert [list(rows).count(LABELS - 1) for rows in found["fusion"].ids_NK] == [1] * DOCUMENTS


class Wrong(PerLabel):
    """A score that names no label, or has no number, when it is asked alone."""

    def candidates(self, query: Query, k: int) -> I32:
        return np.zeros((len(query), 1), np.int32)

    def alone(self, query: Query, k: int) -> I32:
        return np.full((len(query), 1), int(self.value_L[0]), np.int32)

    def values(self, query: Query, ids_NK: I32) -> F32:
        return np.where(ids_NK == 5, np.nan, 0.0).astype(np.float32)


@pytest.mark.parametrize(("label", "found"), [(LABELS, "fix the method alone"), (5, "not finite")])
def test_what_a_score_proposes_alone_is_checked_too(label: int, found: str) -> None:
    """A wrong label, or NaN, was a wrong figure of the ablation."""
    scores = {"wrong": Wrong(np.full(LABELS, label, np.int64), "wrong", searches=True)}
    ranker = make(add=("wrong",), scores=scores)
    with pytest.raises(XCError, match=found):
        stacked(ranker.blocks(DOCS, np.arange(3), no_texts, {"wrong": ranker.fusion}, "ranking", ["wrong"]))
