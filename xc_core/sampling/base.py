"""The two contracts of sampling: an order of mini-batches, and a pool of labels for each mini-batch.

Callers pass vectors in; nothing here uses an encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from torch import Tensor

from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.params import at_least
from xc_core.plugins import Part, Table
from xc_core.sampling.noise import Noise
from xc_core.shapes import F32, I32, I64, Array, Bool, Vectors, spans

TEXTS: Final = "texts"
ROWS: Final = "rows"
SEARCHED: Final = (TEXTS, ROWS)
"""Where hard negatives can be searched: the vectors of label texts, or the rows of a label table."""


def falls_due(epoch: int, first: int, every: int) -> bool:
    """Return True in epoch ``first`` and every ``every`` epochs after it."""
    return epoch >= first and (epoch - first) % every == 0


def _not_stored(name: str) -> Callable[[], Any]:
    def refuse() -> Any:
        raise ConfigError(
            f"stored {name} in a training that has none",
            expected="a training of the stage classifier (M4), which reads the stages before it",
            do="choose another order or source of negatives",
        )

    return refuse


_NO_CLUSTERS, _NO_HARD = _not_stored("clusters"), _not_stored("hard negatives")


@dataclass(frozen=True)
class Documents:
    """The N documents of a training: their labels, and the results of earlier stages for them."""

    truth: LabelMatrix
    """The positives (N x L)."""
    filters: LabelMatrix | None = None
    """Pairs that predictions leave out; neither positives nor negatives."""
    clusters: Callable[[], tuple[I64, I64]] = _NO_CLUSTERS
    """Returns (order, sizes) of the clusters of the stage clusters, as positions among these documents."""
    hard: Callable[[], I32] = _NO_HARD
    """Returns the hard negatives of the stage negatives (N x K, holes last)."""

    def __len__(self) -> int:
        return len(self.truth)


class BatchOrder(Protocol):
    """The batches of an epoch over N documents, by their positions 0 to N - 1."""

    def batches(self, epoch: int) -> list[I64]:
        """Return the batches of ``epoch``: each position is in exactly one. Same state and seed, same batches."""

    def refresh(self, epoch: int, vectors_ND: F32 | Tensor) -> dict[str, float]:
        """Adapt to the documents' vectors if due; return figures to log (empty if nothing was done).

        Vectors in a tensor of a card stay there.
        """

    def clusters(self) -> tuple[I64, I64] | None:
        """Return the present clusters as (order, sizes); None if batches are not made of clusters."""

    def arrays(self) -> dict[str, Array]:
        """Return all state, to be saved."""

    def load(self, arrays: dict[str, Array]) -> None:
        """Restore saved state."""


ORDERS: Table[type[Order]] = Table("order")


class Order(Part):
    """Settings of an order of mini-batches."""

    table = ORDERS
    stored: ClassVar[bool] = False
    """True for an order that reads the clusters of the stage clusters."""
    adapts: ClassVar[bool] = False
    """True for an order that adapts to vectors between epochs."""

    def build(self, documents: Documents, seed: int) -> BatchOrder:
        """Return the order of ``documents``."""
        raise NotImplementedError

    def due(self, epoch: int) -> bool:
        """Return True if the order adapts to vectors before ``epoch``."""
        return False

    def shortened(self, epochs: float) -> dict[str, Any]:
        """Return changes for fewer ``epochs``, such that the order adapts before the last one at the latest."""
        return {}


@dataclass(frozen=True)
class LabelPool:
    """The labels scored against a batch: ``labels_U`` (distinct, rising) and masks over B x U.

    ``chosen_BU``: positives to learn from. ``known_BU``: pairs that are not negatives: all known positives, whichever
    document added the label, and pairs that predictions leave out.
    ``weight_BU``: weight of a label as a negative of a document; None: every label that is not known counts once.
    ``noise_BU``: log p_n(label | document) where a label is chosen or has a weight, if labels were drawn from p_n.
    """

    labels_U: I64
    chosen_BU: Bool
    known_BU: Bool
    weight_BU: F32 | None = None
    noise_BU: F32 | None = None

    @property
    def learnable(self) -> bool:
        """True if a document has a positive to learn from and a negative."""
        negative_BU = ~self.known_BU if self.weight_BU is None else self.weight_BU > 0
        return bool((self.chosen_BU.any(1) & negative_BU.any(1)).any())

    def blocks(self, width: int) -> Iterator[LabelPool]:
        """Yield the pool in blocks of at most ``width`` labels, in order."""
        return map(self._restrict, spans(len(self.labels_U), width))

    def only(self, labels_S: I64) -> LabelPool:
        """Return the pool without labels that are not in ``labels_S``."""
        return self._restrict(np.isin(self.labels_U, labels_S))

    def documents(self, part: slice) -> LabelPool:
        """Return the pool for some of the documents, with all labels."""
        return LabelPool(self.labels_U, *self._cut(part))

    def _restrict(self, columns: slice | Bool) -> LabelPool:
        return LabelPool(self.labels_U[columns], *self._cut((slice(None), columns)))

    def _cut(self, index: Any) -> tuple[Bool, Bool, F32 | None, F32 | None]:
        """Return the masks at ``index``."""
        weight, noise = (None if values is None else values[index] for values in (self.weight_BU, self.noise_BU))
        return self.chosen_BU[index], self.known_BU[index], weight, noise


class PairPool:
    """A pool whose masks are given as pairs. A mask is computed if it is read.

    So the B x L matrix of targets need not exist; a card makes masks of the pairs itself.
    """

    weight_BU = None
    noise_BU = None

    def __init__(self, chosen: LabelMatrix, known: LabelMatrix, labels_U: I64 | None = None) -> None:
        """``labels_U``: distinct, rising; None for all."""
        self.chosen, self.known = chosen, known
        self.labels_U: I64 = np.arange(known.num_labels, dtype=np.int64) if labels_U is None else labels_U

    @property
    def learnable(self) -> bool:
        """True if a document has a positive to learn from and a negative."""
        chosen_B, known_B = (np.bincount(rows, minlength=len(self.known)) for rows, _ in self.cells())
        return bool(((chosen_B > 0) & (known_B < len(self.labels_U))).any())

    def cells(self) -> tuple[tuple[I64, I64], tuple[I64, I64]]:
        """Return where the two masks are True: row and column of each chosen pair, and of each known one."""
        return cells(self.chosen, self.labels_U), cells(self.known, self.labels_U)

    @cached_property
    def chosen_BU(self) -> Bool:
        """The mask of the positives to learn from."""
        return mask(self.chosen, self.labels_U)

    @cached_property
    def known_BU(self) -> Bool:
        """The mask of the pairs that are not negatives."""
        return mask(self.known, self.labels_U)

    def blocks(self, width: int) -> Iterator[PairPool]:
        """Yield the pool in blocks of at most ``width`` labels, in order."""
        return (self._restrict(self.labels_U[block]) for block in spans(len(self.labels_U), width))

    def only(self, labels_S: I64) -> PairPool:
        """Return the pool without labels that are not in ``labels_S``."""
        return self._restrict(self.labels_U[np.isin(self.labels_U, labels_S)])

    def documents(self, part: slice) -> PairPool:
        """Return the pool for some of the documents, with all labels."""
        docs = np.arange(len(self.known))[part]
        return PairPool(self.chosen.rows(docs), self.known.rows(docs), self.labels_U)

    def _restrict(self, labels_U: I64) -> PairPool:
        return PairPool(self.chosen, self.known, labels_U)


Pool = LabelPool | PairPool


def mask(positives: LabelMatrix, labels_U: I64) -> Bool:
    """Return True where a pooled label is one of a document's ``positives`` (B x U).

    ``labels_U`` are distinct and rising.
    """
    out = np.zeros((len(positives), len(labels_U)), bool)
    out[cells(positives, labels_U)] = True
    return out


def cells(positives: LabelMatrix, labels_U: I64) -> tuple[I64, I64]:
    """Return row and column of each pair of ``positives`` whose label is among ``labels_U`` (distinct, rising)."""
    docs, labels = positives.pairs()
    if not len(labels_U):
        return docs[:0], labels[:0].astype(np.int64)
    columns = np.minimum(np.searchsorted(labels_U, labels), len(labels_U) - 1)
    inside = labels_U[columns] == labels
    return docs[inside], columns[inside]


class LabelVectors(Protocol):
    """Vectors of all L labels, as a training has them at a refresh."""

    @property
    def steady(self) -> bool:
        """True if later steps change neither vectors that were returned nor those of documents in this refresh."""

    def __getitem__(self, where: str, /) -> Vectors:
        """Return the vectors of label "texts" or the table's "rows" (L x D)."""


class NegativeSource(Protocol):
    """The labels of a mini-batch."""

    known: LabelMatrix
    """The pairs that are not negatives: positives, and pairs that predictions leave out (filters)."""

    def pool(self, docs_B: I64, step: int) -> Pool:
        """Return the pool of the documents ``docs_B`` in training step ``step``."""

    def refresh(self, epoch: int, doc_ND: F32, labels: LabelVectors) -> dict[str, float]:
        """Search or fit on stale vectors if due; return figures to log (empty if nothing was done)."""

    def estimates(self) -> dict[str, NegativeSource]:
        """Return sources whose pools are weighted samples of all labels, by the name of the figure of their error."""

    def noise(self) -> Noise | None:
        """Return p_n if labels are drawn from it and prediction removes its bias (Bamler and Mandt, equation 5)."""

    def arrays(self) -> dict[str, Array]:
        """Return all state, to be saved."""

    def load(self, arrays: dict[str, Array]) -> None:
        """Restore saved state."""


NEGATIVES: Table[type[Negatives]] = Table("source of negatives")


@dataclass(frozen=True, kw_only=True)
class Negatives(Part):
    """Settings that all sources of negatives share: which positives a document contributes."""

    table = NEGATIVES
    stored: ClassVar[bool] = False
    """True for a source that reads the hard negatives of the stage negatives."""
    draws_from_noise: ClassVar[bool] = False
    """True for a source that draws from a distribution that prediction needs again."""
    positives: int = 1
    """Positives sampled per document; 0 for all of them (beta in UniDEC)."""
    first: bool = False
    """Learn as if a document had only its first ``positives`` labels by id, instead of a sample of all. Noise, draws
    and figures use only these too (adversarial softmax: 1 label)."""

    def __post_init__(self) -> None:
        at_least(self, positives=0)

    def build(self, documents: Documents, seed: int) -> NegativeSource:
        """Return the source for ``documents``."""
        raise NotImplementedError

    def due(self, epoch: int) -> bool:
        """Return True if the source is fitted, or uses hard negatives of a new search, from ``epoch`` on."""
        return False

    def reads(self, epoch: int) -> bool:
        """Return False if the refresh before ``epoch`` reads no vectors, so that none need be copied from a card."""
        return self.adapts

    @property
    def searches(self) -> str | None:
        """Where the source searches: "texts", "rows", or None for a source that does not search."""
        return None

    @property
    def adapts(self) -> bool:
        """True for a source that reads vectors in ``refresh``; M1 keeps the latest ones for no other."""
        return self.searches is not None

    @property
    def kept(self) -> int:
        """Hard negatives kept per document at a search."""
        return 0

    def shortened(self, epochs: float, *, of: float) -> dict[str, Any]:
        """Return changes for fewer ``epochs``, such that the last one uses hard negatives at the latest.

        ``of`` is the number of epochs that the settings were made for.
        """
        return {}
