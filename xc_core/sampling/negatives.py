"""Sources of labels for a mini-batch: the batch's own positives, uniform draws, hard negatives of a search.

Takes: LabelMatrix, document positions.                      Gives: NegativeSource.
May import: seeds, shapes, ann, data.labels, sampling.base.  Never: calls a known positive a negative.
"""

from __future__ import annotations

import numpy as np

from xc_core.ann import IndexConfig, build_index
from xc_core.data.labels import LabelMatrix
from xc_core.sampling.base import NEGATIVES, LabelPool, NegativesConfig
from xc_core.sampling.mining import hard_negatives
from xc_core.seeds import generator
from xc_core.shapes import F32, I32, I64, PAD_ID, Array, Bool

_DOCS_AT_ONCE = 4096


@NEGATIVES.register("in-batch")
class InBatch:
    """The union over the batch of sampled positives (all of them where ``positives`` is 0).

    NGAME, algorithm 1, lines 6 to 8; M1 samples one positive a document (appendix C), M4 takes all.
    """

    def __init__(self, config: NegativesConfig, truth: LabelMatrix, seed: int) -> None:
        self.config, self.truth, self.seed = config, truth, seed

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return the pool; the sample depends on the seed and ``step`` alone."""
        known, chosen = self._positives(docs_B, step)
        return self._pool(known, chosen, np.unique(chosen.indices).astype(np.int64))

    def refresh(self, epoch: int, doc_ND: F32, label_LD: F32) -> dict[str, float]:
        """Nothing to search."""
        return {}

    def arrays(self) -> dict[str, Array]:
        """No state."""
        return {}

    def load(self, arrays: dict[str, Array]) -> None:
        """No state."""

    def _positives(self, docs_B: I64, step: int) -> tuple[LabelMatrix, LabelMatrix]:
        """Return all positives of the batch and the sampled ones."""
        known = self.truth.rows(docs_B)
        return known, self._sample(known, step) if self.config.positives else known

    def _pool(self, known: LabelMatrix, chosen: LabelMatrix, labels_U: I64) -> LabelPool:
        """Return the pool of ``labels_U`` (distinct, rising) with its masks."""
        known_BU = mask(known, labels_U)
        return LabelPool(labels_U, known_BU if self.config.share else mask(chosen, labels_U), known_BU)

    def _sample(self, known: LabelMatrix, step: int) -> LabelMatrix:
        """Keep up to ``positives`` random positives of each document, without replacement."""
        docs, labels = known.pairs()
        keys = generator(self.seed, "positives", step).random(len(docs))
        order = np.lexsort((keys, docs))
        rank = np.arange(len(docs)) - known.indptr[docs]
        kept = np.sort(order[rank < self.config.positives])
        counts = np.bincount(docs[kept], minlength=len(known))
        return LabelMatrix(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), labels[kept], known.num_labels)


@NEGATIVES.register("mixture")
class Mixture(InBatch):
    """The batch's positives and ``uniform`` labels drawn without replacement; all labels where there are no more.

    A drawn label that is a positive of some document is a known positive of it, learnt from only where it was sampled.
    """

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return the pool; sample and draw depend on the seed and ``step`` alone."""
        known, chosen = self._positives(docs_B, step)
        if self.config.uniform >= self.truth.num_labels:
            labels_U = np.arange(self.truth.num_labels, dtype=np.int64)
        else:
            random = generator(self.seed, "uniform", step)
            drawn = random.choice(self.truth.num_labels, self.config.uniform, replace=False, shuffle=False)
            labels_U = np.union1d(chosen.indices, drawn).astype(np.int64)
        return self._pool(known, chosen, labels_U)


@NEGATIVES.register("mined")
class Mined(InBatch):
    """The batch's sampled positives and, for each document, ``hard`` of the hard negatives that a search found for it.

    With ``share`` a neighbour's hard negative that is a positive of the document is a positive to learn from, P_i being
    intersected with the whole pool (UniDEC, section 3.2 and algorithm 1). Without it, and with one positive and one
    hard negative, it is ANCE's source.
    """

    def __init__(self, config: NegativesConfig, truth: LabelMatrix, seed: int) -> None:
        super().__init__(config, truth, seed)
        self.hard_NK: I32 = np.zeros((len(truth), 0), np.int32)

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return the pool; samples depend on the seed, ``step`` and the last search."""
        known, chosen = self._positives(docs_B, step)
        found_BK = self.hard_NK[docs_B]
        keys = generator(self.seed, "hard", step).random(found_BK.shape)
        keys[found_BK == PAD_ID] = np.inf
        drawn = np.take_along_axis(found_BK, np.argsort(keys, axis=1, kind="stable")[:, : self.config.hard], 1)
        return self._pool(known, chosen, np.union1d(chosen.indices, drawn[drawn != PAD_ID]).astype(np.int64))

    def refresh(self, epoch: int, doc_ND: F32, label_LD: F32) -> dict[str, float]:
        """Find the hard negatives of every document in the banks where due."""
        if not self.config.due(epoch):
            return {}
        index = build_index(label_LD, IndexConfig(seed=self.seed))
        width = self.config.search + int(self.truth.counts_N.max(initial=0))
        found = []
        for start in range(0, len(doc_ND), _DOCS_AT_ONCE):
            block = slice(start, start + _DOCS_AT_ONCE)
            short = index.search(np.ascontiguousarray(doc_ND[block]), width)
            rows = np.arange(start, start + len(short))
            found.append(hard_negatives(short, self.truth.rows(rows), self.config.search).ids_NK)
        self.hard_NK = np.concatenate(found) if found else self.hard_NK
        return {"hard_negatives": float((self.hard_NK != PAD_ID).sum(1).mean()) if len(self.hard_NK) else 0.0}

    def arrays(self) -> dict[str, Array]:
        """Return what the last search found."""
        return {"hard": self.hard_NK}

    def load(self, arrays: dict[str, Array]) -> None:
        """Take over what a search found."""
        self.hard_NK = arrays["hard"].astype(np.int32)


def mask(positives: LabelMatrix, labels_U: I64) -> Bool:
    """True where a pooled label is among a document's ``positives`` (B x U); ``labels_U`` is distinct and rising."""
    docs, labels = positives.pairs()
    out = np.zeros((len(positives), len(labels_U)), bool)
    if len(labels_U):
        at = np.minimum(np.searchsorted(labels_U, labels), len(labels_U) - 1)
        found = labels_U[at] == labels
        out[docs[found], at[found]] = True
    return out
