"""Candidates that a fusion is fitted on; one document with very many labels does not widen those of all others."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.arrays import unit
from tests.bounded import bounded
from tests.source import MODULES, nodes
from xc_core.data.labels import LabelMatrix
from xc_core.fusion import Boosted, FittedFusion, Inputs, Pairs, Tree
from xc_core.infer import gathered as module
from xc_core.infer.gathered import Candidates, HeldOut
from xc_core.infer.ranker import candidates
from xc_core.scores import Neighbours, Query, ScoreData
from xc_core.shapes import F32, I32, PAD_ID, Shortlist, among

MANY = 20_000
INPUTS = Inputs(("near", "odd"), ("near", "odd"))


class Numbers:
    """A score: a fixed number per document and label. It proposes ten labels of each document."""

    def __init__(self, labels: int, factor: int) -> None:
        self.num_labels, self.factor = labels, factor

    def candidates(self, query: Query, k: int) -> I32:
        return ((query.doc_ND[:, :1].astype(np.int64) * 13 + np.arange(10) * self.factor) % self.num_labels).astype(
            "i4"
        )

    def values(self, query: Query, ids_NK: I32) -> F32:
        mixed = (query.doc_ND[:, :1].astype(np.int64) * 7919 + ids_NK.astype(np.int64) * self.factor) % 1009
        return (mixed / 1009).astype(np.float32)


def gathered(
    docs: int, labels: int, many: int, names: Sequence[str] = ("near", "odd"), revealing: int = 0
) -> Candidates:
    """Gather candidates of documents with three positives each, but for one, which has ``many``.

    The first ``revealing`` labels are left out of what the scores propose.
    """
    counts = np.full(docs, 3)
    counts[docs // 2] = many
    ids = np.concatenate([(np.arange(count) * 11 + doc) % labels for doc, count in enumerate(counts)])
    truth = LabelMatrix.from_pairs(np.repeat(np.arange(docs), counts), ids, (docs, labels))
    filters = LabelMatrix.from_pairs(np.array([docs // 2]), truth.row(docs // 2)[-1:], truth.shape)
    corpus: Any = SimpleNamespace(filters=filters, texts_of=lambda side, rows: [""] * len(rows))
    embeddings: Any = SimpleNamespace(documents_ND=np.arange(docs, dtype=np.float32)[:, None])
    held = HeldOut("final", np.arange(docs), truth, np.arange(labels) < revealing)
    both: dict[str, Any] = {"near": Numbers(labels, 31), "odd": Numbers(labels, 57)}
    scores = {name: both[name] for name in names}
    return Candidates.of(held, corpus, held.query(corpus, embeddings), scores, 10)


def test_a_candidate_is_one_that_a_score_proposed_for_the_same_document() -> None:
    """Its other positives are fitted on too, and are no candidates in serving."""
    docs, labels = 40, 50
    own = gathered(docs, labels, 6)
    scores: Any = {"near": Numbers(labels, 31), "odd": Numbers(labels, 57)}
    query = Query(np.arange(docs, dtype=np.float32)[:, None], lambda: [""] * docs)
    proposed_NK = candidates(scores, query, 10)
    for doc in set(range(docs)) - {docs // 2}:  # that one has a filtered pair
        assert set(own.ids_NK[doc][own.found_NK[doc]].tolist()) == set(proposed_NK[doc].tolist()) - {PAD_ID}
    assert (own.positive_NK & ~own.found_NK).any()


@pytest.mark.parametrize("name", ["near", "odd"])
@pytest.mark.parametrize("many", [6, 300])
def test_the_candidates_of_one_score_are_those_of_a_recipe_without_the_other(name: str, many: int) -> None:
    """Also where most positives are beyond the first hundred, and where labels may not be proposed."""
    docs, labels = 40, 700
    whole, own = gathered(docs, labels, many, revealing=90), gathered(docs, labels, many, (name,), revealing=90)
    query = Query(np.arange(docs, dtype=np.float32)[:, None], lambda: [""] * docs)
    proposed_NK = Numbers(labels, 31 if name == "near" else 57).candidates(query, 10)
    mask = among(whole.ids_NK, proposed_NK) & whole.found_NK
    part = whole.only([0 if name == "near" else 1], mask)

    def content(found: Candidates) -> set[tuple[Any, ...]]:
        """Return document, value, target, and whether it was proposed, of each pair that the fusion is fitted on."""
        pairs = found.pairs(Tree(), np.ones(labels), slice(None))
        kept = pairs.filled_NK
        columns = (pairs.docs_M, pairs.values_NKF[kept][:, 0], pairs.target_NK[kept], pairs.found_NK[kept])
        return set(zip(*(column.tolist() for column in columns), strict=True))

    assert content(part) == content(own)
    assert content(part) != content(whole.only([0 if name == "near" else 1], whole.found_NK)), "the other one counts"
    assert (whole.surplus is not None) == (many == 300)
    fusion = FittedFusion(Tree(), (name,), (name,))
    assert part.rank(fusion).top(5).ids_NK.tolist() == own.rank(fusion).top(5).ids_NK.tolist()


def one_with_many() -> Callable[[], None]:
    """5,000 documents, one with 20 K positives among 30 K labels."""

    def fit() -> None:
        found = gathered(5_000, 30_000, MANY)
        assert found.ids_NK.shape[1] < 200
        whole = Candidates.concat([found], np.arange(5_000))
        assert whole.fit(Tree(depth=3, min_leaf=2), INPUTS, np.ones(30_000)).tree is not None

    return fit


def test_candidates_stay_narrow_in_a_bounded_address_space() -> None:
    """Ids alone would take 5,000 x 20,020 x 4 bytes = 400 MB, values twice as much."""
    bounded(one_with_many, megabytes=300)


def one_voter_with_many() -> Callable[[], None]:
    """3,000 documents and their neighbours among 3,000 train documents, one of which has 20 K of 30 K labels."""
    random = np.random.default_rng(0)
    train_ND, docs_ND = (unit(random.standard_normal((3_000, 8))) for _ in range(2))
    counts = np.full(3_000, 3)
    counts[7] = MANY
    ids = np.concatenate([(np.arange(count) * 11 + doc) % 30_000 for doc, count in enumerate(counts)])
    votes = Neighbours().fit(
        ScoreData(
            LabelMatrix.from_pairs(np.repeat(np.arange(3_000), counts), ids, (3_000, 30_000)), vectors=lambda: train_ND
        )
    )
    truth = LabelMatrix.from_pairs(np.repeat(np.arange(3_000), 3), random.integers(0, 30_000, 9_000), (3_000, 30_000))
    corpus: Any = SimpleNamespace(filters=LabelMatrix.none(3_000, 30_000), texts_of=lambda side, rows: [""] * len(rows))
    held = HeldOut("final", np.arange(3_000), truth, np.zeros(30_000, bool))
    scores = {"neighbours": votes, "again": votes}

    def fit() -> None:
        query = held.query(corpus, cast(Any, SimpleNamespace(documents_ND=docs_ND)))
        found = Candidates.of(held, corpus, query, scores, 100)
        near = (found.ids_NK >= 0).sum(1)
        assert near.max() > 900, "some documents are near the one with many labels"
        assert found.ids_NK.shape[1] < 1_200

    return fit


def test_a_voter_with_many_labels_in_a_bounded_address_space() -> None:
    """Ids and values of all 20,000 labels would take 3,000 x 20,100 x 12 bytes = 720 MB, sorted pairs 1.9 GB."""
    bounded(one_voter_with_many, megabytes=600)


@pytest.mark.parametrize("rule", [Tree(depth=4, min_leaf=2), Boosted(rounds=4, depth=3, min_leaf=2, tail=0.5)])
@pytest.mark.parametrize("rows", [slice(None), np.arange(10, 35), np.arange(0, 60, 7)])
def test_a_fit_is_that_of_candidates_as_wide_as_the_largest_document(
    rule: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same trees if the surplus stands in rows of its own, is merged from two folds, or does not exist."""
    fits, weights_L = [], np.random.default_rng(0).random(2_000) + 0.5
    for beside in (10_000, 5):
        monkeypatch.setattr(module, "_BESIDE", beside)
        found = gathered(60, 2_000, 900)
        assert (found.surplus is None) == (beside > 900)
        order = np.random.default_rng(1).permutation(60)
        merged, other = (
            Candidates.concat([part_of(found, docs[:20]), part_of(found, docs[20:])], docs)
            for docs in (order, order[::-1])  # the document with a surplus is in the first part, or in the second
        )
        for own in (found, merged, other):
            fitted = own.fit(rule, INPUTS, weights_L, rows).tree
            assert fitted is not None
            fits.append(fitted.predict(np.random.default_rng(2).random((500, 2), np.float32)))
        assert merged.rank(rule.fit(INPUTS, own.pairs(rule, weights_L, rows)), rows).k == found.ids_NK.shape[1]
    for fit in fits[1:]:
        np.testing.assert_allclose(fit, fits[0], rtol=1e-6, atol=1e-9)


def part_of(found: Candidates, docs: Any) -> Candidates:
    """Return the candidates of some documents, in their order."""
    surplus = None if found.surplus is None else found.surplus.among(docs, len(found.truth))
    cut = [array[docs] for array in (found.ids_NK, found.values_NKF, found.positive_NK, found.found_NK)]
    return Candidates(cut[0], cut[1], cut[2], cut[3], found.truth.rows(docs), surplus)


def test_every_positive_is_fitted_once_and_filtered_pairs_never() -> None:
    found = gathered(60, 2_000, 900)
    pairs = found.pairs(Tree(), np.ones(2_000), slice(None))
    positives = np.bincount(pairs.docs_M, pairs.target_NK[pairs.filled_NK], 60)
    assert positives.tolist() == [3.0] * 30 + [899.0] + [3.0] * 29
    assert pairs.doc_N is not None
    assert not pairs.found_NK[60:].any()


def test_parts_are_joined_in_the_order_of_their_documents() -> None:
    rows = np.array([5, 9, 2, 7, 8])
    parts = []
    for own, width in ((rows[:2], 2), (rows[2:], 3)):
        ids = np.repeat(own[:, None], width, axis=1).astype(np.int32)
        truth = LabelMatrix.from_pairs(np.arange(len(own)), own, (len(own), 10))
        parts.append(Candidates(ids, np.stack([ids, -ids], axis=2).astype(np.float32), ids > 5, ids > 0, truth))
    whole = Candidates.concat(parts, rows)
    assert whole.ids_NK.tolist() == [[2] * 3, [5, 5, -1], [7] * 3, [8] * 3, [9, 9, -1]]
    assert whole.values_NKF[1].tolist() == [[5, -5], [5, -5], [0, 0]]
    assert whole.positive_NK.tolist() == [[False] * 3, [False] * 3, [True] * 3, [True] * 3, [True, True, False]]
    assert whole.found_NK[4].tolist() == [True, True, False]
    assert whole.truth.indices.tolist() == [2, 5, 7, 8, 9]


def test_a_document_whose_labels_are_all_revealing_is_left_out_and_one_without_labels_is_not() -> None:
    labels = LabelMatrix.from_pairs(np.array([1, 2, 4, 4, 5]), np.array([0, 1, 0, 1, 2]), (6, 3))
    fold: Any = SimpleNamespace(name="half-0", revealing_labels=lambda corpus: np.arange(3) == 1)
    held = HeldOut.of(cast(Any, SimpleNamespace(labels=labels)), fold, np.arange(1, 6))
    assert (held.fold, held.rows.tolist()) == ("half-0", [1, 3, 4, 5])
    assert [held.truth.row(at).tolist() for at in range(4)] == [[0], [], [0], [2]]
    assert held.revealing_L.tolist() == [False, True, False]


@dataclass(frozen=True)
class Constant:
    """Trees that add a number."""

    value: float

    def predict(self, features_MF: F32) -> Any:
        return np.full(len(features_MF), self.value)

    def to_dict(self) -> dict[str, list[Any]]:
        return {}


@dataclass(frozen=True, kw_only=True)
class AnyLevel(Tree):
    """A rule whose scores have another level in each fit, as those of a rule that is fitted to an order may have."""

    def fit(self, inputs: Inputs, pairs: Pairs) -> FittedFusion:
        return replace(self.without_trees(inputs), tree=Constant(float(pairs.docs_M[0]) + len(pairs.values_NKF)))


def test_both_halves_have_the_level_of_the_rule_that_is_served() -> None:
    """Their scores are compared with each other, and with its scores, where probabilities are fitted."""
    found, weights_L = gathered(40, 50, 6), np.ones(50)
    second_N, rule = np.arange(40) < 13, AnyLevel()
    served = found.fit(rule, INPUTS, weights_L)
    own, apart = found.rank(served), found.cross_fit(rule, INPUTS, weights_L, second_N)
    level = found.cross_fit(rule, INPUTS, weights_L, second_N, served)
    np.testing.assert_array_equal(level.ids_NK, apart.ids_NK)
    filled_NK = level.ids_NK != PAD_ID
    shift_M = own.scores_NK[filled_NK] - apart.scores_NK[filled_NK]
    assert shift_M.std() > 1, "the two parts have other levels"
    np.testing.assert_allclose(level.scores_NK[filled_NK], own.scores_NK[filled_NK], rtol=1e-5)
    assert np.isneginf(level.scores_NK[~filled_NK]).all()


def test_the_level_of_a_part_is_the_mean_over_its_candidates() -> None:
    ids_NK, hole = np.array([[0, 1], [2, PAD_ID]], np.int32), -np.inf
    part, level = (
        Shortlist(ids_NK, np.array(scores, np.float32)) for scores in ([[9, 2], [1, hole]], [[30, 0], [0, hole]])
    )
    assert module._at_level(part, level).scores_NK.tolist() == [[15, 8], [7, hole]]


def test_a_part_without_candidates_has_no_level() -> None:
    found = gathered(6, 50, 6)
    empty = replace(found, found_NK=found.found_NK & (np.arange(6) < 3)[:, None])
    served = empty.fit(Tree(min_leaf=1), INPUTS, np.ones(50))
    ranked = empty.cross_fit(Tree(min_leaf=1), INPUTS, np.ones(50), np.arange(6) < 3, served)
    assert (ranked.ids_NK[3:] == PAD_ID).all() and not np.isnan(ranked.scores_NK).any()


def test_the_stage_fusion_and_the_ablation_gather_by_the_same_code() -> None:
    """Candidates of two copies of the loop could come apart, and a row of xc ablate would be of no recipe."""
    gathering = {
        name
        for name in MODULES
        for node in nodes(name)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Candidates.of", "scores.fitted") and node.args
    }
    assert gathering == {"xc_core/infer/gathered.py"}


def test_the_scores_of_one_fold_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = [
        HeldOut(
            fold, np.arange(2), LabelMatrix.from_pairs(np.zeros(0, int), np.zeros(0, int), (2, 3)), np.zeros(3, bool)
        )
        for fold in "abc"
    ]
    opened: list[weakref.ref[Numbers]] = []

    class Folds:
        def fitted(self, fold: str) -> dict[str, Numbers]:
            assert all(earlier() is None for earlier in opened), "the scores of the fold before are still open"
            score = Numbers(3, 1)
            opened.append(weakref.ref(score))
            return {"near": score}

    monkeypatch.setattr(Candidates, "of", lambda held_out, corpus, query, scores, k: held_out.fold)
    corpus, embeddings = SimpleNamespace(texts_of=list), SimpleNamespace(documents_ND=np.ones((2, 1), np.float32))
    found = module.gather_each(
        held_out, cast(Any, corpus), cast(Any, embeddings), cast(Any, Folds()), 5, lambda part, fitted, query: part
    )
    assert found == ["a", "b", "c"] and len(opened) == 3
