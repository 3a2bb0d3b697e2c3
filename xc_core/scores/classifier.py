"""The score ``classifier``: the inner product of the document and the label's row in the table of M4, E(x) . w + b."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from xc_core.ann import Auto, IndexPart
from xc_core.scores.base import SCORES, FittedScore, HasIndex, NewLabels, ScoreData
from xc_core.scores.vectors import ByVectors, VectorScore
from xc_core.shapes import F32, extended


@SCORES.register("classifier")
@dataclass(frozen=True, kw_only=True)
class Classifier(ByVectors, HasIndex):
    """Compares a document with the trained row of each label."""

    index: IndexPart = field(default_factory=Auto)
    joined: bool = False
    """Search by the sum of this score and ``label_text``: the index holds the sum of both vectors of each label, so a
    product is the sum of both scores, as in a search over concatenated vectors (UniDEC, section 3.4)."""

    def fit(self, data: ScoreData) -> FittedScore:
        """Build the index over the rows."""
        rows_LD = data.rows()
        return VectorScore.build(rows_LD, self.index, _joined(rows_LD, data.label_vectors()) if self.joined else None)

    def extended(self, fitted: FittedScore, new: NewLabels) -> FittedScore:
        """Add the predicted rows."""
        assert isinstance(fitted, VectorScore)
        searched_LD = _joined(new.rows, new.label_vectors) if self.joined else None
        return fitted.extended(new.rows[new.before :], searched_LD)

    def open(self, folder: Path) -> FittedScore:
        """Open the rows and the index."""
        return VectorScore.open(folder, joined=self.joined)


def _joined(rows_LD: F32, text_LD: F32) -> F32:
    """Return the sum of both vectors of each label; the bias of a row stays as it is."""
    return rows_LD + (extended(text_LD, 0.0) if rows_LD.shape[1] > text_LD.shape[1] else text_LD)
