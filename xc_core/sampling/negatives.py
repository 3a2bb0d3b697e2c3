"""Sources of labels for a mini-batch: the batch's own positives, these and uniform draws, all labels.

Takes: LabelMatrix, document positions.                 Gives: NegativeSource.
May import: seeds, shapes, data.labels, sampling.base.  Never: calls a known positive a negative.
"""

from __future__ import annotations

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.sampling.base import NEGATIVES, EveryLabel, LabelPool, NegativesConfig, Pool, mask
from xc_core.sampling.noise import Noise
from xc_core.seeds import generator
from xc_core.shapes import F32, I64, Array


@NEGATIVES.register("in-batch")
class InBatch:
    """The union over the batch of sampled positives (all of them where ``positives`` is 0), and ``unseen`` labels.

    NGAME, algorithm 1, lines 6 to 8; M1 samples one positive a document (appendix C), M4 takes all. In the paper every
    label has a train document. Pairs that predictions leave out, ``filters``, are neither positives nor negatives.
    """

    def __init__(
        self, config: NegativesConfig, truth: LabelMatrix, seed: int, filters: LabelMatrix | None = None
    ) -> None:
        self.config, self.seed = config, seed
        self.truth = truth.first(config.positives) if config.first and config.positives else truth
        self.known = self.truth if filters is None or not len(filters.indices) else self.truth.union(filters)
        self._unseen = np.flatnonzero(self.truth.frequency_L() == 0) if config.unseen else np.zeros(0, np.int64)

    def pool(self, docs_B: I64, step: int) -> Pool:
        """Return the pool; sample and draw depend on the seed and ``step`` alone."""
        chosen = self._chosen(docs_B, step)
        return self._pool(docs_B, chosen, np.union1d(chosen.indices, self._drawn_unseen(step)).astype(np.int64))

    def refresh(self, epoch: int, doc_ND: F32, label_LD: F32) -> dict[str, float]:
        """Nothing to search."""
        return {}

    def noise(self) -> Noise | None:
        """Labels are not drawn from a distribution that prediction would have to know."""
        return None

    def arrays(self) -> dict[str, Array]:
        """No state."""
        return {}

    def load(self, arrays: dict[str, Array]) -> None:
        """No state."""

    def _drawn_unseen(self, step: int) -> I64:
        """Return up to ``unseen`` of the labels without a train document, without replacement."""
        if len(self._unseen) <= self.config.unseen:
            return self._unseen
        random = generator(self.seed, "unseen", step)
        return random.choice(self._unseen, self.config.unseen, replace=False, shuffle=False)

    def _chosen(self, docs_B: I64, step: int) -> LabelMatrix:
        """Return the positives that bring labels into the batch's pool: all, or the sampled ones."""
        own = self.truth.rows(docs_B)
        return self._sample(own, step) if self.config.positives else own

    def _learnt(self, docs_B: I64, chosen: LabelMatrix) -> LabelMatrix:
        """Return the positives to learn from where the pool holds them: those ``chosen``, or with ``share`` all."""
        return self.truth.rows(docs_B) if self.config.share else chosen

    def _pool(self, docs_B: I64, chosen: LabelMatrix, labels_U: I64) -> LabelPool:
        """Return the pool of ``labels_U`` (distinct, rising) with its masks."""
        learnt_BU = mask(self._learnt(docs_B, chosen), labels_U)
        return LabelPool(labels_U, learnt_BU, mask(self.known.rows(docs_B), labels_U))

    def _sample(self, own: LabelMatrix, step: int) -> LabelMatrix:
        """Keep up to ``positives`` positives of each document, random ones without replacement."""
        docs, _ = own.pairs()
        keys = generator(self.seed, "positives", step).random(len(docs))
        order = np.lexsort((keys, docs))
        rank = np.arange(len(docs)) - own.indptr[docs]
        kept = np.zeros(len(docs), bool)
        kept[order[rank < self.config.positives]] = True
        return own.where(kept)


@NEGATIVES.register("mixture")
class Mixture(InBatch):
    """The batch's positives and ``uniform`` labels drawn without replacement; all labels where there are no more.

    A drawn label that is a positive of some document is a known positive of it, learnt from only where it was sampled.
    """

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return the pool; sample and draw depend on the seed and ``step`` alone."""
        chosen = self._chosen(docs_B, step)
        if self.config.uniform >= self.truth.num_labels:
            labels_U = np.arange(self.truth.num_labels, dtype=np.int64)
        else:
            random = generator(self.seed, "uniform", step)
            drawn = random.choice(self.truth.num_labels, self.config.uniform, replace=False, shuffle=False)
            labels_U = np.union1d(chosen.indices, drawn).astype(np.int64)
        return self._pool(docs_B, chosen, labels_U)


@NEGATIVES.register("all")
class All(InBatch):
    """Every label (Renee, DEXML)."""

    def pool(self, docs_B: I64, step: int) -> EveryLabel:
        """Return all labels; the sample of positives depends on the seed and ``step`` alone."""
        return EveryLabel(self._learnt(docs_B, self._chosen(docs_B, step)), self.known.rows(docs_B))
