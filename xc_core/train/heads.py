"""Heads of M1: score documents against label texts, rows of a table, or both; and the settings of each (scorers)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from xc_core.classifiers import MAPPED, Descent, LabelTable, TableConfig, TableHead, dropped, marks
from xc_core.data.tokens import Tokens
from xc_core.distributed import ALONE, World
from xc_core.encoders import Cached, Encoder, Passes, encode_passes
from xc_core.errors import ConfigError
from xc_core.losses import BatchLoss, DecoupledSoftmax, Loss
from xc_core.losses.base import summed
from xc_core.params import at_least, below, later, within
from xc_core.plugins import Part, Table
from xc_core.sampling import Pool
from xc_core.shapes import I64
from xc_core.train.parallel import gathered, local_rows
from xc_core.train.state import tensors_under


@dataclass(frozen=True)
class Batch:
    """A mini-batch: its encoded documents (B x D) and the pool they are scored against."""

    doc_BD: Tensor
    pool: Pool
    docs_B: I64
    scale: float
    """The schedule's factor on the learning rate."""
    random: torch.Generator = field(default_factory=torch.Generator)
    """For dropout; depends on seed and step alone."""
    texts: Passes | None = None
    """The texts of the pool's labels that this process encodes, ready for it; None: the head prepares them."""
    world: World = ALONE
    """The processes that encode parts of the pool's labels."""
    local_UD: Tensor | None = None
    """Vectors of this process's texts, if they were encoded with the documents."""


@dataclass(frozen=True)
class Scored:
    """The loss of a batch, and the tensors that its gradient flows back from."""

    loss: Tensor
    """Summed over the batch; a float64 scalar on the encoder's device, as ``count``."""
    count: Tensor
    tensors: list[Tensor]
    gradients: list[Tensor | None]
    """Gradients of the loss / count with respect to ``tensors``; None for a tensor that is the mean loss itself."""
    label_UD: Tensor | None = None
    """Vectors of the pool's label texts, if they were encoded."""
    cached: Cached | None = None
    """Label texts that are encoded a second time, for their gradient (GradCache)."""

    def backward(self) -> None:
        """Add the gradient to the encoder's parameters."""
        torch.autograd.backward(self.tensors, self.gradients)
        if self.cached is not None:
            self.cached.backward()


class Head(Protocol):
    """Scores documents against the labels of a pool."""

    @property
    def reads_texts(self) -> bool:
        """True if label texts are encoded."""

    @property
    def reads_once(self) -> bool:
        """True if label texts are encoded once in a step, so that they can be prepared ahead of it."""

    @property
    def rows(self) -> TableHead | None:
        """The table that is trained along with the encoder, if there is one."""

    def tables(self) -> dict[str, LabelTable]:
        """Return the label tables by the prefix of their tensors' names."""

    def score(self, encoder: Encoder, labels: Tokens, batch: Batch) -> Scored:
        """Return the loss of a batch and update the rows of a table. ``labels``: the tokens of label texts."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all state, to be saved."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore saved state."""


@dataclass
class TextHead:
    """Scores are products with the vectors of the pool's label texts, which are encoded once per batch."""

    reads_texts = True
    rows = None
    loss: BatchLoss
    cache: bool = False
    """Encode label texts twice instead of keeping their activations (GradCache)."""

    @property
    def reads_once(self) -> bool:
        """Once, unless activations are not kept."""
        return not self.cache

    def tables(self) -> dict[str, LabelTable]:
        """There is no table."""
        return {}

    def score(self, encoder: Encoder, labels: Tokens, batch: Batch) -> Scored:
        """Return the loss of a batch; its gradient flows into documents and label texts."""
        with encoder.autocast():
            cached = Cached(encoder, _label_passes(encoder, labels, batch)) if self.cache else None
            local_UD = _encode_labels(encoder, labels, batch) if cached is None else cached.vectors_UD
        label_UD = gathered(local_UD, len(batch.pool.labels_U), batch.world)
        doc_BD, label_ND = encoder.views(batch.doc_BD)[0], encoder.views(label_UD)[0]
        inputs = (doc_BD @ label_ND.T, *marks(batch.pool, batch.docs_B, doc_BD.device))
        total, counted = summed(self.loss, *inputs)
        mean = total / counted.clamp(min=1)
        return Scored(total.detach().double(), counted.double(), [mean], [None], label_UD, cached)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of the loss."""
        return {f"loss/{name}": value for name, value in self.loss.tensors().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state of the loss."""
        self.loss.load(tensors_under(tensors, "loss/"))


@dataclass
class RowHead:
    """Scores are products with rows of a table, which has its own optimiser; no label text is read."""

    reads_texts = False
    reads_once = False
    rows: TableHead
    dropout: float = 0.0
    """Share of the coordinates of a document vector that are set to zero before it is scored against rows."""

    def score(self, encoder: Encoder, labels: Tokens, batch: Batch) -> Scored:
        """Update the rows and return the loss and the gradient of the documents."""
        doc_BD, descent = self.descend(encoder, batch)
        return Scored(_mean_loss(descent) * descent.count, descent.count, [doc_BD], [descent.gradient_BD])

    def descend(self, encoder: Encoder, batch: Batch) -> tuple[Tensor, Descent]:
        """Update the rows; return the document vectors that rows are scored with, and the result of the step."""
        doc_BD = dropped(encoder.views(batch.doc_BD)[1], self.dropout, batch.random)
        return doc_BD, self.rows.descend(doc_BD, batch.pool, batch.docs_B, batch.scale)

    def tables(self) -> dict[str, LabelTable]:
        """Return the rows and, if there is one, the bias."""
        return self.rows.named()

    def tensors(self) -> dict[str, Tensor]:
        """Return the table's rows and optimiser state, and the state of the loss."""
        return self.rows.tensors()

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the table and the loss."""
        self.rows.load(tensors)


@dataclass
class BothHeads:
    """share x (loss on label texts) + (1 - share) x (loss on rows) of one batch and pool (UniDEC, section 3.3)."""

    reads_texts = True
    share: float
    texts: TextHead
    table: RowHead

    @property
    def reads_once(self) -> bool:
        """As the head of label texts does."""
        return self.texts.reads_once

    @property
    def rows(self) -> TableHead | None:
        """The table."""
        return self.table.rows

    def score(self, encoder: Encoder, labels: Tokens, batch: Batch) -> Scored:
        """Update the rows and return the weighted loss."""
        texts = self.texts.score(encoder, labels, batch)
        doc_BD, descent = self.table.descend(encoder, batch)
        row_share = 1 - self.share
        return Scored(
            (self.share * texts.loss / texts.count.clamp_min(1) + row_share * _mean_loss(descent)) * descent.count,
            descent.count,
            [self.share * texts.tensors[0], doc_BD],
            [None, None if descent.gradient_BD is None else row_share * descent.gradient_BD],
            texts.label_UD,
            texts.cached,
        )

    def tables(self) -> dict[str, LabelTable]:
        """Return those of the head on rows."""
        return {f"table/{prefix}": table for prefix, table in self.table.tables().items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of both."""
        return self.texts.tensors() | {f"table/{name}": value for name, value in self.table.tensors().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state of both."""
        self.texts.load(tensors)
        self.table.load(tensors_under(tensors, "table/"))


def _label_passes(encoder: Encoder, labels: Tokens, batch: Batch) -> Passes:
    return batch.texts or Passes.of(encoder, labels, local_rows(batch.pool.labels_U, batch.world))


def _encode_labels(encoder: Encoder, labels: Tokens, batch: Batch) -> Tensor:
    return encode_passes(encoder, _label_passes(encoder, labels, batch)) if batch.local_UD is None else batch.local_UD


def _mean_loss(descent: Descent) -> Tensor:
    """Return the loss per counted document or pair; 0 if there is none, because the loss is 0 then."""
    return descent.loss / descent.count.clamp_min(1)


SCORERS: Table[type[Scorer]] = Table("scorer")


class Scorer(Part):
    """Source of the labels' vectors in M1; builds the head of the training."""

    table = SCORERS
    reads_texts: bool = False
    """True if label texts are encoded in a step."""
    trains_rows: bool = False
    """True if a table of rows is trained along with the encoder."""

    def build(self, loss: Loss, encoder: Encoder, num_labels: int) -> Head:
        """Return the head; rows of a table are zero until the training starts."""
        raise NotImplementedError

    def sparing(self) -> Scorer:
        """Return the same source with less memory."""
        return self


@SCORERS.register("label-text")
@dataclass(frozen=True, kw_only=True)
class ByText(Scorer):
    """Encode the label's text."""

    reads_texts = True
    cache: bool = False
    """Encode the labels of a pool twice instead of keeping their activations: needs less memory (GradCache)."""

    def build(self, loss: Loss, encoder: Encoder, num_labels: int) -> Head:
        """Return the head."""
        return TextHead(loss.build(), self.cache)

    def sparing(self) -> ByText:
        """Return the same source that encodes label texts twice."""
        return replace(self, cache=True)


@SCORERS.register("row")
@dataclass(frozen=True, kw_only=True)
class ByRow(Scorer):
    """A row of a table, trained along with the encoder; the stage classifier starts from these rows."""

    trains_rows = True
    rows: TableConfig = field(default_factory=TableConfig)
    dropout: float = later(0.0, was=0.0)
    """Share of the coordinates of a document vector that are set to zero in a step (ASTRA, table 11)."""

    def __post_init__(self) -> None:
        _check_dropout(self)

    def build(self, loss: Loss, encoder: Encoder, num_labels: int) -> Head:
        """Return the head."""
        return RowHead(_build_table(self.rows, loss, encoder, num_labels), self.dropout)


@SCORERS.register("text-and-row")
@dataclass(frozen=True, kw_only=True)
class ByBoth(Scorer):
    """Label texts and rows at once, each with its own loss (UniDEC)."""

    reads_texts = True
    trains_rows = True
    share: float = 0.5
    """Weight of the loss on label texts (lambda of UniDEC); that on rows has 1 - share. Both weight the gradient of
    the encoder. Rows get the gradient of their own loss without a weight; ``rmsprop`` does not depend on a factor."""
    loss: Loss = field(default_factory=DecoupledSoftmax)
    """The loss on rows; the loss on label texts is a setting of the training."""
    rows: TableConfig = field(default_factory=TableConfig)
    cache: bool = False
    """Encode the labels of a pool twice instead of keeping their activations (GradCache)."""
    dropout: float = later(0.0, was=0.0)
    """Share of the coordinates of a document vector that are set to zero before it is scored against rows."""

    def __post_init__(self) -> None:
        within(self, share=(0, 1))
        _check_dropout(self)

    def build(self, loss: Loss, encoder: Encoder, num_labels: int) -> Head:
        """Return the head."""
        rows = RowHead(_build_table(self.rows, self.loss, encoder, num_labels), self.dropout)
        return BothHeads(self.share, TextHead(loss.build(), self.cache), rows)

    def sparing(self) -> ByBoth:
        """Return the same source that encodes label texts twice."""
        return replace(self, cache=True)


def _check_dropout(config: ByRow | ByBoth) -> None:
    at_least(config, dropout=0)
    below(config, dropout=1)


def _build_table(config: TableConfig, loss: Loss, encoder: Encoder, num_labels: int) -> TableHead:
    """Return a table of zeros, as wide as the document vectors that rows are scored with."""
    if config.storage == MAPPED and encoder.device.type != "cpu":
        raise ConfigError(
            f"rows in a mapped file, trained along with an encoder on {encoder.device.type}",
            expected="rows in the memory of the device",
            do='set scorer.rows.storage to "memory", or train on the CPU',
        )
    width = encoder.width // encoder.config.heads
    rows_LD = torch.zeros(1, device=encoder.device).expand(num_labels, width)  # no memory: the table has its own
    return TableHead(LabelTable(rows_LD, config), loss.build(), loss.divisor)
