"""The rows of a table that one step scores: forward and backward by hand, in buffers that stay allocated.

The operations are those of autograd, in its order, so results are equal to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from xc_core.classifiers.table import LabelTable

_LEAST: Final = 1e-12
"""Least length that a row is divided by, as in ``torch.nn.functional.normalize``."""


@dataclass
class PoolRows:
    """Rows of a table (U x D), and as documents are scored against them. The next step overwrites them."""

    table: LabelTable
    labels_U: Tensor
    rows_UD: Tensor
    vectors_UD: Tensor
    """Unit vectors, or the rows themselves."""
    length_U1: Tensor | None
    """Lengths of the rows if vectors are unit vectors."""

    @classmethod
    def of(cls, table: LabelTable, labels_U: Tensor) -> PoolRows:
        """Read the rows ``labels_U`` (distinct, rising)."""
        rows_UD = table.gather(labels_U)
        if not table.config.unit:
            return cls(table, labels_U, rows_UD, rows_UD, None)
        length_U1 = rows_UD.norm(dim=1, keepdim=True)
        vectors_UD = torch.div(rows_UD, length_U1.clamp_min(_LEAST), out=table.buffer("vectors", len(rows_UD)))
        return cls(table, labels_U, rows_UD, vectors_UD, length_U1)

    def products(self, doc_BD: Tensor) -> Tensor:
        """Return the products with documents (B x U, float32)."""
        kind = self.table.product
        return (doc_BD.to(kind) @ self.vectors_UD.to(kind).T).float()

    def back_to_documents(self, slope_BU: Tensor) -> Tensor:
        """Return d(loss) / d(documents) (B x D), given d(loss) / d(products)."""
        kind = self.table.product
        return (slope_BU.to(kind) @ self.vectors_UD.to(kind)).float()

    def back_to_rows(self, slope_BU: Tensor, doc_BD: Tensor) -> Tensor:
        """Return d(loss) / d(rows) (U x D) in a buffer, given d(loss) / d(products)."""
        kind, out = self.table.product, self.table.buffer("gradient", len(self.rows_UD))
        if kind == torch.float32:
            torch.mm(slope_BU.T, doc_BD, out=out)
        else:
            out.copy_(slope_BU.to(kind).T @ doc_BD.to(kind))
        if self.length_U1 is not None:
            self._backward_through_norm(out, self.length_U1)
        return out

    def _backward_through_norm(self, gradient_UD: Tensor, length_U1: Tensor) -> None:
        """Turn d(loss) / d(v) into d(loss) / d(w) in place, v = w / |w|: (g - v (v . g)) / |w|."""
        for chunk in self.table.chunks(len(gradient_UD)):
            gradient, length = gradient_UD[chunk], length_U1[chunk]
            divisor = length.clamp_min(_LEAST)
            along = torch.div(self.vectors_UD[chunk], divisor).mul_(gradient).sum(1, keepdim=True).neg_()
            along.masked_fill_(length < _LEAST, 0.0)
            unit = torch.div(self.rows_UD[chunk], length).masked_fill_(length == 0, 0.0)
            gradient.div_(divisor).add_(unit.mul_(along))
