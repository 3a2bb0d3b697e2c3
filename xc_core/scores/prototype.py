"""The score ``prototype``: the cosine of the document and the label's text, enriched by the label's train documents."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from xc_core.ann import Auto, IndexPart
from xc_core.data.labels import LabelMatrix
from xc_core.params import at_least
from xc_core.scores.base import SCORES, FittedScore, HasIndex, ScoreData
from xc_core.scores.vectors import ByVectors, VectorScore
from xc_core.shapes import F32


@SCORES.register("prototype")
@dataclass(frozen=True, kw_only=True)
class Prototype(ByVectors, HasIndex):
    """x . v_l,  v_l = normalised(E(z_l) + weight m_l),  m_l = normalised(sum of the vectors of the label's documents).

    A label without documents has its text's vector. Nothing is trained, and each fold reads its own documents only.
    """

    weight: float = 2.0
    """Weight of the documents; the text has 1. Chosen from 0.25, 0.5, 1 and 2 on validation documents of three
    datasets (docs/lab-notes/2026-11-22-frequency-in-m4.md)."""
    index: IndexPart = field(default_factory=Auto)

    def __post_init__(self) -> None:
        at_least(self, weight=0)

    def fit(self, data: ScoreData) -> FittedScore:
        """Build the index over the prototypes."""
        return VectorScore.build(prototypes(data.label_vectors(), data.vectors(), data.truth, self.weight), self.index)


def prototypes(text_LD: F32, doc_ND: F32, truth: LabelMatrix, weight: float) -> F32:
    """Return a unit vector per label (L x D): its text's vector plus ``weight`` times the direction of its documents.

    Raises ValueError if documents and labels are not those of ``truth``.
    """
    from scipy.sparse import csr_matrix

    if truth.shape != (len(doc_ND), len(text_LD)):
        raise ValueError(f"{len(doc_ND)} documents and {len(text_LD)} labels, and pairs of {truth.shape}")
    ones = np.ones(len(truth.indices), np.float32)
    sum_LD = csr_matrix((ones, truth.indices, truth.indptr), truth.shape).T @ doc_ND
    return _normalised(text_LD + np.float32(weight) * _normalised(np.asarray(sum_LD, np.float32)))


def _normalised(vectors_LD: F32) -> F32:
    """Return unit vectors; zero stays zero."""
    return np.asarray(vectors_LD / np.maximum(np.linalg.norm(vectors_LD, axis=1, keepdims=True), 1e-12), np.float32)
