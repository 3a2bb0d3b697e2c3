"""Candidates come from every score of the model, each asked once, with the right k; blocks change nothing.

The scores are fakes that note what they are asked and propose labels of their own, so that a score that is left out,
asked twice or asked for another number is found. Votes and words also use the real classes, over fakes of their parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from tests.arrays import stacked
from xc_core.data.labels import LabelMatrix
from xc_core.fusion import FittedFusion, Inputs, Sum, summed
from xc_core.infer import ranker as module
from xc_core.infer.ranker import Ranker, candidates, values
from xc_core.scores import FittedScore, Neighbours, Query
from xc_core.scores.lexical import LabelTrees, Lexical
from xc_core.scores.neighbours import Voters
from xc_core.scores.noise import LogNoise
from xc_core.scores.vectors import VectorScore
from xc_core.shapes import F32, F64, I32, I64, PAD_ID, Shortlist

LABELS, WIDTH, K = 100, 4, 3
DOCS = np.random.default_rng(0).standard_normal((7, WIDTH)).astype(np.float32)
STARTS = {"classifier": 0, "label_text": 20, "neighbours": 40, "noise": 60, "lexical": 80}
"""Each score proposes labels from its own twenty, document 0 the first of them."""
SIZES = {"classifier": K, "label_text": K, "neighbours": 2, "noise": K, "lexical": 4}
"""Labels that each proposes if it is asked for K: votes and words propose all they have."""


def own_labels(name: str, size: int, k: int) -> I32:
    """Return k labels of a score for each document, others for the next document."""
    return (STARTS[name] + np.arange(size)[:, None] + np.arange(k)).astype(np.int32)


@dataclass
class FakeIndex:
    """An index that finds labels of its own."""

    name: str
    asked: list[tuple[str, int]]
    size: int = LABELS
    width: int = WIDTH

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        self.asked.append((self.name, k))
        ids = own_labels(self.name, len(queries_BD), k)
        return Shortlist(ids, np.zeros(ids.shape, np.float32))


@dataclass
class NearestFirst:
    """An index of documents that finds document i for query i; each document has two labels."""

    asked: list[tuple[str, int]]
    size: int = LABELS
    width: int = WIDTH

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        self.asked.append(("neighbours", k))
        ids = np.arange(len(queries_BD), dtype=np.int32)[:, None]
        return Shortlist(ids, np.ones(ids.shape, np.float32))


class ConstantIndex:
    """An index that finds label 0 for every document."""

    size, width = LABELS, WIDTH

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        shape = (len(queries_BD), k)
        return Shortlist(np.zeros(shape, np.int32), np.zeros(shape, np.float32))


@dataclass
class FakeNoise:
    """A distribution whose likeliest labels are its own."""

    asked: list[tuple[str, int]]
    num_labels: int = LABELS

    def likely(self, doc_BD: F32, k: int) -> I32:
        self.asked.append(("noise", k))
        return own_labels("noise", len(doc_BD), k)

    def log_prob(self, doc_BD: F32, labels_BK: I64) -> F64:
        return np.zeros(labels_BK.shape)


@dataclass
class FakeTerms:
    """Terms that are the numbers in the texts."""

    read: list[str] = field(default_factory=list)

    def of_query(self, query: Query) -> list[str]:
        return query.cache.once("terms", lambda: self.vectors(query.texts))

    def vectors(self, texts: list[str]) -> list[str]:
        self.read += texts
        return texts


@dataclass(frozen=True, eq=False)
class FakeTrees(LabelTrees):
    """A lexical score of four labels, by the number in the text."""

    asked: list[tuple[str, int]] = field(default_factory=list)

    def shortlist(self, terms_NT: list[str]) -> Shortlist:
        self.asked.append(("lexical", 4))
        first = np.array([int(text) for text in terms_NT])[:, None]
        ids = (STARTS["lexical"] + first % 10 + np.arange(4)).astype(np.int32)
        return Shortlist(ids, np.full(ids.shape, 0.25, np.float32) + first % 7)


@dataclass
class World:
    """All five scores that propose candidates, or those that are named, one that does not, and what they were asked."""

    names: tuple[str, ...] = tuple(STARTS)
    asked: list[tuple[str, int]] = field(default_factory=list)
    terms: FakeTerms = field(default_factory=FakeTerms)

    def vector_score(self, name: str) -> VectorScore:
        return VectorScore(np.eye(LABELS, WIDTH, dtype=np.float32), cast(Any, FakeIndex(name, self.asked)))

    def score(self, name: str) -> Any:
        if name == "neighbours":
            pairs = np.repeat(np.arange(LABELS), 2), (own_labels(name, LABELS, 2) % LABELS).ravel()
            truth = LabelMatrix.from_pairs(*pairs, (LABELS, LABELS))
            return Voters(Neighbours(), cast(Any, NearestFirst(self.asked)), truth)
        if name == "noise":
            return LogNoise(cast(Any, FakeNoise(self.asked)))
        if name == "lexical":
            return FakeTrees(Lexical(), LABELS, cast(Any, self.terms), (), asked=self.asked)
        return self.vector_score(name)

    @property
    def scores(self) -> dict[str, FittedScore]:
        silent = VectorScore(np.eye(LABELS, WIDTH, dtype=np.float32), None)
        return {name: self.score(name) for name in self.names} | {"silent": silent}

    def query(self) -> Query:
        return Query(DOCS, [str(number) for number in range(len(DOCS))])


def fusion(names: tuple[str, ...], k: int) -> FittedFusion:
    """Return the plain sum of all scores, which asks each for ``k`` labels."""
    rule = summed(Sum(), Inputs(names, names))
    return FittedFusion(rule.rule, rule.names, rule.add, candidates=k)


def ranker(scores: dict[str, FittedScore], k: int) -> Ranker:
    return Ranker(scores, fusion(tuple(scores), k))


def expected(names: tuple[str, ...], doc: int) -> list[int]:
    return [STARTS[name] + doc + i for name in STARTS if name in names for i in range(SIZES[name])]


def rows_of(ids_NK: I32) -> list[list[int]]:
    return [[label for label in row if label != PAD_ID] for row in ids_NK.tolist()]


def times_asked(asked: list[tuple[str, int]]) -> list[str]:
    return sorted(name for name, _ in asked)


SETS = [tuple(STARTS), *((name,) for name in STARTS)]
SETS += [("classifier", name) for name in STARTS if name != "classifier"]
SETS += [tuple(other for other in STARTS if other != name) for name in STARTS]


@pytest.mark.parametrize("names", SETS, ids="+".join)
def test_candidates_are_the_labels_of_every_score_that_proposes_some(names: tuple[str, ...]) -> None:
    world = World(names)
    found = candidates(world.scores, world.query(), K)
    assert rows_of(found) == [expected(names, doc) for doc in range(len(DOCS))]
    assert times_asked(world.asked) == sorted(names), "each once"
    assert {(name, K) for name in names if SIZES[name] == K} <= set(world.asked), "for k labels"


@pytest.mark.parametrize("k", [1, 2, 5])
def test_searches_and_noise_are_asked_for_as_many_labels_as_the_fusion_has_candidates(k: int) -> None:
    world = World()
    ranker(world.scores, k).shortlist(world.query(), 2)
    assert dict(world.asked) == {
        "classifier": k, "label_text": k, "noise": k, "neighbours": Neighbours().nearest, "lexical": 4
    }  # fmt: skip


def test_votes_and_words_are_found_once_for_candidates_and_values() -> None:
    world = World()
    ranker(world.scores, K).shortlist(world.query(), 2)
    assert times_asked(world.asked) == sorted(STARTS)
    assert world.terms.read == world.query().texts


def test_values_are_in_the_order_of_the_scores_whoever_proposed_the_label() -> None:
    world = World()
    query, scores = world.query(), world.scores
    ids_NK = candidates(scores, query, K)
    found = values(scores, query, ids_NK)
    assert found.shape == (*ids_NK.shape, len(scores))
    for at, (name, own) in enumerate(scores.items()):
        np.testing.assert_array_equal(found[:, :, at], own.values(query, ids_NK), err_msg=name)


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, 4097, 5000])
def test_blocks_of_documents_give_what_one_block_gives(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document's vector, values and words are its own, on both sides of the edge of a block."""
    vectors_LD = np.eye(LABELS, WIDTH, dtype=np.float32)
    by_text = VectorScore(vectors_LD, cast(Any, ConstantIndex()))
    whole_ranker = ranker({"label_text": by_text, "lexical": World(("lexical",)).score("lexical")}, 1)
    vectors = np.random.default_rng(1).standard_normal((size + 3, WIDTH)).astype(np.float32)
    rows = np.random.default_rng(2).permutation(size + 3)[:size]
    texts = [str(number * 31 % 977) for number in range(size)]
    rules = {"fusion": whole_ranker.fusion}
    found = stacked(whole_ranker.blocks(vectors, rows, lambda: texts, rules, "scoring"))["fusion"]
    assert len(found) == size
    if size:
        monkeypatch.setattr(module, "DOCS_AT_ONCE", size)
        whole = whole_ranker.shortlist(Query(vectors[rows], texts))
        np.testing.assert_array_equal(found.ids_NK, whole.ids_NK)
        np.testing.assert_array_equal(found.scores_NK, whole.scores_NK)
        by_word = STARTS["lexical"] + np.array([int(text) % 10 for text in texts])
        assert (found.ids_NK == by_word[:, None]).any(1).all(), "each document has the labels of its own text"


def test_texts_are_read_once_for_all_blocks_and_only_if_a_score_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DOCS_AT_ONCE", 2)
    asked: list[int] = []

    def texts() -> list[str]:
        asked.append(1)
        return [str(number) for number in range(len(DOCS))]

    for names, times in ((("classifier",), 0), (("classifier", "lexical"), 1)):
        asked.clear()
        own = ranker(World(names).scores, K)
        stacked(own.blocks(DOCS, np.arange(len(DOCS)), texts, {"fusion": own.fusion}, "scoring"))
        assert len(asked) == times, names
