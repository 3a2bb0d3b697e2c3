"""Sources of labels for a mini-batch: the positives of its documents, these and uniform draws, or all labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.params import at_least
from xc_core.sampling.base import (
    NEGATIVES,
    Documents,
    LabelVectors,
    Negatives,
    NegativeSource,
    PairPool,
    Pool,
)
from xc_core.sampling.noise import Noise
from xc_core.seeds import generator
from xc_core.shapes import F32, I64, Array

S = TypeVar("S", bound=Negatives)


class Source(Generic[S]):
    """Base of sources: samples positives and builds the masks of a pool; has no state."""

    def __init__(self, settings: S, documents: Documents, seed: int) -> None:
        self.settings, self.seed = settings, seed
        truth, filters = documents.truth, documents.filters
        self.filters = filters if filters is not None and len(filters.indices) else None
        self.truth = truth.first(settings.positives) if settings.first and settings.positives else truth
        self.known = self.truth if self.filters is None else self.truth.union(self.filters)

    def pool(self, docs_B: I64, step: int) -> Pool:
        """Return the pool of ``docs_B``; samples depend on the seed and ``step`` alone."""
        raise NotImplementedError

    def refresh(self, epoch: int, doc_ND: F32, labels: LabelVectors) -> dict[str, float]:
        """Do nothing: there is no search."""
        return {}

    def estimates(self) -> dict[str, NegativeSource]:
        """Return nothing: pools are not weighted samples of all labels."""
        return {}

    def noise(self) -> Noise | None:
        """Return None: labels are not drawn from a distribution that prediction needs."""
        return None

    def arrays(self) -> dict[str, Array]:
        """Return no state."""
        return {}

    def load(self, arrays: dict[str, Array]) -> None:
        """There is no state."""

    def _chosen(self, docs_B: I64, step: int) -> LabelMatrix:
        """Return the positives that add labels to the batch's pool: all, or a sample."""
        positives = self.truth.rows(docs_B)
        return self._sample(positives, step) if self.settings.positives else positives

    def _to_learn(self, docs_B: I64, chosen: LabelMatrix) -> LabelMatrix:
        """Return the positives to learn from if the pool holds them: ``chosen``, or all with the setting ``share``."""
        return self.truth.rows(docs_B) if getattr(self.settings, "share", False) else chosen

    def _pool(self, docs_B: I64, chosen: LabelMatrix, labels_U: I64) -> PairPool:
        """Return the pool of ``labels_U`` (distinct, rising)."""
        return PairPool(self._to_learn(docs_B, chosen), self.known.rows(docs_B), labels_U)

    def _sample(self, positives: LabelMatrix, step: int) -> LabelMatrix:
        """Keep up to ``positives`` positives of each document, chosen at random without replacement."""
        docs, _ = positives.pairs()
        keys = generator(self.seed, "positives", step).random(len(docs))
        order = np.lexsort((keys, docs))
        keep = np.zeros(len(docs), bool)
        keep[order[positives.places() < self.settings.positives]] = True
        return positives.where(keep)


@dataclass(frozen=True, kw_only=True)
class Shared(Negatives):
    """Settings of sources whose pool is shared by the documents of a batch."""

    share: bool = False
    """Learn from every positive in the pool, whichever document added it (UniDEC: pick some labels), instead of from
    the sampled ones only."""


@NEGATIVES.register("in-batch")
@dataclass(frozen=True, kw_only=True)
class InBatch(Shared):
    """The positives of the batch's documents (NGAME, algorithm 1, lines 6 to 8).

    M1 samples one positive per document (appendix C), M4 takes all.
    """

    unseen: int = 0
    """Labels without train documents that are added to a pool. No document has them as a positive, so otherwise their
    rows keep their initial values while all others are pushed down, and a few of them are ranked first for every
    document (WordNetTags: 158 such labels of 19,071 cost 8 points of P@1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, unseen=0)

    def build(self, documents: Documents, seed: int) -> NegativeSource:
        """Return the source."""
        return InBatchSource(self, documents, seed)


P = TypeVar("P", bound=InBatch)


class InBatchSource(Source[P]):
    """The union of the batch's positives, sampled or all, and of ``unseen`` labels."""

    def __init__(self, settings: P, documents: Documents, seed: int) -> None:
        super().__init__(settings, documents, seed)
        self._unseen = np.flatnonzero(self.truth.frequency_L() == 0) if settings.unseen else np.zeros(0, np.int64)

    def pool(self, docs_B: I64, step: int) -> PairPool:
        """Return the pool; sample and draw depend on the seed and ``step`` alone."""
        chosen = self._chosen(docs_B, step)
        return self._pool(docs_B, chosen, np.union1d(chosen.indices, self.more(docs_B, step)).astype(np.int64))

    def more(self, docs_B: I64, step: int) -> I64:
        """Return the labels that are added to the positives."""
        return self._drawn_unseen(step)

    def _drawn_unseen(self, step: int) -> I64:
        """Draw up to ``unseen`` of the labels without train documents, without replacement."""
        if len(self._unseen) <= self.settings.unseen:
            return self._unseen
        random = generator(self.seed, "unseen", step)
        return random.choice(self._unseen, self.settings.unseen, replace=False, shuffle=False)


@NEGATIVES.register("mixture")
@dataclass(frozen=True, kw_only=True)
class Mixture(Shared):
    """The batch's positives and ``uniform`` labels drawn without replacement; all labels if there are no more.

    A drawn label that is a positive of a document is known for it, but is learnt from only if it was sampled (or with
    ``share``).
    """

    uniform: int = 1024
    """Labels drawn per batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, uniform=1)

    def build(self, documents: Documents, seed: int) -> NegativeSource:
        """Return the source."""
        return MixtureSource(self, documents, seed)


class MixtureSource(Source[Mixture]):
    """The batch's positives and uniform draws."""

    def pool(self, docs_B: I64, step: int) -> PairPool:
        """Return the pool; sample and draw depend on the seed and ``step`` alone."""
        chosen = self._chosen(docs_B, step)
        if self.settings.uniform >= self.truth.num_labels:
            labels_U = np.arange(self.truth.num_labels)
        else:
            random = generator(self.seed, "uniform", step)
            drawn = random.choice(self.truth.num_labels, self.settings.uniform, replace=False, shuffle=False)
            labels_U = np.union1d(chosen.indices, drawn).astype(np.int64)
        return self._pool(docs_B, chosen, labels_U)


@NEGATIVES.register("all")
@dataclass(frozen=True, kw_only=True)
class All(Shared):
    """Every label (Renee, DEXML)."""

    def build(self, documents: Documents, seed: int) -> NegativeSource:
        """Return the source."""
        return AllSource(self, documents, seed)


class AllSource(Source[All]):
    """All labels."""

    def pool(self, docs_B: I64, step: int) -> PairPool:
        """Return all labels; the sample of positives depends on the seed and ``step`` alone."""
        return PairPool(self._to_learn(docs_B, self._chosen(docs_B, step)), self.known.rows(docs_B))
