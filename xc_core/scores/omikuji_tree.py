"""Read the file of a label tree that omikuji wrote: CBOR (RFC 8949), as serde_cbor writes it.

A tree of 230 MB is read in some seconds. A general reader would make Python objects of its 60 million numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xc_core.errors import CorruptError
from xc_core.scores.forest import Node
from xc_core.shapes import F32, I64

_WINDOW: Final = 1 << 15
"""Bytes of an array of integers that are read at a time."""
_FLOATS_AT_ONCE: Final = 1 << 13
_DEEPEST: Final = 100
"""Levels of a tree, at most; omikuji's default is 20."""
_INTEGER, _TEXT, _ARRAY, _MAP = 0, 3, 4, 5
_HALF, _SINGLE = 0xF9, 0xFA
_SIZE_OF_INTEGER: Final = np.ones(256, np.int64)
"""Bytes of an integer, by its first byte."""
_SIZE_OF_INTEGER[[0x18, 0x19, 0x1A]] = 2, 3, 5


def read_tree(path: Path) -> list[Node]:
    """Return the nodes of a tree, each before its children; raise CorruptError if the file is not one of omikuji's."""
    try:
        reader = _Reader(np.fromfile(path, np.uint8))
        nodes: list[Node] = []
        _read_node(reader, nodes, 0)
        reader.end()
    except (OSError, ValueError, IndexError) as error:
        raise CorruptError(
            f"{path} cannot be read: {error}", expected="a label tree", do="run the stage scores again"
        ) from error
    return nodes


def _read_node(reader: _Reader, nodes: list[Node], depth: int) -> int:
    """Add a node and all below it; return its position."""
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels")
    reader.head(_MAP, 1)
    is_leaf = reader.text("Leaf", "Branch") == "Leaf"
    reader.head(_MAP, 2)
    reader.text("weights")
    reader.head(_MAP, 1)
    weights = _read_sparse(reader) if reader.text("Sparse", "Dense") == "Sparse" else _read_dense(reader)
    place = len(nodes)
    nodes.append(Node(is_leaf, np.zeros(0, np.int32), **weights))
    reader.text("labels" if is_leaf else "children")
    if is_leaf:
        below = reader.integers()
    else:
        below = np.array([_read_node(reader, nodes, depth + 1) for _ in range(reader.head(_ARRAY))], np.int64)
    nodes[place] = replace(nodes[place], below=below.astype(np.int32))
    return place


def _read_sparse(reader: _Reader) -> dict[str, Any]:
    """Return the weights of a matrix that has a row per term with weights."""
    reader.head(_MAP, 6)
    for name in ("outer_dim", "inner_dim"):
        reader.text(name)
        reader.head(_INTEGER)
    integers = {}
    for name in ("indptr", "outer_inds", "inner_inds"):
        reader.text(name)
        integers[name] = reader.integers()
    reader.text("data")
    return {
        "terms_R": integers["outer_inds"].astype(np.int32),
        "ends_R": integers["indptr"][1:],
        "children_W": integers["inner_inds"].astype(np.int32),
        "weights_W": reader.floats(),
    }


def _read_dense(reader: _Reader) -> dict[str, Any]:
    """Return the weights of a matrix with all terms and children, as ndarray writes it; those of 0 are left out."""
    reader.head(_MAP, 3)
    reader.text("v")
    reader.head(_INTEGER)
    reader.text("dim")
    shape = reader.integers().tolist()
    reader.text("data")
    weights_RC = reader.floats().reshape(shape)
    row_W, child_W = np.nonzero(weights_RC)
    terms_R, size_R = np.unique(row_W, return_counts=True)
    return {
        "terms_R": terms_R.astype(np.int32),
        "ends_R": np.cumsum(size_R),
        "children_W": child_W.astype(np.int32),
        "weights_W": weights_RC[row_W, child_W],
    }


class _Reader:
    """Reads items of a CBOR file one after another; raises ValueError or IndexError if other items are there."""

    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        self.content = content
        self.place = 0

    def end(self) -> None:
        """Check that nothing is left."""
        if self.place != len(self.content):
            raise ValueError(f"{len(self.content) - self.place} bytes after its end")

    def head(self, kind: int, size: int | None = None) -> int:
        """Return the number in an item's head, which must be of this kind and size."""
        first = int(self.content[self.place])
        found, number = first >> 5, first & 31
        self.place += 1
        if number in (24, 25, 26, 27):
            width = 1 << (number - 24)
            number = int.from_bytes(self._take(width).tobytes(), "big")
        elif number > 27:
            found = -1
        if found != kind or size not in (None, number):
            raise ValueError(f"an unknown item before byte {self.place}")
        if kind == _ARRAY and number > len(self.content) - self.place:
            raise ValueError(f"{number} items in {len(self.content) - self.place} bytes")
        return number

    def text(self, *expected: str) -> str:
        """Return a text, which must be one of those expected."""
        found = self._take(self.head(_TEXT)).tobytes().decode("ascii", "replace")
        if found not in expected:
            raise ValueError(f"{found!r:.40} in place of {' or '.join(expected)}")
        return found

    def integers(self) -> I64:
        """Return an array of integers."""
        numbers = np.empty(self.head(_ARRAY), np.int64)
        done = 0
        while done < len(numbers):
            window = self.content[self.place : self.place + min(_WINDOW, 5 * (len(numbers) - done))]
            starts = _starts(window)[: len(numbers) - done]
            ends = starts + _SIZE_OF_INTEGER[window[starts]]
            starts, ends = starts[ends <= len(window)], ends[ends <= len(window)]
            if not len(starts):
                raise ValueError(f"it ends at byte {len(self.content)}")
            numbers[done : done + len(starts)] = _integers_at(window, starts)
            done += len(starts)
            self.place += int(ends[-1])
        return numbers

    def floats(self) -> F32:
        """Return an array of floats, most of them of 4 bytes; a few are written as 2 without loss."""
        numbers = np.empty(self.head(_ARRAY), np.float32)
        done = 0
        while done < len(numbers):
            if self.content[self.place] == _HALF:
                numbers[done] = self._take(3)[1:].view(">f2")[0]
                done += 1
                continue
            most = min(len(numbers) - done, _FLOATS_AT_ONCE, (len(self.content) - self.place) // 5)
            items = self.content[self.place : self.place + 5 * most].reshape(most, 5)
            count = int(np.argmin(np.append(items[:, 0] == _SINGLE, False)))
            if not count:
                raise ValueError(f"no number at byte {self.place}")
            numbers[done : done + count] = np.ascontiguousarray(items[:count, 1:]).view(">f4")[:, 0]
            done += count
            self.place += 5 * count
        return numbers

    def _take(self, size: int) -> npt.NDArray[np.uint8]:
        taken = self.content[self.place : self.place + size]
        if len(taken) < size:
            raise ValueError(f"it ends at byte {len(self.content)}")
        self.place += size
        return taken


def _starts(window: npt.NDArray[np.uint8]) -> I64:
    """Return where the integers start in bytes that start with one.

    A byte that looks like the head of a longer integer may be in another one: only these few are looked at one by one.
    """
    sizes = _SIZE_OF_INTEGER[window]
    heads = np.flatnonzero(sizes > 1)
    ends = heads + sizes[heads]
    is_head = np.ones(len(heads), np.bool_)
    for place in (np.flatnonzero(np.maximum.accumulate(ends)[:-1] > heads[1:]) + 1).tolist():
        before = place - 1
        while not is_head[before]:
            before -= 1
        is_head[place] = ends[before] <= heads[place]
    is_start = np.ones(len(window) + 4, np.bool_)
    for offset in range(1, 5):
        is_start[heads[is_head & (ends > heads + offset)] + offset] = False
    return np.flatnonzero(is_start[: len(window)])


def _integers_at(window: npt.NDArray[np.uint8], starts: I64) -> I64:
    """Return the integers that start there."""
    first = window[starts]
    if len(first) and first.max() > 0x1A:
        raise ValueError("something else in an array of integers")
    numbers = first.astype(np.int64)
    for width in (1, 2, 4):
        wide = np.flatnonzero(_SIZE_OF_INTEGER[first] == width + 1)
        numbers[wide] = 0
        for offset in range(1, width + 1):
            numbers[wide] = numbers[wide] << 8 | window[starts[wide] + offset]
    return numbers
