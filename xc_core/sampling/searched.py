"""Sources with hard negatives: the searching pools of ANCE and UniDEC, and stored ones."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any, Final, TypeVar

import numpy as np

from xc_core.ann import Exact, Index, mining_index, recall
from xc_core.params import at_least, below, one_of
from xc_core.sampling.base import (
    NEGATIVES,
    SEARCHED,
    TEXTS,
    Documents,
    LabelVectors,
    NegativeSource,
    PairPool,
    falls_due,
)
from xc_core.sampling.mining import negative_ids
from xc_core.sampling.negatives import InBatch, InBatchSource, Shared, Source
from xc_core.seeds import generator
from xc_core.shapes import F32, I32, I64, PAD_ID, Array, Shortlist, Vectors

_SAMPLE: Final = 256
"""Documents, at most, on which staleness is measured."""
_BESIDE: Final = 1 << 28
"""Bytes of vectors that may be copied for a search beside the training; it waits for a search of more."""


def draw(hard_BK: I32, count: int, seed: int, step: int) -> I32:
    """Return ``count`` of the hard negatives of each document, without replacement, holes last."""
    keys = generator(seed, "hard", step).random(hard_BK.shape)
    keys[hard_BK == PAD_ID] = np.inf
    return np.take_along_axis(hard_BK, np.argsort(keys, axis=1, kind="stable")[:, :count], 1)


@NEGATIVES.register("stored")
@dataclass(frozen=True, kw_only=True)
class Stored(InBatch):
    """``in-batch`` and draws from the hard negatives of the stage negatives (M2).

    For M4: its document vectors are frozen, so explicit mining needs one search only.
    """

    stored = True
    hard: int = 1
    """Hard negatives drawn per document and step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, hard=1)

    def build(self, documents: Documents, seed: int) -> NegativeSource:
        """Return the source; raises ConfigError if no hard negatives are stored for ``documents``."""
        return StoredSource(self, documents, seed)


class StoredSource(InBatchSource[Stored]):
    """The batch's positives and draws of stored hard negatives."""

    def __init__(self, settings: Stored, documents: Documents, seed: int) -> None:
        super().__init__(settings, documents, seed)
        self.hard_NK = documents.hard()

    def more(self, docs_B: I64, step: int) -> I64:
        """Return labels without train documents, and draws of the documents' hard negatives."""
        drawn = draw(self.hard_NK[docs_B], self.settings.hard, self.seed, step)
        return np.concatenate([super().more(docs_B, step), drawn[drawn != PAD_ID]])


@dataclass(frozen=True, kw_only=True)
class Searching(Shared):
    """Settings of sources that search for hard negatives between epochs."""

    hard: int = 1
    search_in: str = TEXTS
    """Where to search: the vectors of label "texts" or the "rows" of the classifier (ASTRA)."""
    refresh_every: int = 1
    """Epochs between two searches (tau)."""
    warmup_epochs: int = 1
    """Epochs before hard negatives are first used; they fill the memory banks."""
    ahead: int = 0
    """How many epochs before its use a search starts, in the background: less than warmup_epochs, and at most
    refresh_every because only one search runs at a time (ASTRA: 1, on the vectors of the epoch before)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, refresh_every=1, warmup_epochs=0, ahead=0)
        below(self, ahead=min(max(self.warmup_epochs, 1), self.refresh_every + 1))
        one_of(self, search_in=SEARCHED)

    def due(self, epoch: int) -> bool:
        """Return True if hard negatives of a new search are used from ``epoch`` on."""
        return self.searches is not None and falls_due(epoch, self.warmup_epochs, self.refresh_every)

    def reads(self, epoch: int) -> bool:
        """Return True if a search starts or ends before ``epoch``; its vectors and figures are of that moment."""
        return self.due(epoch) or (self.ahead > 0 and self.due(epoch + self.ahead))

    @property
    def searches(self) -> str | None:
        """Where the source searches, or None if it uses no hard negatives."""
        return self.search_in if self.hard else None

    @property
    def kept(self) -> int:
        """Hard negatives kept per document at a search."""
        return self.hard

    def shortened(self, epochs: float, *, of: float) -> dict[str, Any]:
        """Return changes for fewer ``epochs``, such that the last one uses the first search at the latest."""
        last = math.ceil(epochs) - 1  # vectors to search come from the first epoch
        if self.searches is None or not 1 <= last < self.warmup_epochs:
            return {}
        return {"warmup_epochs": last, "ahead": min(self.ahead, last - 1)}


@NEGATIVES.register("mined")
@dataclass(frozen=True, kw_only=True)
class Mined(Searching):
    """The batch's sampled positives and, for each document, ``hard`` of the hard negatives that a search found for it.

    With ``share``, a neighbour's hard negative that is a positive of the document is a positive to learn from: P_i is
    intersected with the whole pool (UniDEC, section 3.2 and algorithm 1). Without it, and with one positive and one
    hard negative, this is ANCE's source.

    With ``ahead``, a search starts that many epochs before its use, in its own thread, on the vectors at that moment
    (ASTRA, section 3.2). Its result depends on these vectors alone, not on when it ends. On a CPU the thread needs a
    copy of them. If that takes more than 256 MB, the training waits for the search instead.
    """

    hard: int = 1
    """Hard negatives drawn per document and step (eta in UniDEC)."""
    search: int = 20
    """Hard negatives found per document at a search, of which ``hard`` are drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, hard=1, search=1)

    @property
    def kept(self) -> int:
        """Hard negatives kept per document at a search."""
        return self.search

    def build(self, documents: Documents, seed: int) -> NegativeSource:
        """Return the source."""
        return MinedSource(self, documents, seed)


G = TypeVar("G", bound=Searching)


class SearchingSource(Source[G]):
    """Base of sources that search: hard negatives of the last search, and the state of a running one."""

    def __init__(self, settings: G, documents: Documents, seed: int) -> None:
        super().__init__(settings, documents, seed)
        self.hard_NK: I32 = np.zeros((len(documents), 0), np.int32)
        self._pending: Future[I32] | None = None

    def refresh(self, epoch: int, doc_ND: F32, labels: LabelVectors) -> dict[str, float]:
        """Start a search if one is due ``ahead`` epochs later; use the result of the one that is due now."""
        ahead = self.settings.ahead
        figures = self._use_next(doc_ND, labels[self.settings.search_in]) if self.settings.due(epoch) else {}
        if ahead and self.settings.due(epoch + ahead):
            self._start_search(doc_ND, labels[self.settings.search_in], steady=labels.steady)
        return figures

    def _use_next(self, doc_ND: F32, label_LD: Vectors) -> dict[str, float]:
        """Use the result of the search that is due; return the figures."""
        previous_NK = self.hard_NK
        self.hard_NK = self._wait_for_search() if self.settings.ahead else self._search(doc_ND, label_LD)
        return self._staleness(previous_NK, doc_ND, label_LD)

    def _staleness(self, previous_NK: I32, doc_ND: F32, label_LD: Vectors) -> dict[str, float]:
        """Return figures: how many hard negatives a document has, and how stale they are on a sample of documents.

        ``hard_recall``: share of the hard negatives in use from now on that a search on present vectors finds too;
        ``hard_recall_left``: of those in use until now (ASTRA, section 3.1, compares training on either).
        """
        docs = _sample(len(doc_ND), self.seed)
        index = Exact().build(label_LD)  # for so few queries, building a graph would take longer
        fresh_SK = self._search_index(index, doc_ND, docs)
        figures = {"hard_negatives": float((self.hard_NK != PAD_ID).sum(1).mean()) if len(self.hard_NK) else 0.0}
        for name, used_NK in (("hard_recall", self.hard_NK), ("hard_recall_left", previous_NK)):
            if used_NK.shape[1] and len(docs):
                used = Shortlist(used_NK[docs], np.zeros(used_NK[docs].shape, np.float32))
                figures[name] = recall(used, Shortlist(fresh_SK, np.zeros(fresh_SK.shape, np.float32)))
        return figures

    def arrays(self) -> dict[str, Array]:
        """Return the hard negatives, and those of a running search after waiting for it."""
        return {"hard": self.hard_NK} | ({} if self._pending is None else {"hard_next": self._pending.result()})

    def load(self, arrays: dict[str, Array]) -> None:
        """Restore the hard negatives."""
        self.hard_NK = arrays["hard"].astype(np.int32)
        if "hard_next" in arrays:
            self._pending = Future()
            self._pending.set_result(arrays["hard_next"].astype(np.int32))

    def _search(self, doc_ND: F32, label_LD: Vectors) -> I32:
        """Return the hard negatives of every document (N x kept)."""
        return self._search_index(mining_index(label_LD), doc_ND, np.arange(len(doc_ND)))

    def _search_index(self, index: Index, doc_ND: F32, docs: I64) -> I32:
        """Return the hard negatives of ``docs`` that ``index`` finds."""
        return negative_ids(index, doc_ND, docs, self.known.rows(docs), self.settings.kept)

    def _start_search(self, doc_ND: F32, label_LD: Vectors, *, steady: bool) -> None:
        """Start a search in a thread; if its copies would be large, finish it before the training goes on."""
        if not steady:
            if (doc_ND.size + label_LD.shape[0] * label_LD.shape[1]) * doc_ND.itemsize > _BESIDE:
                self._pending = Future()
                self._pending.set_result(self._search(doc_ND, label_LD))
                return
            doc_ND, label_LD = doc_ND.copy(), np.array(label_LD)
        pending: Future[I32] = Future()
        self._pending = pending

        def run() -> None:
            try:
                pending.set_result(self._search(doc_ND, label_LD))
            except BaseException as error:  # raised by who waits for the result
                pending.set_exception(error)

        Thread(target=run, name="mining").start()  # a pool's thread would not see that the process ends (``mining``)

    def _wait_for_search(self) -> I32:
        """Wait for the running search and return its result."""
        if self._pending is None:
            raise RuntimeError("a search is due that was not started ahead")
        hard_NK, self._pending = self._pending.result(), None
        return hard_NK


class MinedSource(SearchingSource[Mined]):
    """The batch's positives and draws of searched hard negatives."""

    def pool(self, docs_B: I64, step: int) -> PairPool:
        """Return the pool; samples depend on the seed, ``step`` and the last search."""
        chosen = self._chosen(docs_B, step)
        drawn = draw(self.hard_NK[docs_B], self.settings.hard, self.seed, step)
        return self._pool(docs_B, chosen, np.union1d(chosen.indices, drawn[drawn != PAD_ID]).astype(np.int64))


def _sample(size: int, seed: int) -> I64:
    """Return up to ``_SAMPLE`` documents, rising."""
    return np.sort(generator(seed, "stale").choice(size, min(_SAMPLE, size), replace=False)).astype(np.int64)


def load_random(source: NegativeSource, shape: tuple[int, int], num_labels: int, random: np.random.Generator) -> None:
    """Replace hard negatives by random labels (N x K): a step costs as much with them as with those of a search."""
    hard_NK = random.integers(0, num_labels, shape, dtype=np.int32)
    source.load({**source.arrays(), "hard": hard_NK})
