"""The score ``biased_rows``: a second label table with a bias per label, for a loss that knows how frequent a label is.

It is trained when the score is fitted; a training that is killed starts again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch

from xc_core.ann import Auto, IndexPart
from xc_core.classifiers import (
    BiasConfig,
    LabelTable,
    TableConfig,
    TableHead,
    TableLabelVectors,
    dropped,
    foreseen_rows,
    schedule,
)
from xc_core.errors import ConfigError, DataError, DivergedError
from xc_core.losses import DecoupledSoftmax, Loss
from xc_core.params import MAX_EPOCHS, at_least, below, within
from xc_core.sampling import Documents, InBatch, Negatives, Order, Random
from xc_core.scores.base import SCORES, FittedScore, HasIndex, NewLabels, Sample, ScoreData
from xc_core.scores.vectors import ByVectors, VectorScore
from xc_core.seeds import generator, torch_generator
from xc_core.shapes import F32, as_slice

_WIDTH: Final = 384
"""Width of the random vectors on which a training is timed: that of MiniLM."""


@SCORES.register("biased_rows")
@dataclass(frozen=True, kw_only=True)
class BiasedRows(ByVectors, HasIndex):
    """E(x) . w_l + b_l with rows and biases of their own, trained on frozen document vectors as in M4.

    Beside a classifier whose loss is a triplet, which ranks rare labels well, a softmax ranks frequent ones better.
    """

    order: Order = field(default_factory=lambda: Random(batch_size=1024))
    negatives: Negatives = field(default_factory=lambda: InBatch(positives=0, unseen=128))
    loss: Loss = field(default_factory=DecoupledSoftmax)
    rows: TableConfig = field(default_factory=lambda: TableConfig(lr=0.02))
    bias: BiasConfig = field(default_factory=lambda: BiasConfig(lr=0.01))
    epochs: int = 15
    warmup: float = 0.03
    """Share of the training that is warm-up."""
    dropout: float = 0.3
    """Share of the coordinates of a document vector that are set to zero in a step."""
    seed: int = 0
    """Root seed."""
    index: IndexPart = field(default_factory=Auto)

    def __post_init__(self) -> None:
        at_least(self, warmup=0, dropout=0)
        within(self, epochs=(1, MAX_EPOCHS))
        below(self, warmup=1, dropout=1)
        for name, chosen in (("order", self.order), ("negatives", self.negatives)):
            if chosen.stored:
                raise ConfigError(
                    f"{name} {chosen.kind!r}", expected=f"{name} that no stage stores", do="fix the value"
                )

    def fit(self, data: ScoreData) -> FittedScore:
        """Train the table and build the index.

        Raises DivergedError if a loss is not finite, DataError if no batch has anything to learn.
        """
        return VectorScore.build(self._trained(data, self.epochs), self.index)

    def extended(self, fitted: FittedScore, new: NewLabels) -> FittedScore:
        """Add rows that the linear map from texts to this table's rows predicts, bias included.

        The map shrinks: if rows are unit vectors, products with a new row would be too low without its length. It
        learns from labels whose rows in the label table are trained, so from none that an earlier addition predicted.
        """
        assert isinstance(fitted, VectorScore)
        learnt = as_slice(np.setdiff1d(np.arange(new.before), sorted(new.foreseen)))
        old_LD, text_ND = new.label_vectors[: new.before], new.label_vectors[new.before :]
        rows_ND = foreseen_rows(text_ND, old_LD[learnt], fitted.vectors_LD[learnt], unit=self.rows.unit)
        return fitted.extended(rows_ND)

    def cost(self, sample: Sample) -> float:
        """Return the seconds of all fits, from one epoch on random vectors."""

        def one_epoch(data: ScoreData) -> F32:
            random = generator(self.seed, "cost")
            docs, labels = (random.standard_normal((size, _WIDTH), np.float32) for size in data.truth.shape)
            return self._trained(replace(data, vectors=lambda: docs, label_vectors=lambda: labels), 1)

        return self.epochs * sample.seconds(one_epoch)

    def _trained(self, data: ScoreData, epochs: int) -> F32:
        """Return rows with their bias as the last column."""
        doc_ND, text_LD = np.ascontiguousarray(data.vectors()), data.label_vectors()
        documents = Documents(data.truth, data.filters)
        bias = self.bias.build(data.truth, self.loss.divisor)
        table = LabelTable(torch.from_numpy(np.array(text_LD)), self.rows)
        head = TableHead(table, self.loss.build(), self.loss.divisor, bias=bias)
        order, source = self.order.build(documents, self.seed), self.negatives.build(documents, self.seed)
        searched, step = TableLabelVectors(head, text_LD), 0
        for epoch in range(epochs):
            order.refresh(epoch, doc_ND)
            source.refresh(epoch, searched.documents(doc_ND), searched)
            batches = order.batches(epoch)
            if not step and not any(source.pool(docs_B, number).learnable for number, docs_B in enumerate(batches)):
                raise DataError(
                    f"{len(batches):,} batches of the score {self.kind!r} in which no document has a label to learn "
                    "and a negative",
                    expected="negatives in the batches",
                    do="raise order.batch_size of the score, choose other negatives, or check that the dataset has "
                    "several labels",
                )
            for number, docs_B in enumerate(batches):
                doc_BD = dropped(
                    torch.from_numpy(doc_ND[docs_B]), self.dropout, torch_generator(self.seed, "dropout", step)
                )
                scale = schedule((epoch + number / len(batches)) / epochs, self.warmup, epochs * len(batches))
                loss = float(head.descend(doc_BD, source.pool(docs_B, step), docs_B, scale).loss)
                if not math.isfinite(loss):
                    raise DivergedError(
                        f"a loss of {loss} in step {step} of the score {self.kind!r}",
                        expected="finite numbers",
                        do="lower rows.lr and bias.lr of the score; in step 0, look at the settings of its loss",
                    )
                step += 1
        return head.released().numpy()
