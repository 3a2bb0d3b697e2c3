"""How label trees grow: what each node learns from, and that threads and shares of work change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array
from sklearn.preprocessing import normalize

from tests.naive import growing as naive
from xc_core.data.labels import LabelMatrix
from xc_core.scores.forest import Forest, Node
from xc_core.scores.trees import growing
from xc_core.scores.trees.growing import Growth, grow
from xc_core.scores.trees.one_vs_rest import train
from xc_core.seeds import derive, generator

DOCS, TERMS, LABELS = 90, 30, 24
ABSENT = 5
"""A label without a document."""
GROWTH = Growth(clusters=3, depth=3, passes=4, tolerance=0.01, threshold=0.05, seed=2)
Tree = list[Node]


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "LEAF", 6)


def terms() -> csr_matrix:
    rng = np.random.default_rng(0)
    return normalize(csr_matrix(random_array((DOCS, TERMS), density=0.2, rng=rng).toarray().astype(np.float32) + 1e-3))


def truth() -> LabelMatrix:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, LABELS, 2 * DOCS)
    return LabelMatrix.from_pairs(np.arange(2 * DOCS) % DOCS, np.where(labels == ABSENT, 0, labels), (DOCS, LABELS))


def filters() -> LabelMatrix:
    rng = np.random.default_rng(2)
    return LabelMatrix.from_pairs(rng.integers(0, DOCS, 60), rng.integers(0, LABELS, 60), (DOCS, LABELS))


def labels_of(tree: Tree, place: int) -> list[int]:
    node = tree[place]
    below = node.below.tolist()
    return below if node.is_leaf else [label for child in below for label in labels_of(tree, child)]


def paths_of(tree: Tree, place: int, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    yield path, place
    if not tree[place].is_leaf:
        for part, child in enumerate(tree[place].below.tolist()):
            yield from paths_of(tree, child, (*path, part))


def weights_of(node: Node) -> np.ndarray[Any, Any]:
    table = np.zeros((TERMS + 1, len(node.below)))
    table[np.repeat(node.terms_R, np.diff(node.ends_R, prepend=0)), node.children_W] = node.weights_W
    return table


def same(one: list[Tree], other: list[Tree]) -> bool:
    forests = (Forest.of(trees, TERMS) for trees in (one, other))
    first, second = ([getattr(f, name).tolist() for name in ("below", "children_W", "weights_W")] for f in forests)
    return first == second


def test_every_label_with_documents_is_in_one_leaf_of_each_tree() -> None:
    for tree in grow(terms(), truth(), None, GROWTH, 2):
        assert sorted(labels_of(tree, 0)) == [label for label in range(LABELS) if label != ABSENT]
        leaves = [node for node in tree if node.is_leaf]
        assert 3 < len(leaves) < len(tree)


@pytest.mark.parametrize("given", [None, filters()], ids=["plain", "filters"])
def test_a_node_learns_from_the_documents_with_its_labels(given: LabelMatrix | None) -> None:
    (tree,) = grow(terms(), truth(), given, GROWTH, 1)
    rows = [dict(enumerate([*row, 1.0])) for row in terms().toarray().tolist()]
    held = [set(truth().row(doc).tolist()) for doc in range(DOCS)]
    skipped = [set() if given is None else set(given.row(doc).tolist()) for doc in range(DOCS)]
    seen = 0
    for path, place in paths_of(tree, 0, (0,)):
        node, own = tree[place], set(labels_of(tree, place))
        docs = [doc for doc in range(DOCS) if held[doc] & own]
        found = weights_of(node)
        for child, below in enumerate(node.below.tolist()):
            part = {below} if node.is_leaf else set(labels_of(tree, below))
            signs = [1 if held[doc] & part else 0 if skipped[doc] & part else -1 for doc in docs]
            seed = derive(GROWTH.seed, "label trees", *path, child)
            expected = naive.support_vector_machine([rows[doc] for doc in docs], signs, GROWTH.passes, seed)
            far = {term: value for term, value in expected.items() if abs(abs(value) - GROWTH.threshold) > 1e-4}
            kept = {term: value if abs(value) > GROWTH.threshold else 0.0 for term, value in far.items()}
            assert {term: found[term, child] for term in kept} == pytest.approx(kept, abs=1e-4)
            seen += 1
    assert seen > LABELS


def test_labels_are_divided_by_the_clusters_of_their_documents() -> None:
    (tree,) = grow(terms(), truth(), None, GROWTH, 1)
    labels = [label for label in range(LABELS) if label != ABSENT]
    with_label = csr_matrix(np.array([[float(label in truth().row(doc)) for doc in range(DOCS)] for label in labels]))
    vectors = normalize(with_label @ terms())
    starts = generator(GROWTH.seed, "label clusters", 0).choice(len(labels), 3, replace=False)
    rows = [dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in vectors]
    expected = naive.clusters(rows, starts.tolist(), GROWTH.tolerance)
    parts = [sorted(labels_of(tree, child)) for child in tree[0].below.tolist()]
    grouped = [[one for one, own in zip(labels, expected, strict=True) if own == part] for part in range(len(parts))]
    assert parts == grouped


@pytest.mark.parametrize(("depth", "levels"), [(1, 1), (2, 2), (3, 3), (9, 9)])
def test_a_tree_has_so_many_levels_of_nodes_at_most(depth: int, levels: int) -> None:
    (tree,) = grow(terms(), truth(), None, dataclasses.replace(GROWTH, depth=depth, clusters=2), 1)
    found = max(len(path) for path, _ in paths_of(tree, 0, (0,)))
    assert found == levels if depth <= 3 else 3 < found <= levels


def test_a_node_with_few_labels_is_a_leaf() -> None:
    (tree,) = grow(terms(), truth(), None, dataclasses.replace(GROWTH, depth=9), 1)
    sizes = {place: len(labels_of(tree, place)) for place in range(len(tree))}
    assert all(tree[place].is_leaf == (size < 6) for place, size in sizes.items())
    (wide,) = grow(terms(), truth(), None, dataclasses.replace(GROWTH, clusters=24), 1)
    assert wide[0].is_leaf, "it has fewer labels than branches"


def test_threads_and_shares_of_work_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = grow(terms(), truth(), filters(), GROWTH, 2)
    for threads, at_once in ((4, 32), (1, 2)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        monkeypatch.setattr(growing, "AT_ONCE", at_once)
        assert same(grow(terms(), truth(), filters(), GROWTH, 2), first)


def test_trees_differ_from_one_another_and_with_the_seed() -> None:
    one, two = grow(terms(), truth(), None, GROWTH, 2)
    assert not same([one], [two])
    assert same([one], grow(terms(), truth(), None, GROWTH, 1)), "a tree does not depend on how many there are"
    assert not same([one], grow(terms(), truth(), None, dataclasses.replace(GROWTH, seed=3), 1))


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise MemoryError("no memory")

    monkeypatch.setattr(growing, "train", broken)
    with pytest.raises(MemoryError, match="no memory"):
        grow(terms(), truth(), None, GROWTH, 1)


def test_a_node_with_all_documents_but_one_learns_from_these(monkeypatch: pytest.MonkeyPatch) -> None:
    given = LabelMatrix.from_pairs(np.arange(DOCS), np.arange(DOCS) % 8 + 1, (DOCS, 10))
    given = LabelMatrix.from_pairs(np.arange(DOCS), np.where(np.arange(DOCS) == 3, 0, given.indices), (DOCS, 10))
    documents: list[int] = []

    def spied(rows: Any, *arguments: Any, **options: Any) -> Any:
        documents.append(len(rows))
        return train(rows, *arguments, **options)

    monkeypatch.setattr(growing, "train", spied)
    monkeypatch.setattr(growing, "clusters_of", lambda vectors, *_: np.minimum(np.arange(len(vectors)), 1))
    grow(terms(), given, None, dataclasses.replace(GROWTH, depth=2), 1)
    assert sorted(documents) == [1, DOCS - 1, DOCS]


def test_no_model_is_begun_after_the_end_of_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process waited at its end for models that a thread trains one after another: 34 s on many texts."""
    made: list[growing._Grove] = []
    own, node = growing._Grove, growing._node
    monkeypatch.setattr(growing, "_Grove", lambda *given: made.append(own(*given)) or made[0])

    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(growing, "_node", stopped)
    with pytest.raises(KeyboardInterrupt):
        grow(terms(), truth(), None, GROWTH, 1)
    monkeypatch.setattr(growing, "_node", node)
    root = made[0].divided((0,), np.flatnonzero(truth().frequency_L()), np.arange(DOCS))
    with pytest.raises(CancelledError):
        made[0].trained(root.shares()[0])
    made[0].stopped.clear()
    made[0].trained(root.shares()[0])
