"""Adversarial negatives: a probabilistic binary tree over the labels, p_n(y | x), fitted to the train pairs.

Source: Bamler and Mandt, "Extreme Classification via Adversarial Softmax Approximation" (2020), section 3.

Letters: H levels, M leaves (a power of two, L or more), V = M - 1 inner nodes in heap order (children 2v + 1, 2v + 2),
J nodes fitted together, S leaves below each, P its pairs, Q the width after PCA (plus 1 in the fit, for the bias).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Final

import numpy as np
import scipy  # its parts are imported when they are used

from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.sampling.tree_growth import Growth, stacked, upright
from xc_core.seeds import generator
from xc_core.shapes import F32, F64, I32, I64, PAD_ID, Array, spans

SEEN: Final = 1 << 15
"""Documents, at most, that PCA is computed on: a random sample, many times larger than the width of a vector."""
_TOGETHER: Final = 1 << 14
"""Documents projected at a time."""


@dataclass(frozen=True)
class LabelTree:
    """A fitted tree. A walk goes right at node v with probability sigma(w_v . x + b_v); x is a document after PCA:

        (7)  log p_n(y | x) = sum along the path to y of log sigma(zeta (w_v . x + b_v)),  zeta = +1 right, -1 left.

    A node with only padding on one side has w = 0 and b = -inf or +inf, so that side has probability exactly 0.
    """

    kind: ClassVar[str] = "tree"
    mean_D: F64
    directions_DQ: F64
    weight_VQ: F64
    bias_V: F64
    leaf_L: I64
    label_M: I64
    """The label of each leaf, ``PAD_ID`` for padding."""
    history_HT: F64
    """Equation 8, summed over the nodes of each level, after every split and every fit of weights; it never falls."""

    @classmethod
    def fit(cls, doc_ND: F32, truth: LabelMatrix, *, width: int, regulariser: float, seed: int) -> LabelTree:
        """Fit to every (document, positive) pair of ``truth`` (N x L), after PCA to min(``width``, D) directions.

        Each node maximises, in turn, over the weights (Newton) and over the split into equal halves,

            (8)  sum over its pairs of log sigma(zeta_y (w . x + b)) - regulariser (|w|^2 + b^2),
            (9)  Delta_y = sum over the documents x of label y of (w . x + b): the larger half goes right,

        from b = 0 and w = the dominant eigenvector of the covariance of the labels' summed documents, until no label
        moves. Among equal Delta_y the higher label goes right; padding has Delta = 0 and the highest ids. A label
        without documents has Delta = 0 too, and gets some probability. The paper chooses ``regulariser`` by validation.
        ``seed`` matters only for more than SEEN documents. Raises ConfigError if there are no documents or no labels,
        if a vector is not finite, or if a setting is out of range.
        """
        _check(doc_ND, truth, width, regulariser)
        mean, directions = _pca(doc_ND, width, generator(seed, "label-tree"))
        growth = Growth(_project(doc_ND, mean, directions), truth, regulariser)
        labels_M = growth.grow()
        leaf_L = labels_M.argsort()[: truth.num_labels]
        label_M = np.where(labels_M < truth.num_labels, labels_M, PAD_ID)
        weight_VQ, bias_V = growth.weight_VQ[:, :-1].copy(), growth.weight_VQ[:, -1].copy()
        return cls(mean, directions, weight_VQ, bias_V, leaf_L, label_M, stacked(growth.history))

    @property
    def num_labels(self) -> int:
        """L."""
        return len(self.leaf_L)

    @property
    def depth(self) -> int:
        """H: decisions from the root to a leaf, ceil(log2 L)."""
        return len(self.label_M).bit_length() - 1

    def log_prob(self, doc_BD: F32, labels_BK: I64) -> F64:
        """Return log p_n(y | x) (B x K) of K labels per document, equation 7, in O(Q log L) per pair.

        Finite for every label; -inf for ``PAD_ID`` (the holes of a shortlist). Raises ConfigError for documents of
        another width or with values that are not finite, and for ids that are not labels.
        """
        return self.path_log_prob(self.features(doc_BD), labels_BK)

    def path_log_prob(self, x_BQ: F64, labels_BK: I64) -> F64:
        """Return ``log_prob`` of documents whose ``features`` (B x Q) are known.

        Raises ConfigError for ids that are not labels.
        """
        is_label, size = labels_BK != PAD_ID, len(self.leaf_L)
        if len(labels_BK) != len(x_BQ) or ((labels_BK < 0) | (labels_BK >= size))[is_label].any():
            found, expected = f"labels of shape {labels_BK.shape}, or ids outside the tree", f"B x K ids below {size}"
            raise ConfigError(found, expected=expected, do="use the label map that the tree was fitted with")
        leaf_BK = self.leaf_L[np.where(is_label, labels_BK, 0)]
        total = np.zeros(labels_BK.shape)
        for level in range(self.depth):
            node_BK = (leaf_BK >> (self.depth - level)) + (1 << level) - 1
            right_BK = (leaf_BK >> (self.depth - level - 1)) & 1
            logit_BK = self._logits(x_BQ, node_BK)
            total += scipy.special.log_expit(np.where(right_BK, logit_BK, -logit_BK))
        return np.where(is_label, total, -np.inf)

    def walk(self, x_BQ: F64, random: np.random.Generator, count: int = 1) -> I64:
        """Draw ``count`` labels per document (B x count), with replacement, in O(Q log L) per label.

        ``x_BQ`` are the ``features`` of the documents. Raises ConfigError for a ``count`` below 0.
        """
        if count < 0:
            raise ConfigError(f"count {count}", expected="at least 0", do="raise it")
        node_BK = np.zeros((len(x_BQ), count), np.int64)
        for _ in range(self.depth):
            right_BK = random.random(node_BK.shape) < scipy.special.expit(self._logits(x_BQ, node_BK))
            node_BK = 2 * node_BK + 1 + right_BK
        return np.asarray(self.label_M[node_BK - len(self.bias_V)])

    def likely(self, doc_BD: F32, k: int) -> I32:
        """Return the likeliest labels (B x min(k, M), holes last) that a beam of ``k`` nodes per level finds.

        O(k Q log L) per document. The beam misses a likely label if an ancestor of it is less likely than ``k`` nodes
        of the same level, which may hold many unlikely labels.
        """
        x_BQ = self.features(doc_BD)
        node_BK: I64 = np.zeros((len(x_BQ), 1), np.int64)
        log_BK: F64 = np.zeros((len(x_BQ), 1))
        for _ in range(self.depth):
            logit_BK = self._logits(x_BQ, node_BK)
            log_BK = np.concatenate(
                [log_BK + scipy.special.log_expit(-logit_BK), log_BK + scipy.special.log_expit(logit_BK)], axis=1
            )
            node_BK = np.concatenate([2 * node_BK + 1, 2 * node_BK + 2], axis=1)
            best_BK = np.argsort(-log_BK, axis=1, kind="stable")[:, :k]
            node_BK = np.take_along_axis(node_BK, best_BK, axis=1)
            log_BK = np.take_along_axis(log_BK, best_BK, axis=1)
        return self.label_M[node_BK - len(self.bias_V)].astype(np.int32)  # padding has no probability, so it is last

    def arrays(self) -> dict[str, Array]:
        """Return the whole tree as plain arrays, to be saved."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> LabelTree:
        """Return the tree that ``arrays`` saved."""
        return cls(**{field.name: arrays[field.name] for field in fields(cls)})

    def features(self, doc_BD: F32) -> F64:
        """Return the documents after PCA (B x Q)."""
        if doc_BD.ndim != 2 or doc_BD.shape[1] != len(self.mean_D):
            found, expected = f"vectors of shape {doc_BD.shape}", f"B x {len(self.mean_D)}"
            raise ConfigError(found, expected=expected, do="use the encoder that the tree was fitted with")
        return _project(doc_BD, self.mean_D, self.directions_DQ)

    def _logits(self, x_BQ: F64, node_BK: I64) -> F64:
        """Return w . x + b of each document at K nodes (B x K)."""
        return np.asarray(np.einsum("bq,bkq->bk", x_BQ, self.weight_VQ[node_BK]) + self.bias_V[node_BK])


def _check(doc_ND: F32, truth: LabelMatrix, width: int, regulariser: float) -> None:
    """Raise ConfigError for documents, labels or settings to which no tree can be fitted."""
    shapes, settings = f"vectors of shape {doc_ND.shape}, labels {truth.shape}", f"{width=}, {regulariser=}"
    if doc_ND.ndim != 2 or len(doc_ND) != len(truth) or not doc_ND.size or not truth.num_labels:
        raise ConfigError(shapes, expected="N x D and N x L, none of them 0", do="pass documents and their labels")
    if width < 1 or not 0 < regulariser < np.inf:  # without a regulariser, separable labels have no optimum
        raise ConfigError(settings, expected="width at least 1, a regulariser above 0", do="fix the value")


def _checked_double(doc_BD: F32) -> F64:
    """Return vectors in double precision; raise ConfigError if they are not finite."""
    if not np.isfinite(doc_BD).all():
        raise ConfigError("vectors that are not finite", expected="finite numbers", do="check the training run")
    return doc_BD.astype(np.float64)


def _pca(doc_ND: F32, width: int, random: np.random.Generator) -> tuple[F64, F64]:
    """Return the mean (D) and the ``width`` leading eigenvectors of the covariance (D x Q) of up to SEEN documents."""
    if len(doc_ND) > SEEN:
        doc_ND = doc_ND[np.sort(random.choice(len(doc_ND), SEEN, replace=False))]
    sample = _checked_double(doc_ND)
    mean = sample.mean(axis=0)
    sample -= mean
    vectors = np.linalg.eigh(sample.T @ sample)[1]
    return mean, np.ascontiguousarray(upright(vectors[:, ::-1].T[:width]).T)


def _project(doc_BD: F32, mean_D: F64, directions_DQ: F64) -> F64:
    """Return the documents along the directions (B x Q)."""
    out = np.empty((len(doc_BD), directions_DQ.shape[1]))
    for rows in spans(len(doc_BD), _TOGETHER):
        out[rows] = (_checked_double(doc_BD[rows]) - mean_D) @ directions_DQ
    return out
