"""The vote of the nearest train documents: a label is as likely as the near documents that have it are near.

Takes: train documents' vectors, their labels, document vectors.  Gives: Neighbours, Votes.
May import: ann, data.labels, shapes.                             Never: reads a validation or test row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from xc_core.ann import Index, IndexConfig, build_index
from xc_core.data.labels import LabelMatrix
from xc_core.shapes import F32, I32, I64, PAD_ID, Shortlist

NEAREST: Final = 30
"""Train documents that vote. On validation rows of WordNetMini 20 and 50 are within 0.2 points of P@1."""
TEMPERATURE: Final = 0.05
"""How fast a vote fades with the cosine's distance from the nearest one's; 0.02 and 0.1 lose 0.3 points there."""

EXACT_UP_TO: Final = 50_000
"""Documents among which the nearest are searched exactly; among more in cells, for a text ten times faster."""
_CELLS: Final = IndexConfig(kind="ivf", probes=128)


@dataclass(frozen=True)
class Votes:
    """The votes for B documents, counted: M pairs of a document and a label that has a vote, and its share."""

    keys_M: I64
    """document * num_labels + label, rising, each once."""
    share_M: F32
    documents: int
    num_labels: int

    def labels(self) -> I32:
        """Return the labels that have a vote of each document, each once, holes last."""
        rows, ids = np.divmod(self.keys_M, self.num_labels)
        counts = np.bincount(rows, minlength=self.documents)
        out = np.full((self.documents, int(counts.max(initial=0))), PAD_ID, np.int32)
        out[rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)] = ids
        return out

    def of(self, ids_BK: I32) -> F32:
        """Return each candidate's share of its document's votes, between 0 and 1; 0 for a hole."""
        if not len(self.keys_M):
            return np.zeros(ids_BK.shape, np.float32)
        wanted = np.arange(len(ids_BK))[:, None] * np.int64(self.num_labels) + ids_BK
        at = np.minimum(np.searchsorted(self.keys_M, wanted), len(self.keys_M) - 1)
        found = (self.keys_M[at] == wanted) & (ids_BK != PAD_ID)
        return np.where(found, self.share_M[at], 0).astype(np.float32)


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
        return cls(build_index(train_ND, cls.searched(len(train_ND))), truth)

    @staticmethod
    def searched(documents: int) -> IndexConfig:
        """Return how the nearest among so many documents are searched."""
        return _CELLS if documents > EXACT_UP_TO else IndexConfig(kind="exact")

    def vote(self, doc_BD: F32) -> Votes:
        """Let the ``NEAREST`` train documents of each document vote.

        vote(x, l) = sum_j w_j [ l in P_j ] / sum_j w_j with w_j = exp(cos(x, x_j) / TEMPERATURE) over the nearest j.
        """
        docs, labels, weights = self._ballots(self.index.search(doc_BD, NEAREST))
        keys_M, place = np.unique(docs * np.int64(self.truth.num_labels) + labels, return_inverse=True)
        share_M = np.bincount(place, weights, minlength=len(keys_M)).astype(np.float32)
        return Votes(keys_M, share_M, len(doc_BD), self.truth.num_labels)

    def _ballots(self, nearest: Shortlist) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (document, label, weight) of every label of every neighbour."""
        best_B1 = nearest.scores_NK[:, :1].astype(np.float64)
        weights_BK = np.where(nearest.filled_NK, np.exp((nearest.scores_NK - best_B1) / TEMPERATURE), 0.0)
        weights_BK /= weights_BK.sum(1, keepdims=True)
        rows, columns = np.nonzero(nearest.filled_NK)
        voters = self.truth.rows(nearest.ids_NK[rows, columns].astype(np.int64))
        voter, labels = voters.pairs()
        return rows[voter], labels.astype(np.int64), weights_BK[rows, columns][voter]
