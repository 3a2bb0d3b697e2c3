"""Adversarial negatives: a probabilistic binary tree over the labels, p_n(y | x), fitted to the train pairs.

Takes: doc_ND, LabelMatrix, a seed.              Gives: LabelTree: log p_n(y | x), and labels drawn from it.
May import: errors, seeds, shapes, data.labels.  Never: recursion; a Python call per node.

Bamler and Mandt, "Extreme Classification via Adversarial Softmax Approximation" (2020), section 3. The fit is greedy,
from the root, level by level; as many nodes of a level as fit the cache are fitted together.

Letters: H levels, M leaves (a power of two, L or more), V = M - 1 inner nodes in heap order (children 2v + 1, 2v + 2),
J nodes fitted together, S leaves below each, P its pairs, Q the width after PCA (plus 1 in the fit, for the bias).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit, log_expit

from xc_core.data.labels import LabelMatrix, ragged_positions
from xc_core.errors import ConfigError
from xc_core.seeds import generator
from xc_core.shapes import F32, F64, I64, PAD_ID, Array, Bool

SEEN: Final = 1 << 15
"""Documents that PCA sees at most, a random sample of them: many times the width of a vector."""
ROUNDS: Final = 64
"""Turns of split and climb at a node at most."""
_STEPS: Final = 50
"""Newton steps of a climb at most, and halvings of a step; 5 to 10 steps reach the optimum."""
_CLOSE: Final = 1e-14
"""Share of the objective that the last Newton step promised: its error is the square of that before it."""
_ROUNDING: Final = 1e-12
"""Share of the objective below which a fall is rounding: a sum over millions of pairs errs by less."""
_TOGETHER: Final = 1 << 14
"""Pairs of the nodes fitted together: 16,384 x 17 x 8 bytes = 2.2 MB. Documents are projected as many at a time."""


@dataclass(frozen=True)
class LabelTree:
    """A fitted tree. A walk goes right at node v with probability sigma(w_v . x + b_v), x being a document after PCA:

        (7)  log p_n(y | x) = sum along the path to y of log sigma(zeta (w_v . x + b_v)),  zeta = +1 right, -1 left.

    A node with only padding on one side has w = 0 and b = -inf or +inf: that side has probability 0, exactly.
    """

    mean_D: F64
    directions_DQ: F64
    weight_VQ: F64
    bias_V: F64
    leaf_L: I64
    label_M: I64
    """The label of each leaf, ``PAD_ID`` for padding."""
    history_HT: F64
    """Equation 8, summed over the nodes of each level, after every split and every climb of the fit; it never falls."""

    @classmethod
    def fit(cls, doc_ND: F32, truth: LabelMatrix, *, width: int = 16, regulariser: float = 0.1, seed: int) -> LabelTree:
        """Fit to every (document, positive) pair of ``truth`` (N x L), PCA to min(``width``, D) directions first.

        At each node maximise, in turn, over the weights (Newton) and over the split into equal halves,

            (8)  sum over its pairs of log sigma(zeta_y (w . x + b)) - regulariser (|w|^2 + b^2),
            (9)  Delta_y = sum over the documents x of label y of (w . x + b): the larger half goes right,

        from b = 0 and w = the dominant eigenvector of the covariance of the labels' summed documents, until no label
        moves. Of equal Delta_y the higher label goes right, padding (Delta = 0) last. A label without documents has
        Delta = 0 too, and some probability. The paper finds ``regulariser`` by validation. ``seed`` matters where there
        are more than SEEN documents. Raises ConfigError for none, for no labels, for vectors that are not finite and
        for settings that mean nothing.
        """
        _check(doc_ND, truth, width, regulariser)
        mean, directions = _pca(doc_ND, width, generator(seed, "label-tree"))
        growth = _Growth(_project(doc_ND, mean, directions), truth, regulariser)
        labels_M = growth.grow()
        leaf_L = labels_M.argsort()[: truth.num_labels]
        label_M = np.where(labels_M < truth.num_labels, labels_M, PAD_ID)
        weight_VQ, bias_V = growth.weight_VQ[:, :-1].copy(), growth.weight_VQ[:, -1].copy()
        return cls(mean, directions, weight_VQ, bias_V, leaf_L, label_M, _stacked(growth.history))

    @property
    def depth(self) -> int:
        """H: decisions from the root to a leaf, ceil(log2 L)."""
        return len(self.label_M).bit_length() - 1

    def log_prob(self, doc_BD: F32, labels_BK: I64) -> F64:
        """Return log p_n(y | x) (B x K) of K labels of each document, equation 7, in O(Q log L) a pair.

        Finite for every label; -inf for ``PAD_ID``, as a shortlist's holes have it. Raises ConfigError for documents
        of another width or not finite, and for ids that are no labels.
        """
        x_BQ, real = self._features(doc_BD), labels_BK != PAD_ID
        size = len(self.leaf_L)
        if len(labels_BK) != len(x_BQ) or ((labels_BK < 0) | (labels_BK >= size))[real].any():
            found, expected = f"labels of shape {labels_BK.shape}, or ids outside the tree", f"B x K ids below {size}"
            raise ConfigError(found, expected=expected, do="use the label map that the tree was fitted with")
        leaf_BK = self.leaf_L[np.where(real, labels_BK, 0)]
        total = np.zeros(labels_BK.shape)
        for level in range(self.depth):
            node_BK = (leaf_BK >> (self.depth - level)) + (1 << level) - 1
            right_BK = (leaf_BK >> (self.depth - level - 1)) & 1
            logit_BK = self._logits(x_BQ, node_BK)
            total += log_expit(np.where(right_BK, logit_BK, -logit_BK))
        return np.where(real, total, -np.inf)

    def log_probs(self, doc_BD: F32) -> F64:
        """Return log p_n(y | x) (B x L) of all labels, level by level, in O(Q L) a document; raises as log_prob."""
        x_BQ = self._features(doc_BD)
        log_BJ = np.zeros((len(x_BQ), 1))
        for level in range(self.depth):
            nodes = slice((1 << level) - 1, (2 << level) - 1)
            logit_BJ = x_BQ @ self.weight_VQ[nodes].T + self.bias_V[nodes]
            sides = np.stack([log_BJ + log_expit(-logit_BJ), log_BJ + log_expit(logit_BJ)], axis=2)
            log_BJ = sides.reshape(len(x_BQ), 2 << level)
        return np.asarray(log_BJ[:, self.leaf_L])

    def sample(self, doc_BD: F32, random: np.random.Generator, count: int = 1) -> I64:
        """Draw ``count`` labels a document (B x count), with replacement, in O(Q log L) each; raises as log_prob."""
        if count < 0:
            raise ConfigError(f"count {count}", expected="at least 0", do="raise it")
        x_BQ = self._features(doc_BD)
        node_BK = np.zeros((len(x_BQ), count), np.int64)
        for _ in range(self.depth):
            right_BK = random.random(node_BK.shape) < expit(self._logits(x_BQ, node_BK))
            node_BK = 2 * node_BK + 1 + right_BK
        return np.asarray(self.label_M[node_BK - len(self.bias_V)])

    def arrays(self) -> dict[str, Array]:
        """Return the whole tree as plain arrays, to be saved."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> LabelTree:
        """Build from what ``arrays`` gave."""
        return cls(**{field.name: arrays[field.name] for field in fields(cls)})

    def _features(self, doc_BD: F32) -> F64:
        """Return the documents after PCA (B x Q)."""
        if doc_BD.ndim != 2 or doc_BD.shape[1] != len(self.mean_D):
            found, expected = f"vectors of shape {doc_BD.shape}", f"B x {len(self.mean_D)}"
            raise ConfigError(found, expected=expected, do="use the encoder that the tree was fitted with")
        return _project(doc_BD, self.mean_D, self.directions_DQ)

    def _logits(self, x_BQ: F64, node_BK: I64) -> F64:
        """Return w . x + b of each document at K nodes (B x K)."""
        return np.asarray(np.einsum("bq,bkq->bk", x_BQ, self.weight_VQ[node_BK]) + self.bias_V[node_BK])


def _check(doc_ND: F32, truth: LabelMatrix, width: int, regulariser: float) -> None:
    """Raise ConfigError for a fit that cannot mean anything."""
    shapes, settings = f"vectors of shape {doc_ND.shape}, labels {truth.shape}", f"{width=}, {regulariser=}"
    if doc_ND.ndim != 2 or len(doc_ND) != len(truth) or not doc_ND.size or not truth.num_labels:
        raise ConfigError(shapes, expected="N x D and N x L, none of them 0", do="hand in documents and their labels")
    if width < 1 or not 0 < regulariser < np.inf:  # separable labels have no optimum without a regulariser
        raise ConfigError(settings, expected="width at least 1, a regulariser above 0", do="mend the value")


def _double(doc_BD: F32) -> F64:
    """Return vectors in double precision; raise ConfigError where they are not finite."""
    if not np.isfinite(doc_BD).all():
        raise ConfigError("vectors that are not finite", expected="finite numbers", do="check the training run")
    return doc_BD.astype(np.float64)


def _pca(doc_ND: F32, width: int, random: np.random.Generator) -> tuple[F64, F64]:
    """Return the mean (D) and the ``width`` leading eigenvectors of the covariance (D x Q) of up to SEEN documents."""
    if len(doc_ND) > SEEN:
        doc_ND = doc_ND[np.sort(random.choice(len(doc_ND), SEEN, replace=False))]
    seen = _double(doc_ND)
    mean = seen.mean(axis=0)
    seen -= mean
    vectors = np.linalg.eigh(seen.T @ seen)[1]
    return mean, np.ascontiguousarray(_upright(vectors[:, ::-1].T[:width]).T)


def _upright(vectors_JD: F64) -> F64:
    """Return the vectors, each turned so that its largest component (the first of equals) is positive."""
    largest = np.take_along_axis(vectors_JD, np.abs(vectors_JD).argmax(1)[:, None], axis=1)
    return np.where(largest < 0, -vectors_JD, vectors_JD)


def _project(doc_BD: F32, mean_D: F64, directions_DQ: F64) -> F64:
    """Return the documents along the directions (B x Q)."""
    out = np.empty((len(doc_BD), directions_DQ.shape[1]))
    for start in range(0, len(doc_BD), _TOGETHER):
        rows = slice(start, start + _TOGETHER)
        out[rows] = (_double(doc_BD[rows]) - mean_D) @ directions_DQ
    return out


def _stacked(traces: list[F64]) -> F64:
    """Return traces of several lengths as rows, each keeping its last value to the end."""
    longest = max(map(len, traces), default=0)
    rows = [np.pad(trace, (0, longest - len(trace)), mode="edge") for trace in traces]
    return np.array(rows).reshape(len(rows), longest)


class _Growth:
    """A tree in the making; leaves from L on are padding: labels without documents that must not be reached."""

    def __init__(self, feature_NQ: F64, truth: LabelMatrix, regulariser: float) -> None:
        self.num_labels, self.regulariser = truth.num_labels, regulariser
        self.leaves = 1 << (truth.num_labels - 1).bit_length()
        self.feature_NQ = np.column_stack([feature_NQ, np.ones(len(feature_NQ))])
        by_label = truth.transpose()
        self.docs = by_label.indices
        indptr = np.pad(by_label.indptr, (0, self.leaves - self.num_labels), mode="edge")
        self.starts_M, self.counts_M = indptr[:-1], np.diff(indptr)
        member = csr_array((np.ones(len(self.docs)), self.docs, indptr), (self.leaves, len(truth)))
        self.sums_MQ: F64 = member @ self.feature_NQ
        self.weight_VQ = np.zeros((self.leaves - 1, self.feature_NQ.shape[1]))
        self.history: list[F64] = []

    def grow(self) -> I64:
        """Fit all levels; return the label of each leaf. A node is given by its labels, in rising order."""
        labels_JS = np.arange(self.leaves).reshape(1, -1)
        while labels_JS.shape[1] > 1:
            count, size = labels_JS.shape
            real = labels_JS < self.num_labels
            right, weight = np.empty_like(real), self.weight_VQ[count - 1 : 2 * count - 1]
            traces = []
            for own in _together(np.maximum(self.counts_M[labels_JS].sum(1), max(size, weight.shape[1]))):
                weight[own], right[own], trace = _Nodes.of(self, labels_JS[own]).fit(self.regulariser)
                traces.append(trace)
            self.history.append(_stacked(traces).sum(0))
            for empty, bias in ((~(real & right).any(1), -np.inf), (~(real & ~right).any(1), np.inf)):
                weight[empty], weight[empty, -1] = 0.0, bias
            halves = [labels_JS[side].reshape(count, size // 2) for side in (~right, right)]
            labels_JS = np.stack(halves, axis=1).reshape(2 * count, size // 2)
        return labels_JS[:, 0]


def _together(cells_J: I64) -> Iterator[I64]:
    """Cut the nodes of a level, largest first, into groups of about _TOGETHER cells, at least one node each."""
    order, start = np.argsort(-cells_J, kind="stable"), 0
    while start < len(order):
        stop = start + max(_TOGETHER // int(cells_J[order[start]]), 1)
        yield order[start:stop]
        start = stop


@dataclass(frozen=True)
class _Nodes:
    """J nodes that are fitted together: their labels' summed documents, and their pairs, padded to the same P."""

    sums_JSQ: F64
    real_JS: Bool
    points_JPQ: F64
    place_JP: I64
    """Which of the node's labels a pair belongs to, S for padding."""

    @classmethod
    def of(cls, growth: _Growth, labels_JS: I64) -> _Nodes:
        """Gather the pairs of the nodes with ``labels_JS``."""
        counts_JS = growth.counts_M[labels_JS]
        total_J = counts_JS.sum(1)
        present = np.arange(total_J.max()) < total_J[:, None]
        place, docs = np.full(present.shape, labels_JS.shape[1]), np.zeros(present.shape, np.int64)
        place[present] = np.repeat(np.arange(labels_JS.size) % labels_JS.shape[1], counts_JS.ravel())
        docs[present] = growth.docs[ragged_positions(growth.starts_M[labels_JS].ravel(), counts_JS.ravel())]
        return cls(growth.sums_MQ[labels_JS], labels_JS < growth.num_labels, growth.feature_NQ[docs], place)

    def fit(self, regulariser: float) -> tuple[F64, Bool, F64]:
        """Return the weights (J x Q), who goes right (J x S), and the objective of all nodes after every half turn."""
        weight, right = self._first_weight(), np.zeros_like(self.real_JS)
        value, trace = np.zeros(len(weight)), []
        live, nodes = np.arange(len(weight)), self
        for _ in range(ROUNDS):
            new = nodes._split(weight[live])
            moved = np.flatnonzero((new != right[live]).any(1))
            if not len(moved):
                break
            if len(moved) < len(live):
                nodes = _Nodes(*(getattr(nodes, field.name)[moved] for field in fields(nodes)))
            live = live[moved]
            right[live] = new[moved]
            zeta_JS = np.pad(np.where(right[live], 1.0, -1.0), ((0, 0), (0, 1)))
            signs_JP = np.take_along_axis(zeta_JS, nodes.place_JP, axis=1)
            regression = _Regression(nodes.points_JPQ, signs_JP, regulariser)
            value[live] = regression.objective(weight[live])
            trace.append(value.sum())
            weight[live], value[live] = regression.climb(weight[live], value[live])
            trace.append(value.sum())
        return weight, right, np.array(trace)

    def _first_weight(self) -> F64:
        """Return b = 0 and w = the dominant eigenvector of the covariance of a node's labels' sums (0 for padding)."""
        share = self.real_JS / np.maximum(self.real_JS.sum(1, keepdims=True), 1)
        vectors = self.sums_JSQ[:, :, :-1]
        centred = vectors - np.matmul(share[:, None, :], vectors)
        covariance = np.matmul((centred * share[:, :, None]).transpose(0, 2, 1), centred)
        directions = _upright(np.linalg.eigh(covariance)[1][:, :, -1])
        return np.pad(directions, ((0, 0), (0, 1))) * self.real_JS.any(1, keepdims=True)

    def _split(self, weight_JQ: F64) -> Bool:
        """True for the half of a node's labels with the largest Delta_y (J x S), equation 9."""
        delta_JS = np.matmul(self.sums_JSQ, weight_JQ[:, :, None])[:, :, 0]
        rank_JS = delta_JS.argsort(axis=1, kind="stable").argsort(axis=1)
        return np.asarray(rank_JS >= delta_JS.shape[1] // 2)


@dataclass(frozen=True)
class _Regression:
    """Equation 8 at J nodes, the split held fixed: regularised logistic regressions, concave in the weights."""

    points_JPQ: F64
    signs_JP: F64
    """Zeta of every pair, 0 for padding."""
    regulariser: float

    def objective(self, weight_JQ: F64) -> F64:
        """Return the objective of each node (J)."""
        margins_JP = np.matmul(self.points_JPQ, weight_JQ[:, :, None])[:, :, 0] * self.signs_JP
        likelihood_J = (np.abs(self.signs_JP) * log_expit(margins_JP)).sum(1)
        return np.asarray(likelihood_J - self.regulariser * (weight_JQ**2).sum(1))

    def climb(self, weight_JQ: F64, value_J: F64) -> tuple[F64, F64]:
        """Return the optimum and its value, by Newton steps from a start with its value.

        A step is halved where it wins less than a quarter of what it promised.
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
        """Return the Newton step (J x Q) and its promise, gradient . step (J): twice what it wins on a parabola."""
        margins_JP = np.matmul(self.points_JPQ, weight_JQ[:, :, None])[:, :, 0] * self.signs_JP
        slope_JP = self.signs_JP * expit(-margins_JP)
        gradient = np.matmul(slope_JP[:, None, :], self.points_JPQ)[:, 0] - 2 * self.regulariser * weight_JQ
        bend_JP = np.abs(slope_JP) * (1 - np.abs(slope_JP))
        hessian = np.matmul((self.points_JPQ * bend_JP[:, :, None]).transpose(0, 2, 1), self.points_JPQ)
        hessian += 2 * self.regulariser * np.eye(hessian.shape[-1])
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        return step, np.asarray((gradient * step).sum(1))
