"""The vectors between which hard negatives are searched while a table is trained."""

from __future__ import annotations

from dataclasses import dataclass

from xc_core.classifiers.table_head import TableHead
from xc_core.sampling import ROWS
from xc_core.shapes import F32, extended


@dataclass(frozen=True)
class TableLabelVectors:
    """Vectors of all labels, computed on access, and of documents, as wide as rows with their bias."""

    head: TableHead
    text_LD: F32

    @property
    def steady(self) -> bool:
        """True on a card, whose rows are copied to be searched; elsewhere they may be those of the table itself."""
        return self.head.table.rows_LD.device.type != "cpu"

    def __getitem__(self, where: str) -> F32:
        """Return the present rows, or the label texts; a text has no bias."""
        return self.head.vectors().cpu().numpy() if where == ROWS else self._with_bias(self.text_LD, 0.0)

    def documents(self, doc_ND: F32) -> F32:
        """Return documents whose product with a row is their score."""
        return self._with_bias(doc_ND, 1.0)

    def _with_bias(self, vectors_ND: F32, last: float) -> F32:
        return vectors_ND if self.head.bias is None else extended(vectors_ND, last)
