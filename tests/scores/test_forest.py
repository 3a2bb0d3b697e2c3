"""Label trees as arrays: a search finds what a naive one finds, in any batch; what is no forest is refused."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_matrix

from tests.naive import label_trees as naive
from xc_core.errors import CorruptError
from xc_core.scores import beam_search
from xc_core.scores import forest as forest_module
from xc_core.scores.beam_search import shortlist
from xc_core.scores.forest import FILE, Forest, Node

TERMS = 12


def grow(random: np.random.Generator, labels: list[int], levels: int) -> naive.Tree:
    """A tree of any shape: leaves on several levels, leaves of one label and of many, terms without weights."""

    def weights() -> dict[int | None, float]:
        terms = random.choice(TERMS, random.integers(0, TERMS), replace=False).tolist()
        own: dict[int | None, float] = {term: float(np.float32(random.normal() * 2)) for term in terms}
        return own | ({} if random.random() < 0.2 else {None: float(np.float32(random.normal()))})

    if levels == 0 or len(labels) < 4 or random.random() < 0.2:
        return naive.Tree([(weights(), label) for label in labels])
    cuts = np.sort(random.choice(np.arange(1, len(labels)), random.integers(1, 4), replace=False)).tolist()
    parts = [labels[start:end] for start, end in zip([0, *cuts], [*cuts, len(labels)], strict=True)]
    return naive.Tree([(weights(), grow(random, part, levels - 1)) for part in parts])


def nodes_of(tree: naive.Tree) -> list[Node]:
    nodes: list[Node] = []

    def add(tree: naive.Tree) -> int:
        place = len(nodes)
        by_term: dict[int, list[tuple[int, float]]] = {}
        for child, (weights, _) in enumerate(tree.children):
            for term, weight in weights.items():
                by_term.setdefault(TERMS if term is None else term, []).append((child, weight))
        rows = [by_term[term] for term in sorted(by_term)]
        node = Node(
            is_leaf=tree.is_leaf,
            below=np.zeros(0, np.int32),
            terms_R=np.array(sorted(by_term), np.int32),
            ends_R=np.cumsum([len(row) for row in rows], dtype=np.int64),
            children_W=np.array([child for row in rows for child, _ in row], np.int32),
            weights_W=np.array([weight for row in rows for _, weight in row], np.float32),
        )
        nodes.append(node)
        below = [child if isinstance(child, int) else add(child) for _, child in tree.children]
        nodes[place] = dataclasses.replace(node, below=np.array(below, np.int32))
        return place

    add(tree)
    return nodes


def forest_of(trees: list[naive.Tree]) -> Forest:
    return Forest.of(map(nodes_of, trees), TERMS)


def texts(random: np.random.Generator, size: int) -> tuple[Any, list[dict[int, float]]]:
    dense = random.random((size, TERMS)).astype(np.float32) * (random.random((size, TERMS)) < random.random((size, 1)))
    dense[size // 2] = 0
    dense /= np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-9)
    return csr_matrix(dense), [{at: float(row[at]) for at in np.flatnonzero(row).tolist()} for row in dense]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("beam", [1, 3, 10])
def test_a_search_finds_what_a_naive_search_finds(seed: int, beam: int) -> None:
    random = np.random.default_rng(seed)
    trees = [grow(random, random.permutation(40).tolist(), int(random.integers(0, 4))) for _ in range(3)]
    terms_NT, as_dicts = texts(random, 30)
    found = shortlist(forest_of(trees), terms_NT, beam=beam, k=25)
    assert (found.ids_NK.dtype, found.scores_NK.dtype, found.ids_NK.shape) == (np.int32, np.float32, (30, 25))
    for row, text in enumerate(as_dicts):
        expected = naive.shortlist(trees, text, beam, 25)
        filled = found.filled_NK[row]
        assert filled.sum() == len(expected), row
        assert not filled[len(expected) :].any()
        assert (found.scores_NK[row, ~filled] == -np.inf).all()
        assert dict(zip(found.ids_NK[row, filled].tolist(), found.scores_NK[row, filled].tolist(), strict=True)) == (
            pytest.approx(dict(expected), rel=1e-3, abs=1e-30)
        )
        assert found.scores_NK[row, filled].tolist() == sorted(found.scores_NK[row, filled].tolist(), reverse=True)


def test_of_equal_scores_the_first_child_is_followed_and_the_first_label_comes_first() -> None:
    leaves = [naive.Tree([({0: 0.5}, 10 * leaf + label) for label in (2, 1, 0)]) for leaf in range(4)]
    forest = forest_of([naive.Tree([({0: 0.5}, leaf) for leaf in leaves])])
    text = csr_matrix(np.eye(1, TERMS, dtype=np.float32))
    assert shortlist(forest, text, beam=2, k=9).ids_NK[0].tolist() == [1, 2, 11, 12, -1, -1, -1, -1, -1]
    assert shortlist(forest, text, beam=2, k=3).ids_NK[0].tolist() == [1, 2, 11]


def test_a_term_that_a_node_has_not_is_not_looked_up_in_the_next_one() -> None:
    """The first node ends before the term, and has no bias; the second starts with it."""
    leaves = [naive.Tree([({0: 0.5}, 0)]), naive.Tree([({3: 0.25}, 1)])]
    trees = [naive.Tree([({None: 1.0}, leaf) for leaf in leaves])]
    text = csr_matrix(np.array([[0, 0, 0, 1]], np.float32), shape=(1, TERMS))
    found = shortlist(forest_of(trees), text, beam=5, k=5)
    assert dict(zip(found.ids_NK[0, :2].tolist(), found.scores_NK[0, :2].tolist(), strict=True)) == pytest.approx(
        dict(naive.shortlist(trees, {3: 1.0}, 5, 5))
    )


def test_a_node_may_have_no_weights_and_a_tree_more_nodes_than_labels() -> None:
    tree = naive.Tree([({}, naive.Tree([({0: 1.0}, naive.Tree([({}, 0), ({}, 1)]))]))])
    forest = forest_of([tree, tree])
    assert (len(forest.is_leaf_V), forest.num_labels) == (6, 2)
    found = shortlist(forest, csr_matrix(np.eye(1, TERMS, dtype=np.float32)), beam=5, k=5)
    assert found.ids_NK[0].tolist() == [0, 1, -1, -1, -1]
    assert found.scores_NK[0, :2].tolist() == pytest.approx([np.exp(-2)] * 2)


def test_more_weights_than_int32_can_count_are_found_by_int64(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is, those of few are found by int64 too."""
    assert [forest_module._index_type(size) for size in (2**31 - 1, 2**31)] == [np.int32, np.int64]
    random = np.random.default_rng(0)
    trees = [grow(random, list(range(50)), 3) for _ in range(2)]
    terms_NT, _ = texts(random, 20)
    whole = shortlist(forest_of(trees), terms_NT, beam=3, k=20)
    monkeypatch.setattr(forest_module, "_index_type", lambda weights: np.int64)
    forest = forest_of(trees)
    assert (forest.ends_R.dtype, forest.children_W.dtype) == (np.int64, np.int64)
    again = shortlist(forest, terms_NT, beam=3, k=20)
    np.testing.assert_array_equal(again.ids_NK, whole.ids_NK)
    np.testing.assert_array_equal(again.scores_NK, whole.scores_NK)


@pytest.mark.parametrize(
    "limits",
    [
        {"_TEXTS_AT_ONCE": 1},
        {"_TEXTS_AT_ONCE": 7},
        {"_PAIRS_AT_ONCE": 1},
        {"_MARGINS_AT_ONCE": 1},
        {"_THREADED_FROM": 2},
    ],
    ids=lambda limits: str(*limits.items()),
)
def test_a_text_has_the_same_scores_in_every_batch(limits: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    forest = forest_of([grow(random, list(range(50)), 3) for _ in range(2)])
    terms_NT, _ = texts(random, 200)
    whole = shortlist(forest, terms_NT, beam=3, k=20)
    for name, limit in limits.items():
        monkeypatch.setattr(beam_search, name, limit)
    again = shortlist(forest, terms_NT, beam=3, k=20)
    np.testing.assert_array_equal(again.ids_NK, whole.ids_NK)
    np.testing.assert_array_equal(again.scores_NK, whole.scores_NK)


@pytest.mark.parametrize(
    ("sizes", "limits", "expected"),
    [
        ([4] * 200, {}, [100, 100]),
        ([4] * 65, {}, [33, 32]),
        ([4] * 63, {}, [63]),
        ([4] * 2_000, {}, [512, 512, 512, 464]),
        ([4] * 15, {"_TEXTS_AT_ONCE": 10}, [10, 5]),
        ([4] * 11, {"_PAIRS_AT_ONCE": 2 * 3 * 5 * (1 + 4)}, [5, 5, 1]),
        ([4] * 5, {"_PAIRS_AT_ONCE": 2 * 3 * 5 * (1 + 4) - 1}, [4, 1]),
        ([1, 1, 1, 11, 1, 1], {"_PAIRS_AT_ONCE": 2 * 3 * 6}, [3, 1, 2]),
        ([4] * 9, {"_MARGINS_AT_ONCE": 2 * 3 * 7 * 30 + 179}, [7, 2]),
        ([4] * 2, {"_MARGINS_AT_ONCE": 1}, [1, 1]),
        ([], {}, []),
    ],
)
def test_a_batch_is_cut_for_threads_and_memory(
    sizes: list[int], limits: dict[str, int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trees and a beam of 3 follow 6 nodes, with 30 children each; a text of 4 terms has 5 with its bias."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for name, limit in limits.items():
        monkeypatch.setattr(beam_search, name, limit)
    forest = forest_of([naive.Tree([({0: 1.0}, label) for label in range(30)])] * 2)
    blocks = list(beam_search._blocks(forest, np.array(sizes, np.int32), 3))
    assert [block.stop - block.start for block in blocks] == expected
    assert [row for block in blocks for row in range(len(sizes))[block]] == list(range(len(sizes)))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_search_has_as_many_threads_as_torch(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``xc serve --threads`` and OMP_NUM_THREADS set them."""
    workers, blocks, search = [], [], beam_search._reached
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(
        beam_search, "ThreadPoolExecutor", lambda size: workers.append(size) or ThreadPoolExecutor(size)
    )
    monkeypatch.setattr(beam_search, "_reached", lambda f, t, b: blocks.append(len(t)) or search(f, t, b))
    shortlist(leaf(5), csr_matrix(np.ones((90, TERMS), np.float32)), beam=3, k=2)
    assert (workers, blocks) == (([], [90]) if threads == 1 else ([3], [30, 30, 30]))


def test_long_texts_among_short_ones_are_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mean of all texts, the long ones would be together: the last blocks had 15 times the pairs allowed."""
    random, looked_up, search = np.random.default_rng(0), [], beam_search._reached
    forest = forest_of([grow(random, list(range(50)), 3) for _ in range(2)])
    terms_NT = csr_matrix(np.tri(TERMS, dtype=np.float32)[[0] * 300 + [TERMS - 1] * 20])
    whole = shortlist(forest, terms_NT, beam=3, k=20)

    def spied(forest: Forest, texts: Any, beam: int) -> Any:
        looked_up.append(forest.num_trees * beam * int(texts.sizes_N.sum()))
        return search(forest, texts, beam)

    limit = 2 * 3 * 2 * (TERMS + 1)
    monkeypatch.setattr(beam_search, "_reached", spied)
    monkeypatch.setattr(beam_search, "_PAIRS_AT_ONCE", limit)
    again = shortlist(forest, terms_NT, beam=3, k=20)
    np.testing.assert_array_equal(again.scores_NK, whole.scores_NK)
    assert sum(looked_up) == 2 * 3 * (300 * 2 + 20 * (TERMS + 1))
    assert max(looked_up) == limit


@pytest.fixture
def forest() -> Forest:
    random = np.random.default_rng(1)
    return forest_of([grow(random, list(range(30)), 3) for _ in range(2)])


def test_what_is_saved_and_opened_is_the_same_to_the_byte(forest: Forest, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    forest.save(tmp_path)
    opened = Forest.open(tmp_path)
    for field in dataclasses.fields(Forest):
        ours, theirs = getattr(forest, field.name), getattr(opened, field.name)
        np.testing.assert_array_equal(ours, theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype
    opened.save(tmp_path / "again")
    assert (tmp_path / FILE).read_bytes() == (tmp_path / "again" / FILE).read_bytes()
    assert load_file(tmp_path / FILE)["children"].dtype == np.uint8


def leaf(children: int) -> Forest:
    node = Node(
        True, np.arange(children, dtype=np.int32), np.array([0], np.int32), np.array([1]),
        np.array([children - 1], np.int32), np.ones(1, np.float32),
    )  # fmt: skip
    return Forest.of([[node]], TERMS)


@pytest.mark.parametrize(("children", "kind"), [(256, np.uint8), (257, np.uint16), (65_537, np.uint32)])
def test_children_have_as_few_bytes_as_they_need(children: int, kind: Any, tmp_path: Path) -> None:
    leaf(children).save(tmp_path)
    assert load_file(tmp_path / FILE)["children"].dtype == kind
    text = csr_matrix(np.eye(1, TERMS, dtype=np.float32))
    assert shortlist(Forest.open(tmp_path), text, beam=1, k=1).ids_NK.tolist() == [[children - 1]]


SPOILT: list[tuple[str, str, Any, Any]] = [
    ("a term that no text has", "wrong terms", "terms", lambda a: np.where(a == TERMS, TERMS + 1, a)),
    ("a term below 0", "wrong terms", "terms", lambda a: np.append(np.int32(-1), a[1:])),
    ("terms in another order", "wrong terms", "terms", lambda a: np.append(a[1::-1], a[2:])),
    ("a term twice", "wrong terms", "terms", lambda a: np.append(a[:1], [a[0], *a[2:]]).astype(a.dtype)),
    ("a child beyond all nodes' children", "wrong children", "children", lambda a: a + np.uint8(90)),
    ("no weight of a child", "different lengths", "children", lambda a: np.append(a, a[:1])),
    ("no child of a weight", "different lengths", "children", lambda a: a[1:]),
    ("a weight that is no number", "wrong weights", "weights", lambda a: np.append(np.float32(np.nan), a[1:])),
    ("a weight beyond all bounds", "wrong weights", "weights", lambda a: np.append(np.float32(2e12), a[1:])),
    ("a weight below all bounds", "wrong weights", "weights", lambda a: np.append(np.float32(-2e12), a[1:])),
    ("a root that is not there", "wrong roots", "roots", lambda a: a + np.int32(1000)),
    ("no root", "wrong roots", "roots", lambda a: a[:0]),
    ("a node below itself", "wrong nodes", "below", lambda a: np.append(np.int32(0), a[1:])),
    ("a node that is not there", "wrong nodes", "below", lambda a: np.append(np.int32(1000), a[1:])),
    ("labels below 0", "wrong.*labels", "below", lambda a: -1 - a),
    ("a node without children", "nodes without children", "firsts", lambda a: np.append(a[:1], [a[0], *a[2:]])),
    ("rows that go back", "different lengths", "rows", lambda a: np.append(a[:1], [a[-1], *a[2:]])),
    ("an end too few", "different lengths", "ends", lambda a: a[:-1]),
    ("a start that is not 0", "different lengths", "ends", lambda a: np.append(a[1], a[1:]).astype(a.dtype)),
    ("a table", "different lengths", "weights", lambda a: a[:, None]),
    ("endless terms", "infinity", "num_terms", lambda a: np.array([np.inf])),
    ("no number of terms", "out of bounds", "num_terms", lambda a: a[:0]),
    ("a number of terms below 0", "wrong terms", "num_terms", lambda a: -a),
]


@pytest.mark.parametrize(("_what", "found", "name", "spoil"), SPOILT, ids=[case[0] for case in SPOILT])
def test_arrays_that_a_search_would_fail_on_are_refused(
    forest: Forest, tmp_path: Path, _what: str, found: str, name: str, spoil: Any
) -> None:
    forest.save(tmp_path)
    arrays = load_file(tmp_path / FILE)
    save_file(arrays | {name: np.ascontiguousarray(spoil(arrays[name]))}, tmp_path / FILE)
    with pytest.raises(CorruptError, match=found):
        Forest.open(tmp_path)


def test_a_child_is_refused_as_soon_as_it_is_beyond_the_widest_node(tmp_path: Path) -> None:
    """The kernel would write behind the end of its result."""
    leaf(4).save(tmp_path)
    arrays = load_file(tmp_path / FILE)
    save_file(arrays | {"children": arrays["children"] + np.uint8(1)}, tmp_path / FILE)
    with pytest.raises(CorruptError, match="wrong children"):
        Forest.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"none", b"\x00" * 100])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(CorruptError, match=FILE):
        Forest.open(tmp_path)


def test_a_file_with_a_type_that_numpy_has_not_is_refused(forest: Forest, tmp_path: Path) -> None:
    forest.save(tmp_path)
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content.replace(b'"BOOL"', b'"F8_E4M3"').replace(b"   ", b"", 1))
    assert len((tmp_path / FILE).read_bytes()) == len(content)
    with pytest.raises(CorruptError, match="float8"):
        Forest.open(tmp_path)


def test_a_file_without_an_array_is_refused(forest: Forest, tmp_path: Path) -> None:
    forest.save(tmp_path)
    for name in (arrays := load_file(tmp_path / FILE)):
        save_file({key: array for key, array in arrays.items() if key != name}, tmp_path / FILE)
        with pytest.raises(CorruptError, match=name):
            Forest.open(tmp_path)


def test_no_trees_are_no_forest() -> None:
    with pytest.raises(ValueError, match="wrong roots"):
        Forest.of([], TERMS)
