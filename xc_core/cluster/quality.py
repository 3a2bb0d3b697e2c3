"""How good a clustering is: cohesion, and the figures of NGAME's Theorem 1, which nobody reports.

Takes: vectors, clusters, positives.   Gives: numbers.
May import: seeds, shapes, data.labels.  Never: logs or decides.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.seeds import generator
from xc_core.shapes import F32, I64


def cohesion(vectors_ND: F32, order_N: I64, sizes: I64) -> float:
    """Return the mean cosine over all pairs that share a cluster (unit vectors); nan where no cluster has two points.

    Uses |sum of a cluster|^2 = n + sum over its ordered pairs of the cosine.
    """
    starts = np.cumsum(sizes) - sizes
    sums = np.add.reduceat(vectors_ND[order_N], starts, axis=0)
    squares = np.einsum("jd,jd->j", sums, sums)
    pairs = float((sizes * (sizes - 1)).sum())
    return float((squares - sizes).sum()) / pairs if pairs else float("nan")


@dataclass(frozen=True)
class Theorem1:
    """Both sides of NGAME's Theorem 1 (constants: Theorem 4, appendix F of the longer version), on a sample.

    ``missed`` <= ``bound`` = c1 eps1 + c2 eps2 is what the theorem says; ``missed_share`` is missed over all r-hard
    negatives: what a user wants to know.
    """

    radius: float
    eps1: float
    """P over positive pairs that document and label are further apart than r."""
    eps2: float
    """P over pairs of documents that they are within 2r but in different clusters."""
    missed: float
    """Share of all (document, label) pairs that are r-hard negatives whose label no cluster mate has."""
    missed_share: float
    """The same as a share of the r-hard negatives; nan where there is none."""
    c1: float
    c2: float
    bound: float

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name."""
        return asdict(self)


def theorem1(
    doc_ND: F32,
    label_LD: F32,
    truth: LabelMatrix,
    clusters: tuple[I64, I64],
    *,
    radius: float,
    seed: int,
    sample: int = 512,
) -> Theorem1:
    """Measure Theorem 1 on ``sample`` documents against all labels and all documents (unit vectors).

    ``clusters`` is (order_N, sizes) as balanced_clusters gives it. Distances come from cosines: |a - b|^2 = 2 - 2 a.b.
    Cost sample x (N + L) x D.
    """
    order_N, sizes = clusters
    size = len(doc_ND)
    cluster_N = np.empty(size, np.int64)
    cluster_N[order_N] = np.repeat(np.arange(len(sizes)), sizes)
    chosen = np.sort(generator(seed, "theorem1").choice(size, min(sample, size), replace=False))
    cos_far, cos_2r = 1 - radius**2 / 2, 1 - (2 * radius) ** 2 / 2
    docs, labels = truth.pairs()
    step = max(len(docs) // 50_000, 1)
    positive_cos = np.einsum("pd,pd->p", doc_ND[docs[::step]], label_LD[labels[::step]])
    eps1 = float((positive_cos < cos_far).mean()) if len(docs) else 0.0
    apart = cluster_N[chosen][:, None] != cluster_N[None, :]
    eps2 = float((((doc_ND[chosen] @ doc_ND.T) >= cos_2r) & apart).mean())
    hard = (doc_ND[chosen] @ label_LD.T) >= cos_far
    hard &= ~truth.rows(chosen).contains(np.arange(len(chosen))[:, None], np.arange(truth.num_labels)[None, :])
    missed = hard & ~_labels_of_mates(truth, cluster_N, chosen)
    c1, c2 = constants(truth)
    return Theorem1(
        radius=radius,
        eps1=eps1,
        eps2=eps2,
        missed=float(missed.mean()),
        missed_share=float(missed.sum() / hard.sum()) if hard.any() else float("nan"),
        c1=c1,
        c2=c2,
        bound=c1 * eps1 + c2 * eps2,
    )


def _labels_of_mates(
    truth: LabelMatrix, cluster_N: I64, chosen: I64
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """True where a label is positive for some document in the chosen document's cluster (sample x L)."""
    docs, labels = truth.pairs()
    wanted, row_of = np.unique(cluster_N[chosen], return_inverse=True)
    at = np.searchsorted(wanted, cluster_N[docs])
    inside = (at < len(wanted)) & (wanted[np.minimum(at, len(wanted) - 1)] == cluster_N[docs])
    has = np.zeros((len(wanted), truth.num_labels), bool)
    has[at[inside], labels[inside]] = True
    return np.asarray(has[row_of])


def constants(truth: LabelMatrix) -> tuple[float, float]:
    """Return c1 = q_mean (mu1 + sigma1 sqrt(L)) / N and c2 = (p_mean + sigma2 sqrt(N)) N / (q_min L).

    p_i: positives of document i; q_l: documents of label l, labels without any left out (the theorem divides by q_l).
    """
    size = len(truth)
    p = truth.counts_N.astype(np.float64)
    q = truth.frequency_L().astype(np.float64)
    q = q[q > 0]
    ratio = (size - q) / q
    c1 = q.mean() * (ratio.mean() + ratio.std() * np.sqrt(len(q))) / size
    c2 = (p.mean() + p.std() * np.sqrt(size)) * size / (q.min() * len(q))
    return float(c1), float(c2)
