"""The two contracts of sampling: an order of batches, a pool of labels for a batch.

Takes: configs.                        Gives: BatchOrder, NegativeSource, their tables.
May import: errors, plugins, shapes, data.labels.  Never: vectors of a running encoder (they are handed in).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.params import at_least
from xc_core.plugins import Table
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

    def due(self, epoch: int) -> bool:
        """True where clusters are made anew before ``epoch``."""
        return self.kind == "clustered" and _falls_due(epoch, self.warmup_epochs, self.refresh_every)


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
    """The labels scored against a batch: ``labels_U`` (distinct, rising) and two masks over B x U.

    ``chosen_BU``: positives to learn from; ``known_BU``: all positives among the pool, whoever brought them in.
    """

    labels_U: I64
    chosen_BU: Bool
    known_BU: Bool


@dataclass(frozen=True, kw_only=True)
class NegativesConfig:
    """Which labels are scored against a mini-batch."""

    kind: str = "in-batch"
    """Name in the table of negatives. "in-batch": the positives of the other documents. "mixture": these and labels
    drawn uniformly. "mined": these and hard negatives from a search over the label bank (ANCE, UniDEC)."""
    positives: int = 1
    """Positives sampled a document; 0 for all of them (beta in UniDEC)."""
    share: bool = False
    """Learn from every positive in the pool, whoever brought it in (UniDEC: pick some labels), not the sampled ones."""
    uniform: int = 1024
    """mixture: labels drawn for a batch; as many as there are, or more, makes it all labels."""
    hard: int = 1
    """mined: hard negatives sampled a document and step (eta in UniDEC)."""
    search: int = 20
    """mined: hard negatives found for a document at a refresh, of which ``hard`` are drawn."""
    refresh_every: int = 1
    """mined: epochs between two searches (tau)."""
    warmup_epochs: int = 1
    """mined: epochs before the first search; they fill the banks."""

    def __post_init__(self) -> None:
        NEGATIVES[self.kind]
        at_least(self, positives=0, uniform=1, hard=1, search=1, refresh_every=1, warmup_epochs=0)

    def due(self, epoch: int) -> bool:
        """True where hard negatives are searched before ``epoch``."""
        return self.kind == "mined" and _falls_due(epoch, self.warmup_epochs, self.refresh_every)


class NegativeSource(Protocol):
    """The labels of a mini-batch."""

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return the pool of the documents ``docs_B`` in training step ``step``."""

    def refresh(self, epoch: int, doc_ND: F32, label_LD: F32) -> dict[str, float]:
        """Search anew where due, on stale vectors; return figures worth logging (empty where nothing was done)."""

    def arrays(self) -> dict[str, Array]:
        """Return all state, to be saved."""

    def load(self, arrays: dict[str, Array]) -> None:
        """Take over saved state."""


ORDERS: Table[Callable[[OrderConfig, int, int], BatchOrder]] = Table("order")
NEGATIVES: Table[Callable[[NegativesConfig, LabelMatrix, int], NegativeSource]] = Table("negatives")
