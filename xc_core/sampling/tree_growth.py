"""The greedy fit of the probabilistic label tree, from the root, level by level.

The letters are those of ``label_tree``. As many nodes of a level as fit into the cache are fitted together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import scipy  # its parts are imported when they are used

from xc_core.data.labels import LabelMatrix, ragged_positions
from xc_core.shapes import F64, I32, I64, Array, Bool, spans

ROUNDS: Final = 64
"""Rounds of a split and a fit of weights per node, at most."""
_STEPS: Final = 50
"""Newton steps per fit, and halvings per step, at most; 5 to 10 steps reach the optimum."""
_CLOSE: Final = 1e-14
"""A fit ends with a Newton step that promises less than this share of the objective; each step squares the error."""
_ROUNDING: Final = 1e-12
"""A decrease below this share of the objective counts as rounding: sums over millions of pairs have smaller errors."""
_TOGETHER: Final = 1 << 14
"""Pairs of the nodes fitted together: 16,384 x 17 x 8 bytes = 2.2 MB."""
_GATHERED: Final = 1 << 21
"""Pairs of a node whose documents are gathered once: 2 M x 17 x 8 bytes = 285 MB. Of larger nodes, those near the root
of millions of documents, blocks are gathered whenever they are needed."""


class Growth:
    """A tree that is being fitted. Leaves from L on are padding: labels without documents, which no walk may reach."""

    def __init__(self, feature_NQ: F64, truth: LabelMatrix, regulariser: float) -> None:
        self.num_labels, self.regulariser = truth.num_labels, regulariser
        self.leaves = 1 << (truth.num_labels - 1).bit_length()
        self.feature_NQ = np.column_stack([feature_NQ, np.ones(len(feature_NQ))])
        by_label = truth.transpose()
        self.docs = by_label.indices
        indptr = np.pad(by_label.indptr, (0, self.leaves - self.num_labels), mode="edge")
        self.starts_M, self.counts_M = indptr[:-1], np.diff(indptr)
        member = scipy.sparse.csr_array((np.ones(len(self.docs)), self.docs, indptr), (self.leaves, len(truth)))
        self.sums_MQ: F64 = member @ self.feature_NQ
        self.weight_VQ = np.zeros((self.leaves - 1, self.feature_NQ.shape[1]))
        self.history: list[F64] = []

    def grow(self) -> I64:
        """Fit all levels and return the label of each leaf. A node is described by its labels, in rising order."""
        labels_JS = np.arange(self.leaves).reshape(1, -1)
        while labels_JS.shape[1] > 1:
            count, size = labels_JS.shape
            is_label = labels_JS < self.num_labels
            right, weight = np.empty_like(is_label), self.weight_VQ[count - 1 : 2 * count - 1]
            traces = []
            for nodes in _node_groups(np.maximum(self.counts_M[labels_JS].sum(1), max(size, weight.shape[1]))):
                weight[nodes], right[nodes], trace = _Nodes.of(self, labels_JS[nodes]).fit(self.regulariser)
                traces.append(trace)
            self.history.append(stacked(traces).sum(0))
            for empty, bias in ((~(is_label & right).any(1), -np.inf), (~(is_label & ~right).any(1), np.inf)):
                weight[empty], weight[empty, -1] = 0.0, bias
            halves = [labels_JS[side].reshape(count, size // 2) for side in (~right, right)]
            labels_JS = np.stack(halves, axis=1).reshape(2 * count, size // 2)
        return labels_JS[:, 0]


def _node_groups(cells_J: I64) -> Iterator[I64]:
    """Cut the nodes of a level, largest first, into groups of about _TOGETHER cells, at least one node each."""
    order, start = np.argsort(-cells_J, kind="stable"), 0
    while start < len(order):
        stop = start + max(_TOGETHER // int(cells_J[order[start]]), 1)
        yield order[start:stop]
        start = stop


@dataclass(frozen=True)
class _Nodes:
    """J nodes that are fitted together: the summed documents of their labels, and their pairs, padded to P."""

    sums_JSQ: F64
    is_label_JS: Bool
    docs_JP: I32
    """The document of each pair."""
    place_JP: I32
    """Position of each pair's label among the labels of its node; S for padding."""
    feature_NQ: F64

    @classmethod
    def of(cls, growth: Growth, labels_JS: I64) -> _Nodes:
        """Gather the pairs of the nodes with ``labels_JS``."""
        counts_JS = growth.counts_M[labels_JS]
        total_J = counts_JS.sum(1)
        present = np.arange(total_J.max()) < total_J[:, None]
        place, docs = np.full(present.shape, labels_JS.shape[1], np.int32), np.zeros(present.shape, np.int32)
        labels = (np.arange(labels_JS.size) % labels_JS.shape[1]).astype(np.int32)
        place[present] = np.repeat(labels, counts_JS.ravel())
        docs[present] = growth.docs[ragged_positions(growth.starts_M[labels_JS].ravel(), counts_JS.ravel())]
        return cls(growth.sums_MQ[labels_JS], labels_JS < growth.num_labels, docs, place, growth.feature_NQ)

    def only(self, nodes: I64) -> _Nodes:
        """Return some of the nodes."""
        arrays = (self.sums_JSQ[nodes], self.is_label_JS[nodes], self.docs_JP[nodes], self.place_JP[nodes])
        return _Nodes(*arrays, self.feature_NQ)

    @cached_property
    def points(self) -> _Points:
        """The documents of the pairs."""
        return _Points.of(self.feature_NQ, self.docs_JP)

    def fit(self, regulariser: float) -> tuple[F64, Bool, F64]:
        """Return the weights (J x Q), which labels go right (J x S), and the objective after every split and fit."""
        weight, right = self._first_weight(), np.zeros_like(self.is_label_JS)
        value, trace = np.zeros(len(weight)), []
        live, nodes = np.arange(len(weight)), self
        for _ in range(ROUNDS):
            new_right = nodes._split(weight[live])
            moved = np.flatnonzero((new_right != right[live]).any(1))
            if not len(moved):
                break
            if len(moved) < len(live):
                nodes = nodes.only(moved)
            live = live[moved]
            right[live] = new_right[moved]
            zeta_JS = np.pad(np.where(right[live], 1, -1).astype(np.int8), ((0, 0), (0, 1)))
            signs_JP = np.take_along_axis(zeta_JS, nodes.place_JP, axis=1)
            regression = _Regression(nodes.points, signs_JP, regulariser)
            value[live] = regression.objective(weight[live])
            trace.append(value.sum())
            weight[live], value[live] = regression.climb(weight[live], value[live])
            trace.append(value.sum())
        return weight, right, np.array(trace)

    def _first_weight(self) -> F64:
        """Return b = 0 and w = the dominant eigenvector of the covariance of the labels' sums (0 for padding)."""
        share = self.is_label_JS / np.maximum(self.is_label_JS.sum(1, keepdims=True), 1)
        vectors = self.sums_JSQ[:, :, :-1]
        centred = vectors - np.matmul(share[:, None, :], vectors)
        covariance = np.matmul((centred * share[:, :, None]).transpose(0, 2, 1), centred)
        directions = upright(np.linalg.eigh(covariance)[1][:, :, -1])
        return np.pad(directions, ((0, 0), (0, 1))) * self.is_label_JS.any(1, keepdims=True)

    def _split(self, weight_JQ: F64) -> Bool:
        """Return True for the half of a node's labels with the largest Delta_y (J x S), equation 9."""
        delta_JS = np.matmul(self.sums_JSQ, weight_JQ[:, :, None])[:, :, 0]
        rank_JS = delta_JS.argsort(axis=1, kind="stable").argsort(axis=1)
        return np.asarray(rank_JS >= delta_JS.shape[1] // 2)


@dataclass(frozen=True)
class _Points:
    """The documents of the pairs of J nodes, in blocks of at most _GATHERED pairs."""

    feature_NQ: F64
    docs_JP: I32
    gathered_JPQ: F64 | None
    """All of them, if they are one block."""

    @classmethod
    def of(cls, feature_NQ: F64, docs_JP: I32) -> _Points:
        """Gather the documents if they are few."""
        return cls(feature_NQ, docs_JP, feature_NQ[docs_JP] if docs_JP.size <= _GATHERED else None)

    def blocks(self) -> Iterator[tuple[slice, F64]]:
        """Yield which pairs are in a block, and their documents (J x P x Q)."""
        if self.gathered_JPQ is not None:
            yield slice(None), self.gathered_JPQ
            return
        for pairs in spans(self.docs_JP.shape[1], max(_GATHERED // len(self.docs_JP), 1)):
            yield pairs, self.feature_NQ[self.docs_JP[:, pairs]]


@dataclass(frozen=True)
class _Regression:
    """Equation 8 at J nodes with a fixed split: regularised logistic regressions, concave in the weights."""

    points: _Points
    signs_JP: Array
    """Zeta of every pair, 0 for padding."""
    regulariser: float

    def objective(self, weight_JQ: F64) -> F64:
        """Return the objective of each node (J)."""
        likelihood_J = np.zeros(len(weight_JQ))
        for signs_JP, margins_JP, _ in self._margins(weight_JQ):
            likelihood_J += (np.abs(signs_JP) * scipy.special.log_expit(margins_JP)).sum(1)
        return np.asarray(likelihood_J - self.regulariser * (weight_JQ**2).sum(1))

    def _margins(self, weight_JQ: F64) -> Iterator[tuple[F64, F64, F64]]:
        """Yield signs, signed logits and documents of each block of pairs."""
        for pairs, points_JPQ in self.points.blocks():
            signs_JP = self.signs_JP[:, pairs].astype(np.float64)
            yield signs_JP, np.matmul(points_JPQ, weight_JQ[:, :, None])[:, :, 0] * signs_JP, points_JPQ

    def climb(self, weight_JQ: F64, value_J: F64) -> tuple[F64, F64]:
        """Return the optimal weights and their value, by Newton steps from ``weight_JQ`` with ``value_J``.

        A step is halved while it gains less than a quarter of its promise.
        """
        for _ in range(_STEPS):
            step_JQ, promise_J = self._step(weight_JQ)
            rate_J, scale_J = np.ones(len(weight_JQ)), 1 + np.abs(value_J)
            for _ in range(_STEPS):
                reached_J = self.objective(weight_JQ + rate_J[:, None] * step_JQ)
                short_J = reached_J < value_J + rate_J * promise_J / 4 - _ROUNDING * scale_J
                if not short_J.any():
                    break
                rate_J = np.where(short_J, rate_J / 2, rate_J)
            weight_JQ, value_J = weight_JQ + rate_J[:, None] * step_JQ, reached_J
            if (promise_J <= _CLOSE * scale_J).all():
                break
        return weight_JQ, value_J

    def _step(self, weight_JQ: F64) -> tuple[F64, F64]:
        """Return the Newton step (J x Q) and its promise, gradient . step (J): twice its gain on a parabola."""
        size = weight_JQ.shape[1]
        gradient, hessian = np.zeros(weight_JQ.shape), np.zeros((len(weight_JQ), size, size))
        for signs_JP, margins_JP, points_JPQ in self._margins(weight_JQ):
            slope_JP = signs_JP * scipy.special.expit(-margins_JP)
            bend_JP = np.abs(slope_JP) * (1 - np.abs(slope_JP))
            gradient += np.matmul(slope_JP[:, None, :], points_JPQ)[:, 0]
            hessian += np.matmul((points_JPQ * bend_JP[:, :, None]).transpose(0, 2, 1), points_JPQ)
        gradient -= 2 * self.regulariser * weight_JQ
        hessian += 2 * self.regulariser * np.eye(size)
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        return np.asarray(step, np.float64), np.asarray((gradient * step).sum(1))


def upright(vectors_JD: F64) -> F64:
    """Return the vectors with signs such that the largest component of each (the first of equals) is positive."""
    largest = np.take_along_axis(vectors_JD, np.abs(vectors_JD).argmax(1)[:, None], axis=1)
    return np.where(largest < 0, -vectors_JD, vectors_JD)


def stacked(traces: list[F64]) -> F64:
    """Return traces of several lengths as rows, each padded with its last value."""
    longest = max(map(len, traces), default=0)
    rows = [np.pad(trace, (0, longest - len(trace)), mode="edge") for trace in traces]
    return np.array(rows).reshape(len(rows), longest)
