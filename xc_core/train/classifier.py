"""M3 and M4: a table row a label, started at its text's vector, learnt on frozen document vectors.

Takes: document vectors, LabelMatrix, LabelTable, the parts.   Gives: a Task.
May import: classifiers, data.labels, losses, sampling, train.state.  Never: moves a row no batch touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xc_core.classifiers import LabelTable, TableHead
from xc_core.data.labels import LabelMatrix
from xc_core.losses import Loss
from xc_core.sampling import BatchOrder, NegativeSource
from xc_core.seeds import torch_generator
from xc_core.shapes import F32, I64
from xc_core.train.state import part


@dataclass
class ClassifierTask:
    """Document vectors are frozen; rows alone learn. Unit rows suit search (NGAME, appendix C)."""

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
        """Let the negatives see vectors and rows; document vectors are frozen, so their clusters stay."""
        return self.negatives.refresh(epoch, self.doc_ND, self.table.vectors(self.table.rows_LD).numpy())

    def batches(self, epoch: int) -> list[I64]:
        """Return the order's batches of document positions."""
        return self.order.batches(epoch)

    def step(self, docs_B: I64, step: int, scale: float) -> tuple[float, float]:
        """Score the batch against the pool's rows, descend on these rows alone."""
        pool = self.negatives.pool(docs_B, step)
        doc_BD = self._dropped(torch.from_numpy(np.ascontiguousarray(self.doc_ND[docs_B])), step)
        found = TableHead(self.table, self.loss).descend(doc_BD, pool, docs_B, scale)
        return found.loss, found.count

    def _dropped(self, doc_BD: Tensor, step: int) -> Tensor:
        """Zero a share of the coordinates and stretch the rest; the draw depends on the seed and ``step`` alone."""
        if not self.dropout:
            return doc_BD
        kept = torch.rand(doc_BD.shape, generator=torch_generator(self.seed, "dropout", step)) >= self.dropout
        return doc_BD * kept / (1 - self.dropout)

    def tensors(self) -> dict[str, Tensor]:
        """Return the table's rows and their history, and what loss and negatives remember."""
        return {
            **self.table.tensors(),
            **{f"loss/{name}": value for name, value in self.loss.tensors().items()},
            **{f"negatives/{name}": torch.from_numpy(value) for name, value in self.negatives.arrays().items()},
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved state."""
        self.table.load(tensors)
        self.loss.load(part(tensors, "loss/"))
        self.negatives.load({name: value.numpy() for name, value in part(tensors, "negatives/").items()})
