"""Documents and labels that label trees are fitted to, and the slow twin of a fit."""

from __future__ import annotations

import numpy as np

from tests.naive import label_tree as naive
from xc_core.data.labels import LabelMatrix
from xc_core.sampling.label_tree import LabelTree
from xc_core.shapes import F32


def world(
    labels: int, *, docs: int = 60, width: int = 6, noise: float = 0.6, most: int = 3, seed: int = 0
) -> tuple[F32, LabelMatrix]:
    """Return documents around the mean of their one to ``most`` labels; label L - 1 has none if L > 4."""
    random = np.random.default_rng(seed)
    middles = random.standard_normal((labels, width))
    used = labels - (labels > 4)
    rows = [random.choice(used, random.integers(1, min(most, used) + 1), replace=False) for _ in range(docs)]
    vectors = np.array([middles[row].mean(0) for row in rows]) + noise * random.standard_normal((docs, width))
    truth = LabelMatrix.from_pairs(
        np.repeat(np.arange(docs), list(map(len, rows))), np.concatenate(rows), (docs, labels)
    )
    return vectors.astype(np.float32), truth


def positives(truth: LabelMatrix) -> list[set[int]]:
    return [set(truth.row(i).tolist()) for i in range(len(truth))]


def slow(vectors: F32, truth: LabelMatrix, width: int, regulariser: float, *, resplit: bool = True) -> naive.Tree:
    mean, directions = naive.pca(vectors, width)
    return naive.fit((vectors - mean) @ directions, positives(truth), truth.num_labels, regulariser, resplit=resplit)


def every(labels: int, docs: int) -> np.ndarray:
    return np.broadcast_to(np.arange(labels), (docs, labels))


def train_likelihood(tree: LabelTree, vectors: F32, truth: LabelMatrix) -> float:
    docs, labels = truth.pairs()
    return float(tree.log_prob(vectors[docs], labels[:, None].astype(np.int64)).mean())
