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
    label has a train document.
    """

    def __init__(self, config: NegativesConfig, truth: LabelMatrix, seed: int) -> None:
        self.config, self.seed = config, seed
        self.truth = truth.first(config.positives) if config.first and config.positives else truth
        self._unseen = np.flatnonzero(self.truth.frequency_L() == 0) if config.unseen else np.zeros(0, np.int64)

    def pool(self, docs_B: I64, step: int) -> Pool:
        """Return the pool; sample and draw depend on the seed and ``step`` alone."""
        known, chosen = self._positives(docs_B, step)
        return self._pool(known, chosen, np.union1d(chosen.indices, self._drawn_unseen(step)).astype(np.int64))

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

    def _positives(self, docs_B: I64, step: int) -> tuple[LabelMatrix, LabelMatrix]:
        """Return all positives of the batch and the sampled ones."""
        known = self.truth.rows(docs_B)
        return known, self._sample(known, step) if self.config.positives else known

    def _pool(self, known: LabelMatrix, chosen: LabelMatrix, labels_U: I64) -> LabelPool:
        """Return the pool of ``labels_U`` (distinct, rising) with its masks."""
        known_BU = mask(known, labels_U)
        return LabelPool(labels_U, known_BU if self.config.share else mask(chosen, labels_U), known_BU)

    def _sample(self, known: LabelMatrix, step: int) -> LabelMatrix:
        """Keep up to ``positives`` positives of each document, random ones without replacement."""
        docs, _ = known.pairs()
        keys = generator(self.seed, "positives", step).random(len(docs))
        order = np.lexsort((keys, docs))
        rank = np.arange(len(docs)) - known.indptr[docs]
        kept = np.zeros(len(docs), bool)
        kept[order[rank < self.config.positives]] = True
        return known.where(kept)


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


@NEGATIVES.register("all")
class All(InBatch):
    """Every label (Renee, DEXML)."""

    def pool(self, docs_B: I64, step: int) -> EveryLabel:
        """Return all labels; the sample of positives depends on the seed and ``step`` alone."""
        known, chosen = self._positives(docs_B, step)
        return EveryLabel(known if self.config.share else chosen, known)
