"""The vectors of all labels that M1 searches for hard negatives, and the rows that it releases.

With one head they are the arrays of the training itself. Otherwise they are computed block by block, so that no array
of all of them exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from xc_core.classifiers import TableHead
from xc_core.encoders import Encoder
from xc_core.errors import UsageError
from xc_core.sampling import ROWS
from xc_core.shapes import Computed, Vectors
from xc_core.train.banks import Bank
from xc_core.train.heads import Head


@dataclass(frozen=True)
class EncoderLabelVectors:
    """The vectors of L labels, as they are when they are read."""

    encoder: Encoder
    head: Head
    texts: Bank
    documents: Bank
    in_documents: bool
    """True if steps encode label texts only as documents, the last L of them."""
    labels: int
    """L."""

    @property
    def steady(self) -> bool:
        """True on a card, whose vectors are copied to be searched."""
        return self.encoder.device.type != "cpu"

    def __getitem__(self, where: str) -> Vectors:
        """Return the vectors of label "texts" or the "rows" of the table, for a search."""
        return self.rows() if where == ROWS else self._text_vectors()

    def _text_vectors(self) -> Vectors:
        """Return the latest vectors of the label texts (L x D)."""
        if self.in_documents:
            label_rows = self.documents.rows_ND[-self.labels :]
            return self._stored_or_computed(label_rows, lambda block: self.encoder.as_label(label_rows[block]))
        stored = self.texts.rows_ND
        return self._stored_or_computed(stored, lambda block: self.encoder.as_texts(stored[block]))

    def rows(self) -> Vectors:
        """Return the table's rows (L x D) as documents are scored against them; UsageError if there is no table."""
        head = self._require_table()
        stored = None if head.table.config.unit or not head.table.rows.exact else head.table.rows_LD
        return self._stored_or_computed(stored, lambda block: self.encoder.as_rows(head.vectors_at(block)))

    def released(self) -> Vectors:
        """Return the table's rows (L x D) as they are served; UsageError if there is no table."""
        head = self._require_table()
        shape = (self.labels, self.encoder.width)
        return Computed(shape, lambda block: self.encoder.as_rows(head.released_at(block)).cpu().numpy())

    def _stored_or_computed(self, stored_LD: Tensor | None, read: Callable[[slice], Tensor]) -> Vectors:
        """Return ``stored_LD`` itself if there is one head, else what ``read`` returns; a copy of what is on a card."""
        if stored_LD is not None and self.encoder.config.heads == 1:
            return np.asarray(stored_LD.cpu().numpy())
        computed = Computed((self.labels, self.encoder.width), lambda block: read(block).cpu().numpy())
        return np.asarray(computed) if self.steady else computed

    def _require_table(self) -> TableHead:
        if self.head.rows is None:
            raise UsageError(
                "rows of a training without a table", expected="a scorer with rows", do="set encoder.scorer to row"
            )
        return self.head.rows
