"""Reading omikuji's files: every number of every size; whatever else is in them is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import omikuji
import pytest
from scipy.sparse import csr_matrix

from benchmarks.omikuji_files import quiet, write_rows
from xc_core.data.labels import LabelMatrix
from xc_core.errors import CorruptError
from xc_core.scores import omikuji_tree
from xc_core.scores.beam_search import shortlist
from xc_core.scores.forest import Forest
from xc_core.scores.omikuji_tree import _Reader, read_tree


def head(kind: int, number: int) -> bytes:
    """The head of a CBOR item (RFC 8949, section 3)."""
    if number < 24:
        return bytes([kind << 5 | number])
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * width:
            return bytes([kind << 5 | code]) + number.to_bytes(width, "big")
    raise AssertionError(number)


def integers(numbers: Any) -> bytes:
    return head(4, len(numbers)) + b"".join(head(0, int(number)) for number in numbers)


def floats(numbers: Any) -> bytes:
    """As serde_cbor writes them: in two bytes if nothing is lost."""
    halves = [np.float16(number) == number for number in numbers]
    items = zip(numbers, halves, strict=True)
    return head(4, len(numbers)) + b"".join(
        b"\xf9" + struct.pack(">e", number) if half else b"\xfa" + struct.pack(">f", number) for number, half in items
    )


def reader(content: bytes) -> _Reader:
    return _Reader(np.frombuffer(content, np.uint8))


EDGES = [0, 1, 23, 24, 25, 26, 27, 28, 255, 256, 0x1818, 0x1919, 0x1A1A, 0x181A, 65_535, 65_536, 0x18191A18, 2**32 - 1]


@pytest.mark.parametrize("window", [5, 6, 16, 1 << 20])
@pytest.mark.parametrize("most", [24, 30, 300, 7_000, 70_000, 2**32])
def test_integers_are_read_as_they_were_written(most: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omikuji_tree, "_WINDOW", window)
    random = np.random.default_rng(0)
    for size in (0, 1, 2, 7, 400):
        numbers = np.concatenate([random.integers(0, most, size), random.choice([e for e in EDGES if e < most], size)])
        random.shuffle(numbers)
        read = reader(integers(numbers) + b"\x18\x18")
        assert read.integers().tolist() == numbers.tolist()
        assert read.place == len(read.content) - 2


@pytest.mark.parametrize("number", EDGES)
def test_one_number_many_times(number: int) -> None:
    assert reader(integers([number] * 50)).integers().tolist() == [number] * 50


@pytest.mark.parametrize("at_once", [1, 3, 1 << 13])
def test_floats_are_read_as_they_were_written(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omikuji_tree, "_FLOATS_AT_ONCE", at_once)
    random = np.random.default_rng(0)
    for size in (0, 1, 50):
        numbers = random.normal(size=size).astype(np.float32)
        numbers[random.random(size) < 0.3] = 0.25
        read = reader(floats(numbers) + b"\xfa")
        np.testing.assert_array_equal(read.floats(), numbers)
        assert read.place == len(read.content) - 1


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (integers([1, 2])[:-1], "2 items in 1 bytes"),
        (integers([1, 300])[:-1], "ends"),
        (head(4, 2) + b"\x01\x61a", "something else"),
        (head(4, 2) + b"\x01\x1b" + b"\x00" * 8, "something else"),
        (head(4, 10**9) + b"\x01", "1000000000 items in 1 bytes"),
        (head(4, 2**63) + b"\x01", "items in 1 bytes"),
        (b"\x9f\x01\xff", "unknown item"),
        (b"\x01", "unknown item"),
        (b"\x99\x01", "ends"),
        (b"", "out of bounds"),
    ],
)
def test_other_items_are_no_integers(content: bytes, found: str) -> None:
    with pytest.raises((ValueError, IndexError), match=found):
        reader(content).integers()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (floats([np.float32(0.1), np.float32(0.2)])[:-1], "no number at byte 6"),
        (floats([0.25])[:-1], "ends"),
        (integers([1, 2, 3, 4, 5, 6]), "no number at byte 1"),
    ],
)
def test_other_items_are_no_floats(content: bytes, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        reader(content).floats()


def trained(folder: Path, *, terms: int, labels: int, **settings: Any) -> omikuji.Model:
    """A tree on documents that each have the word of their label, and others."""
    random = np.random.default_rng(0)
    truth = LabelMatrix.from_pairs(np.arange(4 * labels), np.arange(4 * labels) % labels, (4 * labels, labels))
    dense = random.random((4 * labels, terms)) * (random.random((4 * labels, terms)) < 0.1)
    dense[np.arange(4 * labels), np.arange(4 * labels) % labels % terms] = 1
    rows = csr_matrix((dense / np.linalg.norm(dense, axis=1, keepdims=True)).astype(np.float32))
    write_rows(folder / "rows.txt", rows, truth)
    how = omikuji.Model.default_hyper_param()
    how.n_trees, how.cluster_balanced = 1, False
    for name, value in settings.items():
        setattr(how, name, value)
    with quiet():
        model = omikuji.Model.train_on_data(str(folder / "rows.txt"), how)
        model.save(str(folder / "model"))
    model.init_prediction_thread_pool(1)
    return model


@pytest.mark.parametrize(
    ("labels", "terms", "settings", "has_dense_nodes"),
    [
        (300, 400, {"cluster_k": 5, "max_depth": 3, "min_branch_size": 20}, True),
        (300, 400, {"cluster_k": 20, "max_depth": 2, "min_branch_size": 20, "linear_weight_threshold": 0.5}, False),
        (700, 90, {"cluster_k": 2, "max_depth": 1, "min_branch_size": 700, "linear_weight_threshold": 0.8}, False),
        (20, 4, {"cluster_k": 2, "max_depth": 1, "min_branch_size": 20, "linear_weight_threshold": 0.0}, True),
    ],
)  # fmt: skip
def test_a_search_in_what_is_read_finds_what_omikuji_finds(
    labels: int, terms: int, settings: dict[str, Any], has_dense_nodes: bool, tmp_path: Path
) -> None:
    model = trained(tmp_path, terms=terms, labels=labels, **settings)
    file = tmp_path / "model" / "tree0.cbor"
    assert (b"eDense" in file.read_bytes()) is has_dense_nodes
    forest = Forest.of([read_tree(file)], terms)
    random = np.random.default_rng(1)
    dense = random.random((20, terms)).astype(np.float32) * (random.random((20, terms)) < 0.3)
    dense[:, 0] += 0.1
    texts_NT = csr_matrix(dense / np.linalg.norm(dense, axis=1, keepdims=True))
    for beam in (2, 10):
        found = shortlist(forest, texts_NT, beam=beam, k=labels)
        for row in range(20):
            start, end = texts_NT.indptr[row : row + 2]
            pairs = list(zip(texts_NT.indices[start:end].tolist(), texts_NT.data[start:end].tolist(), strict=True))
            filled = found.filled_NK[row]
            ours = zip(found.ids_NK[row, filled].tolist(), found.scores_NK[row, filled].tolist(), strict=True)
            assert dict(ours) == pytest.approx(dict(model.predict(pairs, beam, labels)), abs=1e-6)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("tree")
    trained(folder, terms=12, labels=12, cluster_k=2, max_depth=2, min_branch_size=2)
    return (folder / "model" / "tree0.cbor").read_bytes()


def test_a_file_that_ends_too_soon_or_too_late_is_refused(tree: bytes, tmp_path: Path) -> None:
    file = tmp_path / "tree0.cbor"
    for size in range(len(tree)):
        file.write_bytes(tree[:size])
        with pytest.raises(CorruptError, match=r"tree0\.cbor cannot be read"):
            read_tree(file)
    file.write_bytes(tree + b"\x00")
    with pytest.raises(CorruptError, match="1 bytes after its end"):
        read_tree(file)
    with pytest.raises(CorruptError, match="cannot be read"):
        read_tree(tmp_path / "absent")


def test_whatever_is_changed_it_is_read_or_refused(tree: bytes, tmp_path: Path) -> None:
    random, file, refused = np.random.default_rng(0), tmp_path / "tree0.cbor", 0
    for _ in range(1500):
        content = bytearray(tree)
        for place in random.integers(0, len(tree), random.integers(1, 4)).tolist():
            content[place] = int(random.integers(0, 256))
        file.write_bytes(content)
        try:
            forest = Forest.of([read_tree(file)], 12)
        except (CorruptError, ValueError):
            refused += 1
            continue
        shortlist(forest, csr_matrix(np.eye(12, dtype=np.float32)), beam=3, k=5)
    assert 300 < refused < 1400


def chain(levels: int) -> bytes:
    """A file of branches that have one child each, and of a leaf with the label 7; no node has weights."""
    weights = head(3, 7) + b"weights" + head(5, 1) + head(3, 6) + b"Sparse" + head(5, 6)
    for name, item in [("outer_dim", head(0, 1)), ("inner_dim", head(0, 1)), ("indptr", integers([0])),
                       ("outer_inds", integers([])), ("inner_inds", integers([])), ("data", floats([]))]:  # fmt: skip
        weights += head(3, len(name)) + name.encode() + item
    branch = head(5, 1) + head(3, 6) + b"Branch" + head(5, 2) + weights + head(3, 8) + b"children" + head(4, 1)
    leaf = head(5, 1) + head(3, 4) + b"Leaf" + head(5, 2) + weights + head(3, 6) + b"labels" + integers([7])
    return branch * levels + leaf


def test_nodes_are_no_deeper_than_a_stack(tmp_path: Path) -> None:
    file = tmp_path / "tree0.cbor"
    file.write_bytes(chain(100))
    nodes = read_tree(file)
    assert [node.below.tolist() for node in nodes] == [*([at] for at in range(1, 101)), [7]]
    for levels in (101, 5_000):
        file.write_bytes(chain(levels))
        with pytest.raises(CorruptError, match="more than 100 levels"):
            read_tree(file)
