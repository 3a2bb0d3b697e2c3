"""Gradients of a batch's documents and of the rows that it scores, added up over parts of the batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from xc_core.classifiers.pool_rows import PoolRows


@dataclass
class Gradients:
    """Loss of a batch on one pool, what it counts, and the gradients that were asked for.

    Loss and count are scalars on the device of the rows; to read them waits for a card.
    """

    pooled: list[PoolRows]
    """Rows and, if there is one, the bias."""
    loss: Tensor
    """Loss summed over the parts so far."""
    count: Tensor
    """Their count."""
    docs_BD: Tensor | None
    """d(loss) / d(document vectors), zeros at first; None if it was not asked for."""
    of_rows: bool
    """Whether gradients of rows were asked for."""
    kept: bool
    """Whether gradients of rows are copied, because the next part overwrites them."""
    rows: list[Tensor] = field(default_factory=list)
    """d(loss) / d(rows) for each of ``pooled``; empty until a part has a gradient."""

    def count_in(self, loss: Tensor, count: Tensor) -> None:
        """Add the loss and the count of a part."""
        self.loss, self.count = self.loss + loss.detach(), self.count + count

    def add(self, part: slice, slope_BU: Tensor, doc_BD: Tensor) -> None:
        """Add the gradients of the documents ``part``, given d(loss) / d(scores) and their vectors."""
        rows = self.pooled[0]
        if self.docs_BD is not None:
            self.docs_BD[part] += rows.back_to_documents(slope_BU)
        if not self.of_rows:
            return
        found = [rows.back_to_rows(slope_BU, doc_BD), *(slope_BU.sum(0, keepdim=True).T for _ in self.pooled[1:])]
        if self.rows:
            for gradient, more in zip(self.rows, found, strict=True):
                gradient += more
        else:
            self.rows = [gradient.clone() for gradient in found] if self.kept else found

    def divide(self) -> None:
        """Divide the gradients by the count."""
        for gradient in (*self.rows, *([] if self.docs_BD is None else [self.docs_BD])):
            gradient.div_(self.count)
