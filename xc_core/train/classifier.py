"""M3 and M4: train a row per label on frozen document vectors, initialised with the vector of the label's text.

A step changes only the rows that its batch scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from xc_core.classifiers import BiasConfig, LabelTable, Shard, TableConfig, TableHead, TableLabelVectors, dropped
from xc_core.devices import CPU, Device, put
from xc_core.distributed import ALONE, World
from xc_core.errors import ConfigError
from xc_core.losses import Loss, Triplet
from xc_core.params import MAX_EPOCHS, at_least, below, later, within
from xc_core.plugins import HasUnread, HasUnused
from xc_core.sampling import (
    BatchOrder,
    Documents,
    InBatch,
    Negatives,
    NegativeSource,
    Order,
    Pool,
    StoredClusters,
)
from xc_core.seeds import torch_generator
from xc_core.shapes import F32, I64
from xc_core.train.parallel import check_draws
from xc_core.train.state import tensors_under


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings(HasUnused, HasUnread):
    """M3 and M4: how the label table is trained."""

    order: Order = field(default_factory=lambda: StoredClusters(batch_size=512))
    negatives: Negatives = field(default_factory=lambda: InBatch(positives=0, unseen=128))
    loss: Loss = field(default_factory=lambda: Triplet(margin=0.2, hardest=5, positives=3))
    table: TableConfig = field(default_factory=TableConfig)
    bias: BiasConfig = later(BiasConfig(), was=BiasConfig())  # noqa: RUF009 (frozen)
    epochs: float = 15.0
    """Passes over the train documents; 0 leaves the rows as they are initialised."""
    warmup: float = 0.03
    """Share of the training that is warm-up."""
    dropout: float = 0.0
    """Share of the coordinates of a document vector that are set to zero in a step."""
    average: float = later(0.0, was=0.0)
    """Share of the training, at its end, over whose steps rows are averaged; 0 serves the rows after the last step."""
    augment: bool = False
    """Train on every label's text vector too, as a document of that label; not with stored clusters or negatives."""
    refit: bool = False
    """Train the final rows on validation documents too (refit). Before that, train twice without one half of them, so
    that the fusion is fitted on documents that the scores have not seen (cross-fitting). Applies to all scores. With
    ``encoder.refit`` the only training uses all of them."""
    enough: int = 10_000
    """Validation documents that are enough to fit the fusion: if one half has as many, only that one is left out."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        at_least(self, warmup=0, dropout=0, average=0, enough=1)
        within(self, epochs=(0, MAX_EPOCHS))
        below(self, warmup=1, dropout=1, average=1)
        for name, chosen in (("order", self.order), ("negatives", self.negatives)):
            if self.augment and chosen.stored:
                raise ConfigError(
                    f"augment with the {name} {chosen.kind!r}, which leaves out label texts",
                    expected=f"{name} for all documents of the training",
                    do=f"choose another kind of {name}, or set augment to false",
                )

    def unused(self) -> frozenset[str]:
        """Without epochs no setting of the training is used; ``enough`` is used by a refit only."""
        rule = ("lr", "decay", "weight_decay", "optimiser", "precision")
        table = {"bias", *(f"table.{name}" for name in rule)}
        training = {"order", "negatives", "loss", "warmup", "dropout", "average", "augment", "seed", *table}
        return frozenset(set() if self.epochs else training) | frozenset(set() if self.refit else {"enough"})

    def unread(self) -> frozenset[str]:
        """Return the stages whose artefacts are not read: stored clusters and hard negatives that no part uses."""
        stored = {"clusters": self.order.stored, "negatives": self.negatives.stored}
        return frozenset(stage for stage, used in stored.items() if not (used and self.epochs))


@dataclass(frozen=True)
class TableData:
    """Training data of a table: vectors and labels of N documents, and initial rows and text vectors of L labels."""

    doc_ND: F32
    rows_LD: F32
    """Initial rows."""
    text_LD: F32
    """Vectors of the label texts, for negatives that search in them."""
    documents: Documents
    factor: float = 1.0
    """Initial rows are multiplied by this."""
    folder: Path | None = None
    """Where the file of a memory-mapped table is."""


def table_task(
    settings: ClassifierSettings, data: TableData, device: Device = CPU, world: World = ALONE
) -> ClassifierTask:
    """Return the training of a table on ``data`` that ``settings`` describe; rows in memory live on ``device``.

    The labels are spread over the processes of ``world``, which all draw the same batches and pools.
    """
    shard = Shard(world, len(data.rows_LD))
    table = LabelTable(
        torch.from_numpy(shard.of(data.rows_LD)), settings.table,
        folder=data.folder, seed=settings.seed, factor=data.factor, device=device.torch,
    )  # fmt: skip
    bias = settings.bias.build(data.documents.truth, settings.loss.divisor, shard)
    if bias is not None:
        bias.to(table.rows_LD.device)
    head = TableHead(table, settings.loss.build(), settings.loss.divisor, bias=bias, shard=shard)
    for label_table in head.tables:
        label_table.shard = shard
    return ClassifierTask(
        data,
        head,
        settings.order.build(data.documents, settings.seed),
        settings.negatives.build(data.documents, settings.seed),
        settings.dropout,
        settings.seed,
        averaged_from=settings.epochs * (1 - settings.average) if settings.average else math.inf,
    )


@dataclass
class ClassifierTask:
    """Training of rows on frozen document vectors. Unit rows suit search (NGAME, appendix C)."""

    data: TableData
    head: TableHead
    order: BatchOrder
    negatives: NegativeSource
    dropout: float
    seed: int
    name: str = "classifier"
    averaged_from: float = math.inf
    """Epochs after which rows are averaged."""
    epoch_steps: int = 1
    """Batches of the present epoch."""

    def start_epoch(self, epoch: int) -> dict[str, float]:
        """Refresh negatives and order on the frozen document vectors and the present rows."""
        searched = TableLabelVectors(self.head, self.data.text_LD)
        figures = self.negatives.refresh(epoch, searched.documents(self.data.doc_ND), searched)
        figures = self.order.refresh(epoch, self.data.doc_ND) | figures
        check_draws(self.head.shard.world, self.order, self.negatives, epoch)
        return figures

    def batches(self, epoch: int) -> list[I64]:
        """Return the batches of ``epoch``, as positions of documents."""
        batches = self.order.batches(epoch)
        self.epoch_steps = max(len(batches), 1)
        return batches

    def learnable(self, docs_B: I64, step: int) -> bool:
        """Return True if a document of the batch has a positive to learn from and a negative."""
        return self.negatives.pool(docs_B, step).learnable

    def prepare(self, docs_B: I64, step: int) -> tuple[Pool, Tensor]:
        """Return the pool of the batch, and its document vectors after dropout, on the device."""
        doc_BD = torch.from_numpy(np.ascontiguousarray(self.data.doc_ND[docs_B]))
        doc_BD = dropped(doc_BD, self.dropout, torch_generator(self.seed, "dropout", step))
        return self.negatives.pool(docs_B, step), put(doc_BD.numpy(), self.head.table.rows_LD.device)

    def step(
        self, docs_B: I64, step: int, scale: float, ready: tuple[Pool, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Score the batch against the pool's rows and update these rows."""
        if step >= self.averaged_from * self.epoch_steps:
            for table in self.head.tables:
                table.average()
        pool, doc_BD = ready or self.prepare(docs_B, step)
        descent = self.head.descend(doc_BD, pool, docs_B, scale)
        return descent.loss, descent.count

    def tensors(self) -> dict[str, Tensor]:
        """Return rows, optimiser state, and the state of loss, order and negatives."""
        return {
            **{f"head/{name}": value for name, value in self.head.tensors().items()},
            **{f"order/{name}": torch.from_numpy(value) for name, value in self.order.arrays().items()},
            **{f"negatives/{name}": torch.from_numpy(value) for name, value in self.negatives.arrays().items()},
        }

    def tables(self) -> dict[str, LabelTable]:
        """Return the rows and, if there is one, the bias."""
        return {f"head/{prefix}": table for prefix, table in self.head.named().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore saved state."""
        self.head.load(tensors_under(tensors, "head/"))
        self.order.load({name: value.numpy() for name, value in tensors_under(tensors, "order/").items()})
        self.negatives.load({name: value.numpy() for name, value in tensors_under(tensors, "negatives/").items()})
