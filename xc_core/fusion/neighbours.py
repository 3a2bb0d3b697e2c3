"""The vote of the nearest train documents: a label is as likely as the near documents that have it are near.

Takes: train documents' vectors, their labels, document vectors.  Gives: Shortlist of documents, votes.
May import: ann, data.labels, shapes.                             Never: reads a validation or test row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from xc_core.ann import Index, IndexConfig, build_index
from xc_core.data.labels import LabelMatrix
from xc_core.shapes import F32, I32, PAD_ID, Shortlist

NEAREST: Final = 30
"""Train documents that vote. On validation rows of WordNetMini 20 and 50 are within 0.2 points of P@1."""
TEMPERATURE: Final = 0.05
"""How fast a vote fades with the cosine's distance from the nearest one's; 0.02 and 0.1 lose 0.3 points there."""


@dataclass(frozen=True)
class Neighbours:
    """Train documents that can be searched, and their labels."""

    index: Index
    truth: LabelMatrix

    @classmethod
    def of(cls, train_ND: F32, truth: LabelMatrix) -> Neighbours:
        """Build over the train documents' vectors (N x D, unit); raise ValueError for another number of label rows."""
        if len(train_ND) != len(truth):
            raise ValueError(f"{len(train_ND)} vectors for {len(truth)} documents")
        return cls(build_index(train_ND, IndexConfig()), truth)

    def nearest(self, doc_BD: F32) -> Shortlist:
        """Return the train documents nearest to each document, B x ``NEAREST``."""
        return self.index.search(doc_BD, NEAREST)

    def labels(self, nearest: Shortlist) -> I32:
        """Return the labels of each document's neighbours, each once, holes last."""
        docs, labels, _ = self._ballots(nearest)
        keys = np.unique(docs * np.int64(self.truth.num_labels) + labels)
        rows, ids = np.divmod(keys, self.truth.num_labels)
        counts = np.bincount(rows, minlength=len(nearest))
        out = np.full((len(nearest), int(counts.max(initial=0))), PAD_ID, np.int32)
        out[rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)] = ids
        return out

    def votes(self, nearest: Shortlist, ids_BK: I32) -> F32:
        """Return each candidate's share of its document's votes, between 0 and 1; 0 for a hole.

        vote(x, l) = sum_j w_j [ l in P_j ] / sum_j w_j with w_j = exp(cos(x, x_j) / TEMPERATURE) over the nearest j.
        """
        docs, labels, weights = self._ballots(nearest)
        width = np.int64(self.truth.num_labels)
        keys, place = np.unique(docs * width + labels, return_inverse=True)
        won = np.bincount(place, weights, minlength=len(keys)).astype(np.float32)
        wanted = np.arange(len(ids_BK))[:, None] * width + ids_BK
        at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        found = (keys[at] == wanted) & (ids_BK != PAD_ID) if len(keys) else np.zeros(ids_BK.shape, bool)
        return np.where(found, won[at] if len(keys) else 0, 0).astype(np.float32)

    def _ballots(self, nearest: Shortlist) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (document, label, weight) of every label of every neighbour."""
        best_B1 = nearest.scores_NK[:, :1].astype(np.float64)
        weights_BK = np.where(nearest.filled_NK, np.exp((nearest.scores_NK - best_B1) / TEMPERATURE), 0.0)
        weights_BK /= weights_BK.sum(1, keepdims=True)
        rows, columns = np.nonzero(nearest.filled_NK)
        voters = self.truth.rows(nearest.ids_NK[rows, columns].astype(np.int64))
        voter, labels = voters.pairs()
        return rows[voter], labels.astype(np.int64), weights_BK[rows, columns][voter]
