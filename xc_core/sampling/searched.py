"""Sources with hard negatives of a search: ANCE's and UniDEC's pool, ASTRA's unbiased sample of all labels.

Takes: LabelMatrix, document positions, stale vectors.       Gives: NegativeSource.
May import: seeds, shapes, ann, data.labels, sampling.*.     Never: calls a known positive a negative.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np

from xc_core.ann import Index, IndexConfig, build_index, recall
from xc_core.data.labels import LabelMatrix
from xc_core.sampling.base import NEGATIVES, LabelPool, NegativesConfig, mask
from xc_core.sampling.mining import hard_negatives, search_rows
from xc_core.sampling.negatives import InBatch
from xc_core.seeds import generator
from xc_core.shapes import F32, I32, I64, PAD_ID, Array, Shortlist

_SAMPLE: Final = 256
"""Documents on which staleness is measured."""


@NEGATIVES.register("mined")
class Mined(InBatch):
    """The batch's sampled positives and, for each document, ``hard`` of the hard negatives that a search found for it.

    With ``share`` a neighbour's hard negative that is a positive of the document is a positive to learn from, P_i being
    intersected with the whole pool (UniDEC, section 3.2 and algorithm 1). Without it, and with one positive and one
    hard negative, it is ANCE's source.

    With ``ahead`` a search runs in a thread of its own from that many epochs before its use, on a copy of the vectors
    as they were then (ASTRA, section 3.2). What it finds depends on these vectors alone, not on when it ends.
    """

    def __init__(
        self, config: NegativesConfig, truth: LabelMatrix, seed: int, filters: LabelMatrix | None = None
    ) -> None:
        super().__init__(config, truth, seed, filters)
        self.hard_NK: I32 = np.zeros((len(truth), 0), np.int32)
        self._found: Future[I32] | None = None

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return the pool; samples depend on the seed, ``step`` and the last search."""
        chosen = self._chosen(docs_B, step)
        drawn = self._draw(self.hard_NK[docs_B], self.config.hard, step)
        return self._pool(docs_B, chosen, np.union1d(chosen.indices, drawn[drawn != PAD_ID]).astype(np.int64))

    def refresh(self, epoch: int, doc_ND: F32, label_LD: F32) -> dict[str, float]:
        """Begin a search where one is due ``ahead`` epochs later; take over the one that is due now."""
        figures = {}
        if self.config.due(epoch):
            left = self.hard_NK
            self.hard_NK = self._waited() if self.config.ahead else self._search(doc_ND, label_LD)
            figures = self._figures(left, doc_ND, label_LD)
        if self.config.ahead and self.config.due(epoch + self.config.ahead):
            self._begin(doc_ND.copy(), label_LD.copy())
        return figures

    def _figures(self, left_NK: I32, doc_ND: F32, label_LD: F32) -> dict[str, float]:
        """Return how many hard negatives a document has, and how stale they are on a sample of documents.

        ``hard_recall``: share of those that are taken over now that a search of this moment finds too;
        ``hard_recall_left``: of those in use until now (ASTRA, section 3.1, compares training on either).
        """
        docs = _sample(len(doc_ND), self.seed)
        index = build_index(label_LD, IndexConfig(kind="exact"))  # a graph would have to be built for these few
        fresh_SK = self._found_in(index, doc_ND, docs)
        figures = {"hard_negatives": float((self.hard_NK != PAD_ID).sum(1).mean()) if len(self.hard_NK) else 0.0}
        for name, used_NK in (("hard_recall", self.hard_NK), ("hard_recall_left", left_NK)):
            if used_NK.shape[1] and len(docs):
                found = Shortlist(used_NK[docs], np.zeros(used_NK[docs].shape, np.float32))
                figures[name] = recall(found, Shortlist(fresh_SK, np.zeros(fresh_SK.shape, np.float32)))
        return figures

    def arrays(self) -> dict[str, Array]:
        """Return what searches found, one that is under way included (it is waited for)."""
        return {"hard": self.hard_NK} | ({} if self._found is None else {"hard_next": self._found.result()})

    def load(self, arrays: dict[str, Array]) -> None:
        """Take over what searches found."""
        self.hard_NK = arrays["hard"].astype(np.int32)
        if "hard_next" in arrays:
            self._found = Future()
            self._found.set_result(arrays["hard_next"].astype(np.int32))

    @property
    def _kept(self) -> int:
        """Hard negatives kept of a document."""
        return self.config.search

    def _draw(self, found_BK: I32, count: int, step: int) -> I32:
        """Return ``count`` of the hard negatives of each document, without replacement, holes last."""
        keys = generator(self.seed, "hard", step).random(found_BK.shape)
        keys[found_BK == PAD_ID] = np.inf
        return np.take_along_axis(found_BK, np.argsort(keys, axis=1, kind="stable")[:, :count], 1)

    def _search(self, doc_ND: F32, label_LD: F32) -> I32:
        """Return the hard negatives of every document, N x ``_kept``."""
        return self._found_in(build_index(label_LD, IndexConfig(seed=self.seed)), doc_ND, np.arange(len(doc_ND)))

    def _found_in(self, index: Index, doc_ND: F32, docs: I64) -> I32:
        """Return the hard negatives of ``docs`` that ``index`` finds."""
        found = search_rows(index, doc_ND, docs, self._kept + int(self.known.counts_N.max(initial=0)))
        return hard_negatives(found, self.known.rows(docs), self._kept).ids_NK

    def _begin(self, doc_ND: F32, label_LD: F32) -> None:
        executor = ThreadPoolExecutor(1, thread_name_prefix="mining")
        self._found = executor.submit(self._search, doc_ND, label_LD)
        executor.shutdown(wait=False)

    def _waited(self) -> I32:
        """Return what the search under way finds."""
        assert self._found is not None, "a search is begun before it is due"
        found, self._found = self._found.result(), None
        return found


@NEGATIVES.register("importance")
class Importance(Mined):
    """A document's own ``hard`` negatives with weight 1, and uniform draws with a weight that makes the loss unbiased.

    ``uniform`` labels are drawn for a batch without replacement from all L. A document sees those that are neither its
    positives nor its hard negatives, each with weight L / uniform: a label is drawn with probability uniform / L, so
    the weighted sum over them is in expectation the sum over all such labels (ASTRA, equation 2 and lemma 4.1; the
    paper draws for each document from L - k_h, with weight (L - k_h) / k_r). Labels that others brought weigh nothing.

    Before the first search all negatives are uniform (algorithm 1, line 8). ``uniform`` 0 leaves hard negatives alone:
    a biased loss, which collapses (table 5). ``curriculum`` lets hard ones grow from none, with the sum kept.
    """

    def __init__(
        self, config: NegativesConfig, truth: LabelMatrix, seed: int, filters: LabelMatrix | None = None
    ) -> None:
        super().__init__(config, truth, seed, filters)
        self.epoch = 0

    def refresh(self, epoch: int, doc_ND: F32, label_LD: F32) -> dict[str, float]:
        """Search where due; note the epoch, for the curriculum."""
        self.epoch = epoch
        figures = super().refresh(epoch, doc_ND, label_LD)
        hard = self._counts()[0]
        return figures | ({"hard_used": float(hard)} if figures or self.config.curriculum else {})

    def arrays(self) -> dict[str, Array]:
        """Return what searches found, and the epoch."""
        return super().arrays() | {"epoch": np.array([self.epoch])}

    def load(self, arrays: dict[str, Array]) -> None:
        """Take over what searches found, and the epoch."""
        super().load(arrays)
        self.epoch = int(arrays["epoch"][0])

    def all_uniform(self) -> Importance:
        """Return the source with as many negatives, all of them uniform: what the hard ones are compared with."""
        config = replace(self.config, hard=0, uniform=sum(self._counts()), search_in="texts", ahead=0, curriculum=0.0)
        return Importance(config, self.truth, self.seed, self.known)

    @property
    def _kept(self) -> int:
        return self.config.hard

    def _counts(self) -> tuple[int, int]:
        """Return how many hard and uniform negatives there are now; their sum stays."""
        grown = min(self.epoch / self.config.curriculum, 1.0) if self.config.curriculum else 1.0
        hard = min(round(self.config.hard * grown), self.hard_NK.shape[1])
        return hard, self.config.uniform + self.config.hard - hard if self._spread else self.config.uniform

    @property
    def _spread(self) -> bool:
        """True where uniform draws stand in for hard ones that are not there yet."""
        return bool(self.config.curriculum) or not self.hard_NK.shape[1]

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return positives, hard negatives and draws with their weights; they depend on seed, ``step``, last search."""
        chosen = self._chosen(docs_B, step)
        hard, uniform = self._counts()
        own_BK = self.hard_NK[docs_B, :hard]
        size = self.truth.num_labels
        random = generator(self.seed, "uniform", step)
        drawn = random.choice(size, min(uniform, size), replace=False, shuffle=False).astype(np.int64)
        own = LabelMatrix.from_pairs(np.nonzero(own_BK != PAD_ID)[0], own_BK[own_BK != PAD_ID], (len(docs_B), size))
        labels_U = np.unique(np.concatenate([chosen.indices, own.indices, drawn])).astype(np.int64)
        pool = self._pool(docs_B, chosen, labels_U)
        weight_BU = np.zeros(pool.known_BU.shape, np.float32)
        if len(drawn):
            weight_BU[:, np.isin(labels_U, drawn)] = size / len(drawn)
        weight_BU[mask(own, labels_U)] = 1.0
        weight_BU[pool.known_BU] = 0.0
        return LabelPool(labels_U, pool.chosen_BU, pool.known_BU, weight_BU)


def _sample(size: int, seed: int) -> I64:
    """Return up to ``_SAMPLE`` documents, rising."""
    return np.sort(generator(seed, "stale").choice(size, min(_SAMPLE, size), replace=False)).astype(np.int64)
