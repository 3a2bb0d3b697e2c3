"""Sources of labels for a mini-batch: in-batch negatives, the positives of the other documents.

Takes: LabelMatrix, document positions.                 Gives: NegativeSource.
May import: seeds, shapes, data.labels, sampling.base.  Never: calls a known positive a negative.
"""

from __future__ import annotations

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.sampling.base import NEGATIVES, LabelPool, NegativesConfig
from xc_core.seeds import generator
from xc_core.shapes import I64, Bool


@NEGATIVES.register("in-batch")
class InBatch:
    """The union over the batch of sampled positives (all of them where ``positives`` is 0).

    NGAME, algorithm 1, lines 6 to 8; M1 samples one positive a document (appendix C), M4 takes all.
    """

    def __init__(self, config: NegativesConfig, truth: LabelMatrix, seed: int) -> None:
        self.config, self.truth, self.seed = config, truth, seed

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return the pool; the sample depends on the seed and ``step`` alone."""
        known = self.truth.rows(docs_B)
        chosen = self._sample(known, step) if self.config.positives else known
        labels_U = np.unique(chosen.indices).astype(np.int64)
        return LabelPool(labels_U, mask(chosen, labels_U), mask(known, labels_U))

    def _sample(self, known: LabelMatrix, step: int) -> LabelMatrix:
        """Keep up to ``positives`` random positives of each document, without replacement."""
        docs, labels = known.pairs()
        keys = generator(self.seed, "positives", step).random(len(docs))
        order = np.lexsort((keys, docs))
        rank = np.arange(len(docs)) - known.indptr[docs]
        kept = np.sort(order[rank < self.config.positives])
        counts = np.bincount(docs[kept], minlength=len(known))
        return LabelMatrix(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), labels[kept], known.num_labels)


def mask(positives: LabelMatrix, labels_U: I64) -> Bool:
    """True where a pooled label is among a document's ``positives`` (B x U); ``labels_U`` is distinct and rising."""
    docs, labels = positives.pairs()
    out = np.zeros((len(positives), len(labels_U)), bool)
    if len(labels_U):
        at = np.minimum(np.searchsorted(labels_U, labels), len(labels_U) - 1)
        found = labels_U[at] == labels
        out[docs[found], at[found]] = True
    return out
