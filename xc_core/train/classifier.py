"""M3 and M4: a table row a label, started at its text's vector, learnt on frozen document vectors.

Takes: document vectors, LabelMatrix, LabelTable, the parts.   Gives: a Task.
May import: classifiers, data.labels, losses, sampling, train.encoder.part.  Never: moves a row no batch touched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xc_core.classifiers import LabelTable
from xc_core.data.labels import LabelMatrix
from xc_core.losses import Loss
from xc_core.sampling import BatchOrder, NegativeSource
from xc_core.seeds import torch_generator
from xc_core.shapes import F32, I64


@dataclass
class ClassifierTask:
    """Scores are cosines of a document's vector and a table row: unit rows suit search (NGAME, appendix C)."""

    doc_ND: F32
    truth: LabelMatrix
    table: LabelTable
    order: BatchOrder
    negatives: NegativeSource
    loss: Loss
    dropout: float
    seed: int
    name: str = "classifier"

    def start_epoch(self, epoch: int) -> dict[str, float]:
        """Nothing to refresh: document vectors are frozen, so their clusters stay."""
        return {}

    def batches(self, epoch: int) -> list[I64]:
        """Return the order's batches of document positions."""
        return self.order.batches(epoch)

    def step(self, docs_B: I64, step: int, scale: float) -> tuple[float, float]:
        """Score the batch against the pool's rows, descend on these rows alone."""
        pool = self.negatives.pool(docs_B, step)
        labels_U = torch.from_numpy(pool.labels_U)
        doc_BD = self._dropped(torch.from_numpy(np.ascontiguousarray(self.doc_ND[docs_B])), step)
        rows_UD = self.table.take(labels_U)
        scores_BU = doc_BD @ torch.nn.functional.normalize(rows_UD, dim=1).T
        total, count = self.loss(scores_BU, torch.from_numpy(pool.chosen_BU), torch.from_numpy(pool.known_BU))
        loss = float(total.detach())
        if total.requires_grad and int(count) and math.isfinite(loss):
            (gradient_UD,) = torch.autograd.grad(total / count, [rows_UD])
            self.table.update(labels_U, gradient_UD, scale)
        return loss, float(count)

    def _dropped(self, doc_BD: Tensor, step: int) -> Tensor:
        """Zero a share of the coordinates and stretch the rest; the draw depends on the seed and ``step`` alone."""
        if not self.dropout:
            return doc_BD
        kept = torch.rand(doc_BD.shape, generator=torch_generator(self.seed, "dropout", step)) >= self.dropout
        return doc_BD * kept / (1 - self.dropout)

    def tensors(self) -> dict[str, Tensor]:
        """Return the table's rows and their history; the order has no state that changes."""
        return self.table.tensors()

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved state."""
        self.table.load(tensors)
