"""Label trees as arrays.

A node has a linear model per child: the children of a branch are nodes, those of a leaf are labels. Weights are stored
by node and term, so that a search reads those of a text's terms and no others.

Letters, used here as name suffixes: V nodes, R rows of weights (one per node and term), W weights that are not zero.

File: ``forest.safetensors``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from xc_core.arrays import read_arrays
from xc_core.errors import CorruptError
from xc_core.shapes import F32, I32, I64, Array, Bool

FILE: Final = "forest.safetensors"
_LARGEST_WEIGHT: Final = 1e12
"""So that no margin's square is infinite."""
_FIELDS: Final[dict[str, tuple[str, Any]]] = {
    "roots": ("roots", np.int32),
    "is_leaf": ("is_leaf_V", np.bool_),
    "firsts": ("firsts_V", np.int64),
    "below": ("below", np.int32),
    "rows": ("rows_V", np.int64),
    "terms": ("terms_R", np.int32),
    "ends": ("ends_R", None),
    "children": ("children_W", None),
    "weights": ("weights_W", np.float32),
}
"""The field of each array of the file, and its type; None: int32, int64 if there are too many weights for it. In the
file children have as few bytes as they need."""


@dataclass(frozen=True)
class Node:
    """A node of a tree and the weights of its linear models."""

    is_leaf: bool
    below: I32
    """The labels of a leaf; of a branch, the positions of its children in the tree's list of nodes, each after it."""
    terms_R: I32
    """The term of each row of weights, ascending; the bias is one more than the last term of texts."""
    ends_R: I64
    """The end of each row of weights."""
    children_W: I32
    """The child of each weight, as its position in ``below``."""
    weights_W: F32


@dataclass(frozen=True, eq=False)
class Forest:
    """Several trees over the same terms; several threads may use them at once."""

    num_terms: int
    """Number of terms of texts; as a term, the bias has this number."""
    roots: I32
    is_leaf_V: Bool
    firsts_V: I64
    """The first child of each node in ``below``, and the end of the last node's (V + 1)."""
    below: I32
    """The children of each node: labels of a leaf, nodes of a branch."""
    rows_V: I64
    """The first row of each node, and the end of the last node's (V + 1)."""
    terms_R: I32
    """The term of each row, ascending within a node."""
    ends_R: Array
    """The first weight of each row, and the end of the last row's (R + 1)."""
    children_W: Array
    """The child of each weight, as its position among the node's children."""
    weights_W: F32

    @classmethod
    def of(cls, trees: Iterable[Sequence[Node]], num_terms: int) -> Forest:
        """Put trees together, each a list of nodes that starts with its root.

        Raises ValueError if they are no trees, or have terms beyond ``num_terms``.
        """
        nodes: list[Node] = []
        roots, below = [], []
        for tree in trees:
            roots.append(len(nodes))
            below += [node.below if node.is_leaf else node.below + len(nodes) for node in tree]
            nodes += tree
        starts = _ends([len(node.weights_W) for node in nodes])
        index = _index_type(starts[-1])
        forest = cls(
            num_terms=num_terms,
            roots=np.array(roots, np.int32),
            is_leaf_V=np.array([node.is_leaf for node in nodes], np.bool_),
            firsts_V=_ends([len(node.below) for node in nodes]),
            below=_joined(below, np.int32),
            rows_V=_ends([len(node.terms_R) for node in nodes]),
            terms_R=_joined([node.terms_R for node in nodes], np.int32),
            ends_R=_joined([starts[:1], *(n.ends_R + start for n, start in zip(nodes, starts, strict=False))], index),
            children_W=_joined([node.children_W for node in nodes], index),
            weights_W=_joined([node.weights_W for node in nodes], np.float32),
        )
        forest._check()
        return forest

    @property
    def num_trees(self) -> int:
        """The number of trees."""
        return len(self.roots)

    @cached_property
    def num_labels(self) -> int:
        """One more than the last label."""
        return 1 + int(self.below[self._is_label].max(initial=-1))

    @cached_property
    def sizes_V(self) -> I64:
        """The number of children of each node."""
        return np.diff(self.firsts_V)

    @cached_property
    def _is_label(self) -> Bool:
        """True for labels in ``below``."""
        return np.repeat(self.is_leaf_V, self.sizes_V)

    @cached_property
    def width(self) -> int:
        """The most children of a node."""
        return int(self.sizes_V.max(initial=1))

    def _check(self) -> None:
        """Raise ValueError for arrays that a search would fail on, or never come to an end."""
        nodes, rows = len(self.is_leaf_V), len(self.terms_R)
        arrays = [getattr(self, field) for field, _ in _FIELDS.values()]
        if not (
            all(array.ndim == 1 for array in arrays)
            and _covers(self.firsts_V, nodes, len(self.below))
            and _covers(self.rows_V, nodes, rows)
            and _covers(self.ends_R, rows, len(self.weights_W))
            and len(self.children_W) == len(self.weights_W)
        ):
            raise ValueError("parts of different lengths")
        follows_R = np.diff(self.terms_R, prepend=-1) > 0
        follows_R[self.rows_V[:-1][np.diff(self.rows_V) > 0]] = True
        parent = np.repeat(np.arange(nodes), self.sizes_V)
        node, above = self.below[~self._is_label], parent[~self._is_label]
        wrong = {
            "nodes without children": not (self.sizes_V > 0).all(),
            "roots": not len(self.roots) or not _within(self.roots, nodes),
            "terms": not _within(self.terms_R, self.num_terms + 1) or not follows_R.all(),
            "children": not _within(self.children_W, int(self.sizes_V.max(initial=0))),
            "labels": not _within(self.below[self._is_label], np.iinfo(np.int32).max),
            "nodes": not _within(node, nodes) or bool((node <= above).any()),
            "weights": not _bounded(self.weights_W),
        }
        if any(wrong.values()):
            raise ValueError(f"wrong {' and '.join(name for name, is_wrong in wrong.items() if is_wrong)}")

    def save(self, folder: Path) -> None:
        """Write into an existing folder."""
        arrays = {name: getattr(self, field) for name, (field, _) in _FIELDS.items()}
        arrays["children"] = self.children_W.astype(np.min_scalar_type(int(self.children_W.max(initial=0))))
        save_file({**arrays, "num_terms": np.array([self.num_terms])}, folder / FILE)

    @classmethod
    def open(cls, folder: Path) -> Forest:
        """Open what ``save`` wrote; raise CorruptError if it is something else."""
        do = "run the stage scores again"
        arrays = read_arrays(folder / FILE, *_FIELDS, "num_terms", content="label trees", do=do)
        try:
            index = _index_type(len(arrays["weights"]))
            fields = {name: arrays[key].astype(kind or index, copy=False) for key, (name, kind) in _FIELDS.items()}
            forest = cls(num_terms=int(arrays["num_terms"][0]), **fields)
            forest._check()
        except (IndexError, TypeError, ValueError, OverflowError) as error:
            raise CorruptError(
                f"{folder / FILE} that cannot be read: {error}", expected="label trees", do=do
            ) from error
        return forest


def _index_type(weights: int) -> Any:
    """Return a type for positions of weights, in which scipy has all its indices."""
    return np.int32 if weights <= np.iinfo(np.int32).max else np.int64


def _ends(sizes: Sequence[int] | Array) -> I64:
    """Return 0 and the sum up to each size."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def _joined(arrays: list[Array], dtype: Any) -> Array:
    return np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype, copy=False)


def _covers(ends: I64, parts: int, size: int) -> bool:
    """Return whether ``ends`` cuts ``size`` items into so many parts."""
    return len(ends) == parts + 1 and ends[0] == 0 and ends[-1] == size and bool((np.diff(ends) >= 0).all())


def _bounded(weights_W: F32) -> bool:
    """Return whether no weight is too large or not a number, without a copy of all."""
    return bool(weights_W.min(initial=0) >= -_LARGEST_WEIGHT and weights_W.max(initial=0) <= _LARGEST_WEIGHT)


def _within(values: Array, size: int) -> bool:
    return not len(values) or (values.min() >= 0 and values.max() < size)
