"""The score ``label_text``: the cosine of the document and the label's text, E(x) . E(z)."""

from __future__ import annotations

from dataclasses import dataclass, field

from xc_core.ann import Auto, IndexPart
from xc_core.plugins import HasUnused
from xc_core.scores.base import SCORES, FittedScore, HasIndex, ScoreData
from xc_core.scores.vectors import ByVectors, VectorScore


@SCORES.register("label_text")
@dataclass(frozen=True, kw_only=True)
class LabelText(ByVectors, HasIndex, HasUnused):
    """Compares a document with the text of each label, so it also finds labels without train documents."""

    per_fold = False
    index: IndexPart = field(default_factory=Auto)
    search: bool = True
    """Search the label texts for candidates; if False, only score the candidates of other scores."""

    @property
    def searches(self) -> bool:
        """True with an index."""
        return self.search

    def fit(self, data: ScoreData) -> FittedScore:
        """Build the index over the vectors of the label texts."""
        return VectorScore.build(data.label_vectors(), self.index if self.search else None)

    def unused(self) -> frozenset[str]:
        """Without a search, no index is built."""
        return frozenset() if self.search else frozenset({"index"})
