"""The quality of a clustering: cohesion, and the figures of NGAME's Theorem 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from torch import Tensor

from xc_core.cluster.on_card import squares
from xc_core.data.labels import LabelMatrix, ragged_positions
from xc_core.seeds import generator
from xc_core.shapes import F32, I32, I64, Bool, Vectors, spans

_ROWS_AT_ONCE: Final = 1 << 15
_AT_ONCE: Final = 32
"""Sampled documents whose cosines are in memory at the same time."""
_WIDE: Final = 1 << 17
"""Documents or labels whose cosines with these are in memory at the same time: 32 x 131,072 x 4 bytes = 17 MB."""


def cohesion(vectors_ND: F32 | Tensor, order_N: I64, sizes: I64) -> float:
    """Return the mean cosine over all pairs in the same cluster (unit vectors); nan if no cluster has two points.

    Computed from |sum of a cluster|^2 = n + the sum of the cosines of its ordered pairs.
    """
    pairs = float((sizes * (sizes - 1)).sum())
    if not pairs:
        return float("nan")
    squared = (
        squares(vectors_ND, order_N, sizes) if isinstance(vectors_ND, Tensor) else _squares(vectors_ND, order_N, sizes)
    )
    return (squared - len(order_N)) / pairs


def _squares(vectors_ND: F32, order_N: I64, sizes: I64) -> float:
    """Return the sum of |sum of a cluster|^2 over all clusters."""
    starts = np.cumsum(sizes) - sizes
    total = 0.0
    for clusters in np.array_split(np.arange(len(sizes)), min(len(order_N) // _ROWS_AT_ONCE + 1, len(sizes))):
        first = starts[clusters]
        rows = order_N[first[0] : first[-1] + sizes[clusters[-1]]]
        sums = np.add.reduceat(vectors_ND[rows], first - first[0], axis=0)
        total += float(np.einsum("jd,jd->", sums, sums, dtype=np.float64))
    return total


@dataclass(frozen=True)
class Theorem1:
    """Both sides of NGAME's Theorem 1 (constants: Theorem 4, appendix F of the longer version), on a sample.

    The theorem states that ``missed`` <= ``bound`` = c1 eps1 + c2 eps2.
    """

    radius: float
    eps1: float
    """Share of positive pairs whose document and label are further apart than r."""
    eps2: float
    """Share of pairs of documents that are within 2r but in different clusters."""
    missed: float
    """Share of all (document, label) pairs that are missed: r-hard negatives whose label is a positive of some
    document, but of none in the same cluster."""
    missed_share: float
    """Missed pairs as a share of the r-hard negatives; nan if there are none."""
    c1: float
    c2: float
    bound: float


def theorem1(
    vectors: tuple[Vectors, F32],
    truth: LabelMatrix,
    known: LabelMatrix,
    clusters: tuple[I64, I64],
    *,
    radius: float,
    seed: int,
    sample: int = 512,
) -> Theorem1:
    """Measure Theorem 1 on ``sample`` documents against all labels and all documents.

    ``vectors`` are the unit vectors of documents (N x D) and labels (L x D); ``known`` are the pairs that are not
    negatives: those of ``truth`` and filtered ones; ``clusters`` is (order_N, sizes), as from ``balanced_clusters``.
    Distances come from cosines: |a - b|^2 = 2 - 2 a.b. The theorem is about labels that have documents; a label without
    any is not a negative here, because no batch can hold it. Cost sample x (N + L) x D.
    """
    doc_ND, label_LD = vectors
    size = len(doc_ND)
    chosen = np.sort(generator(seed, "theorem1").choice(size, min(sample, size), replace=False))
    clustering = _Clustering.of(truth, known, clusters)
    eps1 = _far_positives(doc_ND, label_LD, truth, radius)
    tallies = [_tally(doc_ND, label_LD, clustering, chosen[rows], radius) for rows in spans(len(chosen), _AT_ONCE)]
    apart, hard, missed = (sum(column) for column in zip(*tallies, strict=True))
    eps2 = apart / (len(chosen) * size)
    c1, c2 = constants(truth)
    return Theorem1(
        radius=radius,
        eps1=eps1,
        eps2=eps2,
        missed=missed / (len(chosen) * max(int(clustering.used_L.sum()), 1)),
        missed_share=missed / hard if hard else float("nan"),
        c1=c1,
        c2=c2,
        bound=c1 * eps1 + c2 * eps2,
    )


@dataclass(frozen=True)
class _Clustering:
    """Positives, pairs that are not negatives, clusters, the cluster of each document, labels that have documents."""

    truth: LabelMatrix
    known: LabelMatrix
    order_N: I64
    sizes: I64
    cluster_N: I64
    used_L: Bool

    @classmethod
    def of(cls, truth: LabelMatrix, known: LabelMatrix, clusters: tuple[I64, I64]) -> _Clustering:
        order_N, sizes = clusters
        cluster_N = np.empty(len(order_N), np.int64)
        cluster_N[order_N] = np.repeat(np.arange(len(sizes)), sizes)
        return cls(truth, known, order_N, sizes, cluster_N, truth.frequency_L() > 0)

    def mates(self, docs: I64) -> tuple[I64, I64]:
        """Return (position in ``docs``, document) of all documents in the same cluster."""
        clusters = self.cluster_N[docs]
        counts = self.sizes[clusters]
        starts = (np.cumsum(self.sizes) - self.sizes)[clusters]
        return np.repeat(np.arange(len(docs)), counts), self.order_N[ragged_positions(starts, counts)]


def _far_positives(doc_ND: Vectors, label_LD: F32, truth: LabelMatrix, radius: float) -> float:
    """Return eps1; from 100,000 positive pairs on, measured on at least 50,000 that are evenly spread."""
    docs, labels = truth.pairs()
    step = max(len(docs) // 50_000, 1)
    cosines = np.einsum("pd,pd->p", doc_ND[docs[::step]], label_LD[labels[::step]])
    return float((cosines < 1 - radius**2 / 2).mean()) if len(docs) else 0.0


def _tally(doc_ND: Vectors, label_LD: F32, clustering: _Clustering, docs: I64, radius: float) -> tuple[int, int, int]:
    """Count near documents of other clusters, r-hard negatives, and those that no document of the cluster has."""
    apart = hard = missed = 0
    for columns in spans(len(doc_ND), _WIDE):
        near = (doc_ND[docs] @ doc_ND[columns].T) >= 1 - (2 * radius) ** 2 / 2
        apart += int((near & (clustering.cluster_N[docs][:, None] != clustering.cluster_N[columns])).sum())
    known_pairs, (owner, mates) = clustering.known.rows(docs).pairs(), clustering.mates(docs)
    mate, labels = clustering.truth.rows(mates).pairs()
    for columns in spans(len(label_LD), _WIDE):
        hard_BU = ((doc_ND[docs] @ label_LD[columns].T) >= 1 - radius**2 / 2) & clustering.used_L[columns]
        _clear(hard_BU, known_pairs, columns)
        hard += int(hard_BU.sum())
        _clear(hard_BU, (owner[mate], labels), columns)
        missed += int(hard_BU.sum())
    return apart, hard, missed


def _clear(marked_BU: Bool, pairs: tuple[I64, I32], columns: slice) -> None:
    """Set ``pairs`` (row, label) to False, those that are in the block of labels ``columns``."""
    rows, labels = pairs
    inside = (labels >= columns.start) & (labels < columns.stop)
    marked_BU[rows[inside], labels[inside] - columns.start] = False


def constants(truth: LabelMatrix) -> tuple[float, float]:
    """Return c1 = q_mean (mu1 + sigma1 sqrt(L)) / N and c2 = (p_mean + sigma2 sqrt(N)) N / (q_min L).

    p_i: positives of document i; q_l: documents of label l. Labels without documents are left out because the theorem
    divides by q_l. Both are nan if no label has a document.
    """
    size = len(truth)
    p = truth.counts_N.astype(np.float64)
    q = truth.frequency_L().astype(np.float64)
    q = q[q > 0]
    if not len(q):
        return float("nan"), float("nan")
    ratio = (size - q) / q
    c1 = q.mean() * (ratio.mean() + ratio.std() * np.sqrt(len(q))) / size
    c2 = (p.mean() + p.std() * np.sqrt(size)) * size / (q.min() * len(q))
    return float(c1), float(c2)
