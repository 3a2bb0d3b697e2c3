"""Grow label trees: divide the labels of each node, and train a linear model per part.

A node's documents are those with one of its labels. Its labels are divided by k-means on their vectors; those of a leaf
are not. Each part, or each label of a leaf, has a linear support vector machine: positive are its documents. A document
that must not be compared with a label (``filters``) is left out for it, and for a part with this label.

Every clustering and every model has a seed of its own, so trees do not depend on the number of threads.

Letters, used here as name suffixes: those of ``forest``; D documents of a node, P pairs of a document and a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from threading import Event
from typing import Any, Final

import numpy as np
import torch

from xc_core.data.labels import LabelMatrix, ragged_positions
from xc_core.scores.forest import Node
from xc_core.scores.trees.label_clusters import clusters_of
from xc_core.scores.trees.one_vs_rest import Pairs, Weights, train
from xc_core.scores.trees.sparse_rows import SparseRows
from xc_core.seeds import derive, generator
from xc_core.shapes import I64

LEAF: Final = 100
"""A node with fewer labels is a leaf."""
AT_ONCE: Final = 16
"""Models of a node that a thread trains one after another; for each such share it copies the node's documents."""

Path = tuple[int, ...]
"""A node's place: the tree, then the position among its siblings of each node on the way from the root."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How trees grow."""

    clusters: int
    """Parts of a node, at most."""
    depth: int
    """Levels of nodes."""
    passes: int
    """Passes of a linear model over its documents, at most."""
    tolerance: float
    """Gain in mean cosine below which k-means stops."""
    threshold: float
    """Weights that are no larger are dropped."""
    seed: int
    """Root seed."""


def grow(
    terms_NT: Any, truth: LabelMatrix, filters: LabelMatrix | None, growth: Growth, trees: int
) -> list[list[Node]]:
    """Return trees over documents with terms (scipy CSR, unit rows, N x T) and labels (N x L), at least one of each.

    A tree is a list of nodes, each before its children. As a term, the bias has the number T.
    """
    grove = _Grove(_with_bias(terms_NT), truth, filters, growth)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        try:
            return [_grown(grove, tree, pool) for tree in range(trees)]
        finally:
            grove.stopped.set()
            pool.shutdown(cancel_futures=True)


def _grown(grove: _Grove, tree: int, pool: ThreadPoolExecutor) -> list[Node]:
    """Grow one tree, level by level."""
    labels, docs = np.flatnonzero(grove.truth.frequency_L()), np.arange(len(grove.truth))
    level: list[tuple[Path, I64, I64]] = [((tree,), labels, docs)]
    found: dict[Path, Node] = {}
    while level:
        nodes = list(pool.map(grove.divided, *zip(*level, strict=True)))
        trained = pool.map(grove.trained, [share for node in nodes for share in node.shares()])
        for node in nodes:
            found[node.path] = _node(node, list(islice(trained, len(node.shares()))))
        level = [below for node in nodes for below in node.below()]
    return _listed(found, (tree,))


@dataclass(frozen=True, eq=False)
class _Divided:
    """A node whose labels are divided, and whose models are not trained yet."""

    path: Path
    labels: I64
    docs_D: I64
    part_of: I64 | None
    """The part of each label; None in a leaf, where each label is a part."""
    positives: Pairs
    """Positions among the documents, by part."""
    left_out: Pairs | None
    """The same for pairs that are neither positive nor negative."""

    @property
    def parts(self) -> int:
        return len(self.positives.firsts) - 1

    def shares(self) -> list[_Share]:
        """Return the work on the node."""
        return [(self, range(first, min(first + AT_ONCE, self.parts))) for first in range(0, self.parts, AT_ONCE)]

    def below(self) -> Iterator[tuple[Path, I64, I64]]:
        """Yield the nodes below a branch: path, labels and documents."""
        if self.part_of is not None:
            for part, docs in enumerate(self.positives.each(range(self.parts))):
                yield (*self.path, part), self.labels[self.part_of == part], self.docs_D[docs]


_Share = tuple[_Divided, range]
"""A node and some of its parts."""


@dataclass(frozen=True, eq=False)
class _Grove:
    """What all nodes learn from."""

    rows: SparseRows
    """Documents, each with an entry of 1 for the bias, which is the last term."""
    truth: LabelMatrix
    filters: LabelMatrix | None
    growth: Growth
    stopped: Event = field(default_factory=Event)
    """Set when nothing more is needed; models that are not trained yet are left out then."""

    @cached_property
    def vectors(self) -> SparseRows:
        """The vector of each label: the sum of its documents, of length 1, without the bias."""
        from scipy.sparse import csr_matrix
        from sklearn.preprocessing import normalize

        terms = csr_matrix((self.rows.values, self.rows.columns, self.rows.ends), (len(self.rows), self.rows.width))
        pairs = np.ones(len(self.truth.indices), np.float32), self.truth.indices, self.truth.indptr
        return SparseRows.of(normalize(csr_matrix(pairs, self.truth.shape).T.tocsr() @ terms[:, :-1], copy=False))

    def divided(self, path: Path, labels: I64, docs_D: I64) -> _Divided:
        """Divide the labels of a node, if it is not to be a leaf."""
        part_of = None
        if len(path) < self.growth.depth and len(labels) >= max(LEAF, self.growth.clusters):
            random = generator(self.growth.seed, "label clusters", *path)
            part_of = clusters_of(self.vectors.take(labels), self.growth.clusters, self.growth.tolerance, random)
            part_of = part_of if part_of.any() else None
        part_L = np.full(self.truth.num_labels, -1, np.int64)
        part_L[labels] = np.arange(len(labels)) if part_of is None else part_of
        left_out = None if self.filters is None else _pairs(self.filters, docs_D, part_L)
        return _Divided(path, labels, docs_D, part_of, _pairs(self.truth, docs_D, part_L), left_out)

    def trained(self, share: _Share) -> Weights:
        """Train some models of a node."""
        node, parts = share

        def seed_of(part: int) -> int:
            if self.stopped.is_set():
                raise CancelledError
            return derive(self.growth.seed, "label trees", *node.path, part)

        everything = len(node.docs_D) == len(self.rows)
        rows, terms = (self.rows if everything else self.rows.take(node.docs_D)).compact()
        weights = train(
            rows,
            node.positives,
            node.left_out,
            parts,
            passes=self.growth.passes,
            threshold=self.growth.threshold,
            seed_of=seed_of,
        )
        return replace(weights, terms_W=terms[weights.terms_W])


def _with_bias(terms_NT: Any) -> SparseRows:
    """Return rows of terms, each with a last entry of 1."""
    from scipy.sparse import csr_matrix, hstack

    ones = csr_matrix(np.ones((terms_NT.shape[0], 1), np.float32))
    return SparseRows.of(hstack([terms_NT, ones], format="csr", dtype=np.float32))


def _pairs(matrix: LabelMatrix, docs_D: I64, part_L: I64) -> Pairs:
    """Return the pairs of these documents and parts, each once; a label in no part has -1."""
    counts_D, parts = matrix.counts_N[docs_D], int(part_L.max()) + 1
    part = part_L[matrix.indices[ragged_positions(matrix.indptr[docs_D], counts_D)]]
    row = np.repeat(np.arange(len(docs_D)), counts_D)[part >= 0]
    key = np.unique(row * parts + part[part >= 0])
    return Pairs.of(key // parts, key % parts, parts)


def _node(node: _Divided, weights: Sequence[Weights]) -> Node:
    """Put a node together from the weights of its parts; ``_listed`` sets the children of a branch."""
    terms_W, classes_W, values_W = (
        np.concatenate([getattr(share, name) for share in weights]) for name in ("terms_W", "classes_W", "values_W")
    )
    order = np.lexsort((classes_W, terms_W))
    terms_R, size_R = np.unique(terms_W, return_counts=True)
    return Node(
        is_leaf=node.part_of is None,
        below=node.labels.astype(np.int32) if node.part_of is None else np.zeros(node.parts, np.int32),
        terms_R=terms_R,
        ends_R=np.cumsum(size_R),
        children_W=classes_W[order],
        weights_W=values_W[order],
    )


def _listed(found: dict[Path, Node], root: Path) -> list[Node]:
    """Return a tree as a list of nodes, each before its children."""
    nodes: list[Node] = []

    def add(path: Path) -> int:
        place, node = len(nodes), found[path]
        nodes.append(node)
        if not node.is_leaf:
            children = [add((*path, part)) for part in range(len(node.below))]
            nodes[place] = replace(node, below=np.array(children, np.int32))
        return place

    add(root)
    return nodes
