"""Candidates come from every source that there is, each asked once, with the right k; blocks change nothing.

The sources are fakes that write down what they are asked and name labels of their own, so that a source that is left
out, asked twice or asked for another number is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from xc_core.fusion import Fusion, FusionConfig, Query, Sources
from xc_core.fusion.neighbours import Votes
from xc_core.infer.score import Scorer, Searchers
from xc_core.shapes import F32, I32, PAD_ID, Shortlist

LABELS, WIDTH, K = 100, 4, 3
DOCS = np.random.default_rng(0).standard_normal((7, WIDTH)).astype(np.float32)
STARTS = {"by_row": 0, "by_text": 20, "neighbours": 40, "noise": 60, "lexical": 80}
"""Each source names labels from its own twenty, document 0 the first of them."""


def own_labels(source: str, size: int, k: int) -> I32:
    """Return k labels of ``source`` for each document, others for the next document."""
    return (STARTS[source] + np.arange(size)[:, None] + np.arange(k)).astype(np.int32)


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

    def likely(self, doc_BD: F32, k: int) -> I32:
        self.asked.append(("noise", k))
        return own_labels("noise", len(doc_BD), k)


@dataclass
class FakeNeighbours:
    """Train documents of which two labels have votes."""

    asked: list[tuple[str, int]]

    def vote(self, doc_BD: F32) -> Votes:
        self.asked.append(("neighbours", 2))
        keys = np.arange(len(doc_BD))[:, None] * np.int64(LABELS) + own_labels("neighbours", len(doc_BD), 2)
        return Votes(keys.ravel(), np.full(keys.size, 0.5, np.float32), len(doc_BD), LABELS)


@dataclass
class FakeLexical:
    """A lexical score of four labels, by the number in the text."""

    asked: list[tuple[str, int]]
    read: list[str] = field(default_factory=list)

    def vectors(self, texts: list[str]) -> list[str]:
        self.read += texts
        return texts

    def shortlist(self, vectors: list[str]) -> Shortlist:
        self.asked.append(("lexical", 4))
        first = np.array([int(text) for text in vectors])[:, None]
        ids = (STARTS["lexical"] + first % 10 + np.arange(4)).astype(np.int32)
        return Shortlist(ids, np.full(ids.shape, 0.25, np.float32) + first % 7)


@dataclass
class World:
    """All five sources, or those that are named, and what they were asked."""

    names: tuple[str, ...] = tuple(STARTS)
    asked: list[tuple[str, int]] = field(default_factory=list)

    def has(self, name: str, made: Any) -> Any:
        return made if name in self.names else None

    @property
    def searchers(self) -> Searchers:
        return Searchers(FakeIndex("by_row", self.asked), self.has("by_text", FakeIndex("by_text", self.asked)))

    @property
    def sources(self) -> Sources:
        return Sources(
            np.eye(LABELS, WIDTH, dtype=np.float32),
            np.eye(LABELS, WIDTH, dtype=np.float32),
            np.arange(LABELS, dtype=np.int64),
            self.has("neighbours", FakeNeighbours(self.asked)),
            self.has("noise", FakeNoise(self.asked)),
            self.has("lexical", FakeLexical(self.asked)),
        )

    def query(self) -> Query:
        return Query(DOCS, self.sources, [str(number) for number in range(len(DOCS))])


SIZES = {"by_row": K, "by_text": K, "neighbours": 2, "noise": K, "lexical": 4}


def expected(names: tuple[str, ...], doc: int) -> list[int]:
    return [STARTS[name] + doc + i for name in STARTS if name in names for i in range(SIZES[name])]


def rows_of(ids_NK: I32) -> list[list[int]]:
    return [[label for label in row if label != PAD_ID] for row in ids_NK.tolist()]


SETS = [tuple(STARTS), ("by_row",), *(("by_row", name) for name in STARTS if name != "by_row")]
SETS += [tuple(other for other in STARTS if other != name) for name in STARTS if name != "by_row"]


@pytest.mark.parametrize("names", SETS, ids="+".join)
def test_candidates_are_the_labels_of_every_source_that_there_is(names: tuple[str, ...]) -> None:
    world = World(names)
    found = world.searchers.candidates(world.query(), K)
    assert rows_of(found) == [expected(names, doc) for doc in range(len(DOCS))]
    assert sorted(world.asked) == sorted((name, SIZES[name]) for name in names), "each once, for k labels"


@pytest.mark.parametrize("k", [1, 2, 5])
def test_searches_and_noise_are_asked_for_as_many_labels_as_the_rule_has_candidates(k: int) -> None:
    world = World()
    config = FusionConfig(kind="sum", add=("frequency",), candidates=k)
    Scorer(world.searchers, world.sources, Fusion(config)).shortlist(DOCS, 2, [str(i) for i in range(len(DOCS))])
    assert dict(world.asked) == {"by_row": k, "by_text": k, "noise": k, "neighbours": 2, "lexical": 4}


def test_votes_and_words_are_found_once_for_candidates_and_features() -> None:
    world = World()
    config = FusionConfig(kind="sum", add=("neighbours", "lexical", "frequency"), candidates=K)
    Scorer(world.searchers, world.sources, Fusion(config)).shortlist(DOCS, 2, [str(i) for i in range(len(DOCS))])
    assert sorted(name for name, _ in world.asked) == sorted(STARTS)


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, 4097, 5000])
def test_blocks_of_documents_give_what_one_block_gives(size: int) -> None:
    """A document's vector, score and words are its own, on either side of a block's edge."""
    sources = World(("by_row", "lexical")).sources
    config = FusionConfig(kind="sum", add=("label_text", "lexical"), candidates=1)
    scorer = Scorer(Searchers(ConstantIndex(), None), sources, Fusion(config))
    vectors = np.random.default_rng(1).standard_normal((size + 3, WIDTH)).astype(np.float32)
    rows = np.random.default_rng(2).permutation(size + 3)[:size]
    texts = [str(number * 31 % 977) for number in range(size)]
    found = scorer.shortlist_rows(vectors, rows, {"fusion": scorer.fusion}, "scoring", texts)["fusion"]
    assert len(found) == size
    if size:
        whole = scorer.shortlist(vectors[rows], None, texts)
        np.testing.assert_array_equal(found.ids_NK, whole.ids_NK)
        np.testing.assert_array_equal(found.scores_NK, whole.scores_NK)
        by_word = STARTS["lexical"] + np.array([int(text) % 10 for text in texts])
        assert (found.ids_NK == by_word[:, None]).any(1).all(), "each document has the labels of its own text"
