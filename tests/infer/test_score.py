"""From vectors to fused shortlists: candidates are the union of both searches, ranked by the rule, block by block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tests.naive import search as naive
from xc_core.ann import IndexConfig, build_index
from xc_core.data.labels import LabelMatrix
from xc_core.fusion import Fusion, FusionConfig, Neighbours, Query, RegressionTree, Sources, neighbours
from xc_core.fusion.rules import parts_of
from xc_core.infer import score
from xc_core.infer.score import Scorer, Searchers, distinct
from xc_core.shapes import F32, PAD_ID

LABELS, WIDTH, DOCUMENTS = 23, 6, 11


def unit(size: int, seed: int) -> F32:
    vectors = np.random.default_rng(seed).normal(size=(size, WIDTH))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


ROWS, TEXTS, DOCS = unit(LABELS, 1), unit(LABELS, 2), unit(DOCUMENTS, 3)
SOURCES = Sources(TEXTS, ROWS, np.arange(LABELS, dtype=np.int64))
STUMP = RegressionTree.fit(np.array([[0.0], [20.0]], np.float32), np.array([0.0, 5.0]), depth=1)
"""Labels seen more than 10 times get 5 points."""


def searchers(by_text: bool = True) -> Searchers:
    texts = build_index(TEXTS, IndexConfig(kind="exact")) if by_text else None
    return Searchers(build_index(ROWS, IndexConfig(kind="exact")), texts)


def make(config: FusionConfig, tree: RegressionTree | None = None, by_text: bool = True) -> Scorer:
    return Scorer(searchers(by_text), SOURCES, Fusion(config, tree))


@dataclass(frozen=True)
class Case:
    """A scorer, and the score of each (document, label) pair written down without it."""

    scorer: Scorer
    score_NL: np.ndarray


PAIRS = {"label_text": DOCS.astype(float) @ TEXTS.T, "classifier": DOCS.astype(float) @ ROWS.T}
CASES = {
    "sum": Case(make(FusionConfig(kind="sum", candidates=4)), PAIRS["label_text"] + PAIRS["classifier"]),
    "one score": Case(make(FusionConfig(kind="sum", add=("classifier",), candidates=4)), PAIRS["classifier"]),
    "tree": Case(
        make(FusionConfig(features=("frequency",), add=("label_text",), candidates=4), STUMP),
        PAIRS["label_text"] + 5.0 * (np.arange(LABELS) > 10),
    ),
    "rows alone": Case(make(FusionConfig(kind="sum", candidates=4), by_text=False), sum(PAIRS.values())),
    "all labels": Case(make(FusionConfig(kind="sum", candidates=1000)), sum(PAIRS.values())),
}


def expected_candidates(case: Case) -> list[set[int]]:
    k = min(case.scorer.fusion.config.candidates, LABELS)
    found = [set(row) for row in naive.nearest(ROWS, DOCS, k)]
    if case.scorer.searchers.by_text is not None:
        found = [a | set(b) for a, b in zip(found, naive.nearest(TEXTS, DOCS, k), strict=True)]
    return found


@pytest.mark.parametrize("name", CASES)
def test_candidates_are_the_union_of_both_searches_each_once(name: str) -> None:
    case = CASES[name]
    ids_NK = case.scorer.searchers.candidates(Query(DOCS, SOURCES), case.scorer.fusion.config.candidates)
    for ids, expected in zip(ids_NK, expected_candidates(case), strict=True):
        assert sorted(ids[ids != PAD_ID].tolist()) == sorted(expected)
        assert not (np.diff((ids == PAD_ID).astype(int)) < 0).any(), "holes come last"


@pytest.mark.parametrize("name", CASES)
def test_a_shortlist_is_the_candidates_by_falling_score(name: str) -> None:
    case = CASES[name]
    short = case.scorer.shortlist(DOCS)
    for at, (ids, scores) in enumerate(zip(short.ids_NK, short.scores_NK, strict=True)):
        best = sorted(expected_candidates(case)[at], key=lambda label: -case.score_NL[at, label])
        assert ids[: len(best)].tolist() == best
        assert scores[: len(best)] == pytest.approx(case.score_NL[at, best], abs=1e-5)
        assert (ids[len(best) :] == PAD_ID).all()
        assert (scores[len(best) :] == -np.inf).all()


@pytest.mark.parametrize("k", [1, 3, 8, 30])
def test_k_cuts_or_pads_the_whole_shortlist(k: int) -> None:
    scorer = CASES["sum"].scorer
    whole, cut = scorer.shortlist(DOCS), scorer.shortlist(DOCS, k)
    assert cut.ids_NK.shape == (DOCUMENTS, k)
    np.testing.assert_array_equal(cut.ids_NK, whole.top(k).ids_NK)
    np.testing.assert_array_equal(cut.scores_NK, whole.top(k).scores_NK)


@pytest.mark.parametrize("block", [1, 2, 4, 5, 100])
def test_the_size_of_a_block_does_not_matter(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, rows = CASES["tree"].scorer, np.array([3, 0, 10, 3, 7], np.int64)
    monkeypatch.setattr(score, "_DOCS_AT_ONCE", block)
    (found,) = scorer.shortlist_rows(DOCS, rows, {"fusion": scorer.fusion}, "scoring").values()
    np.testing.assert_array_equal(found.ids_NK, scorer.shortlist(DOCS[rows]).ids_NK)
    np.testing.assert_allclose(found.scores_NK, scorer.shortlist(DOCS[rows]).scores_NK, atol=1e-6)


def test_blocks_whose_neighbours_name_more_or_fewer_labels_are_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = LabelMatrix.from_pairs(np.array([0, 1, 1, 1, 2]), np.array([4, 5, 6, 7, 8]), (3, LABELS))
    monkeypatch.setattr(neighbours, "NEAREST", 1)
    sources = replace(SOURCES, neighbours=Neighbours.of(DOCS[:3], truth))
    scorer = Scorer(searchers(), sources, Fusion(FusionConfig(kind="sum", add=("neighbours",), candidates=1)))
    whole = scorer.shortlist(DOCS[:3])
    monkeypatch.setattr(score, "_DOCS_AT_ONCE", 1)
    (found,) = scorer.shortlist_rows(DOCS, np.arange(3), {"fusion": scorer.fusion}, "scoring").values()
    np.testing.assert_array_equal(found.ids_NK, whole.ids_NK)
    np.testing.assert_array_equal(found.scores_NK, whole.scores_NK)


def test_every_rule_ranks_the_same_candidates_by_its_own_score() -> None:
    scorer = CASES["sum"].scorer
    rules = parts_of(scorer.fusion.config)
    found = scorer.shortlist_rows(DOCS, np.arange(DOCUMENTS), rules, "scoring")
    for name, scores in (*PAIRS.items(), ("sum", sum(PAIRS.values()))):
        for at in range(DOCUMENTS):
            ids = found[name].ids_NK[at][found[name].filled_NK[at]]
            assert ids.tolist() == sorted(expected_candidates(CASES["sum"])[at], key=lambda i: -scores[at, i])


def test_no_rows_give_an_empty_shortlist_of_every_rule() -> None:
    scorer = CASES["sum"].scorer
    found = scorer.shortlist_rows(DOCS, np.zeros(0, np.int64), parts_of(scorer.fusion.config), "scoring")
    assert {name: len(short) for name, short in found.items()} == {"label_text": 0, "classifier": 0, "sum": 0}


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
