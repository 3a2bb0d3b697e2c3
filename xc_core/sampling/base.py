"""The two contracts of sampling: an order of batches, a pool of labels for a batch.

Takes: configs.   Gives: BatchOrder, NegativeSource, their tables; the pools, LabelPool and EveryLabel.
May import: errors, params, plugins, shapes, data.labels, sampling.noise.  Never: an encoder (vectors are handed in).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.params import at_least, below
from xc_core.plugins import Table
from xc_core.sampling.noise import Noise
from xc_core.shapes import F32, I64, Array, Bool


def _falls_due(epoch: int, first: int, every: int) -> bool:
    """True in epoch ``first`` and each ``every`` epochs after it."""
    return epoch >= first and (epoch - first) % every == 0


@dataclass(frozen=True, kw_only=True)
class OrderConfig:
    """Which documents meet in a mini-batch."""

    kind: str = "clustered"
    """"random", or "clustered": near documents together (NGAME, algorithm 1)."""
    batch_size: int = 128
    """Documents of a mini-batch (S)."""
    cluster_size: int = 8
    """clustered: documents of a cluster at the first clustering (C)."""
    double_every: int = 0
    """clustered: epochs after which C doubles, up to the batch size; 0 for never (curriculum, NGAME section 3)."""
    refresh_every: int = 1
    """clustered: epochs between two clusterings (tau)."""
    warmup_epochs: int = 1
    """clustered: random epochs before the first clustering; they fill the memory bank for free."""

    def __post_init__(self) -> None:
        ORDERS[self.kind]
        at_least(self, batch_size=1, cluster_size=1, double_every=0, refresh_every=1, warmup_epochs=0)
        if self.cluster_size > self.batch_size:
            raise ConfigError(
                f"cluster_size {self.cluster_size} with batch_size {self.batch_size}",
                expected="clusters that fit into a batch",
                do="lower cluster_size or raise batch_size",
            )

    def size_at(self, epoch: int) -> int:
        """Return C in ``epoch``, after the curriculum."""
        doublings = max(epoch - self.warmup_epochs, 0) // self.double_every if self.double_every else 0
        return int(min(self.cluster_size << min(doublings, 32), self.batch_size))

    @property
    def clusters(self) -> bool:
        """True where batches are made of clusters."""
        return self.kind == "clustered"

    def due(self, epoch: int) -> bool:
        """True where clusters are made anew before ``epoch``."""
        return self.clusters and _falls_due(epoch, self.warmup_epochs, self.refresh_every)


class BatchOrder(Protocol):
    """The batches of an epoch over N documents, by their positions 0 to N - 1."""

    def batches(self, epoch: int) -> list[I64]:
        """Return the batches of ``epoch``: every position in exactly one; the same for the same state and seed."""

    def refresh(self, epoch: int, vectors_ND: F32) -> dict[str, float]:
        """Adapt to the documents' vectors where due; return figures worth logging (empty where nothing was done)."""

    def arrays(self) -> dict[str, Array]:
        """Return all state, to be saved."""

    def load(self, arrays: dict[str, Array]) -> None:
        """Take over saved state."""


@dataclass(frozen=True)
class LabelPool:
    """The labels scored against a batch: ``labels_U`` (distinct, rising) and masks over B x U.

    ``chosen_BU``: positives to learn from; ``known_BU``: all that are no negatives, positives whoever brought them in
    and pairs that predictions leave out.
    ``weight_BU``: how much a label counts as a negative of a document, where that is more than a yes or no.
    ``noise_BU``: log p_n(label | document) where a label is chosen or has a weight, where labels were drawn from p_n.
    """

    labels_U: I64
    chosen_BU: Bool
    known_BU: Bool
    weight_BU: F32 | None = None
    noise_BU: F32 | None = None

    def blocks(self, width: int) -> Iterator[LabelPool]:
        """Yield the pool in blocks of at most ``width`` labels, in order."""
        for start in range(0, len(self.labels_U), width):
            cut = slice(start, start + width)
            masks = (self.chosen_BU, self.known_BU, self.weight_BU, self.noise_BU)
            yield LabelPool(self.labels_U[cut], *(part if part is None else part[:, cut] for part in masks))  # type: ignore[arg-type]


class EveryLabel:
    """The pool of all labels; its masks are made block by block, so the B x L matrix of targets need not exist."""

    weight_BU = None
    noise_BU = None

    def __init__(self, chosen: LabelMatrix, known: LabelMatrix) -> None:
        self.chosen, self.known = chosen, known
        self.labels_U: I64 = np.arange(known.num_labels, dtype=np.int64)

    @cached_property
    def chosen_BU(self) -> Bool:
        """The whole mask, for losses that need all labels at once."""
        return mask(self.chosen, self.labels_U)

    @cached_property
    def known_BU(self) -> Bool:
        """The whole mask, for losses that need all labels at once."""
        return mask(self.known, self.labels_U)

    def blocks(self, width: int) -> Iterator[LabelPool]:
        """Yield all labels in blocks of at most ``width``, in order."""
        for start in range(0, len(self.labels_U), width):
            own = self.labels_U[start : start + width]
            yield LabelPool(own, mask(self.chosen, own), mask(self.known, own))


Pool = LabelPool | EveryLabel


def mask(positives: LabelMatrix, labels_U: I64) -> Bool:
    """True where a pooled label is among a document's ``positives`` (B x U); ``labels_U`` is distinct and rising."""
    docs, labels = positives.pairs()
    out = np.zeros((len(positives), len(labels_U)), bool)
    if len(labels_U):
        at = np.minimum(np.searchsorted(labels_U, labels), len(labels_U) - 1)
        found = labels_U[at] == labels
        out[docs[found], at[found]] = True
    return out


@dataclass(frozen=True, kw_only=True)
class NegativesConfig:
    """Which labels are scored against a mini-batch."""

    kind: str = "in-batch"
    """Name in the table of negatives. "in-batch": the positives of the other documents. "mixture": these and labels
    drawn uniformly. "mined": these and hard negatives of a search (ANCE, UniDEC). "importance": a document's own hard
    negatives and weighted uniform draws, an unbiased sample of all labels (ASTRA). "all": every label.
    "uniform", "frequency", "tree": for each chosen positive, labels drawn from a noise distribution (adversarial)."""
    positives: int = 1
    """Positives sampled a document; 0 for all of them (beta in UniDEC)."""
    first: bool = False
    """Learn as if a document had its first ``positives`` labels by id and no others, instead of a sample of all: noise,
    draws and figures are of these too (adversarial softmax: 1 of them)."""
    share: bool = False
    """Learn from every positive in the pool, whoever brought it in (UniDEC: pick some labels), not the sampled ones."""
    unseen: int = 0
    """in-batch: labels without any train document drawn into a pool. No batch holds them as a positive, so rows that
    are trained on batches alone leave theirs where it started, among rows that were all pushed down: a few of them
    stand first in every list (WordNetTags: 158 of 19,071 cost 8 points of P@1)."""
    uniform: int = 1024
    """mixture, importance: labels drawn for a batch; as many as there are, or more, makes it all labels."""
    hard: int = 1
    """mined: hard negatives sampled a document and step (eta in UniDEC). importance: those a document has (k_h)."""
    search: int = 20
    """mined: hard negatives found for a document at a refresh, of which ``hard`` are drawn."""
    search_in: str = "texts"
    """mined, importance: what is searched, the label "texts"' vectors or the classifier's "rows" (ASTRA)."""
    refresh_every: int = 1
    """mined, importance: epochs between two searches (tau)."""
    warmup_epochs: int = 1
    """mined, importance: epochs before the first search; they fill the banks."""
    ahead: int = 0
    """mined, importance: epochs before its use at which a search is begun, in the background: less than warmup_epochs,
    and at most refresh_every, for one search is under way at a time (ASTRA: 1, on the vectors of the epoch before)."""
    curriculum: float = 0.0
    """importance: epochs over which the hard negatives rise from none to ``hard``, uniform ones making up the rest."""
    draws: int = 1
    """uniform, frequency, tree: labels drawn for each chosen positive, with replacement."""
    tree_width: int = 16
    """tree: principal components of the document vectors that it reads."""
    tree_regulariser: float = 0.01
    """tree: lambda_n of its fit (equation 8)."""

    def __post_init__(self) -> None:
        NEGATIVES[self.kind]
        few = 0 if self.kind == "importance" else 1
        at_least(self, positives=0, uniform=few, hard=few, search=1, refresh_every=1, warmup_epochs=0)
        at_least(self, ahead=0, curriculum=0, draws=1, tree_width=1, unseen=0)
        below(self, ahead=min(max(self.warmup_epochs, 1), self.refresh_every + 1))
        if self.search_in not in ("texts", "rows"):
            raise ConfigError(f"search_in {self.search_in!r}", expected="texts or rows", do="mend the value")
        if self.uniform + self.hard < 1 or self.tree_regulariser <= 0:
            raise ConfigError(
                f"uniform {self.uniform}, hard {self.hard}, tree_regulariser {self.tree_regulariser}",
                expected="some negatives, and a regulariser above 0",
                do="mend the value",
            )

    @property
    def searches(self) -> bool:
        """True where hard negatives come from a search between epochs."""
        return self.kind == "mined" or (self.kind == "importance" and self.hard > 0)

    def due(self, epoch: int) -> bool:
        """True where hard negatives of a search are new in ``epoch``."""
        return self.searches and _falls_due(epoch, self.warmup_epochs, self.refresh_every)


class NegativeSource(Protocol):
    """The labels of a mini-batch."""

    known: LabelMatrix
    """The pairs that are no negatives: positives, and those that predictions leave out (filters)."""

    def pool(self, docs_B: I64, step: int) -> Pool:
        """Return the pool of the documents ``docs_B`` in training step ``step``."""

    def refresh(self, epoch: int, doc_ND: F32, label_LD: F32) -> dict[str, float]:
        """Search or fit anew where due, on stale vectors; return figures worth logging (empty: nothing was done)."""

    def noise(self) -> Noise | None:
        """Return p_n, where labels are drawn from one whose bias is to be removed at prediction (equation 5)."""

    def arrays(self) -> dict[str, Array]:
        """Return all state, to be saved."""

    def load(self, arrays: dict[str, Array]) -> None:
        """Take over saved state."""


ORDERS: Table[Callable[[OrderConfig, int, int], BatchOrder]] = Table("order")


class MakesNegatives(Protocol):
    """What makes a source."""

    def __call__(
        self, config: NegativesConfig, truth: LabelMatrix, seed: int, filters: LabelMatrix | None = None, /
    ) -> NegativeSource:
        """Return the source for documents with the positives ``truth``, of which predictions leave ``filters`` out."""


NEGATIVES: Table[MakesNegatives] = Table("negatives")
