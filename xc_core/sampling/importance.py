"""ASTRA's source: a document's own hard negatives and weighted uniform draws, an unbiased sample of all labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.params import MAX_EPOCHS, at_least, later, within
from xc_core.plugins import HasUnused
from xc_core.sampling.base import NEGATIVES, Documents, LabelPool, LabelVectors, NegativeSource, mask
from xc_core.sampling.searched import Searching, SearchingSource
from xc_core.seeds import generator
from xc_core.shapes import F32, I64, PAD_ID, Array


@NEGATIVES.register("importance")
@dataclass(frozen=True, kw_only=True)
class Importance(Searching, HasUnused):
    """A document's own hard negatives with weight 1, and uniform draws with a weight that makes the loss unbiased.

    ``uniform`` labels are drawn per batch without replacement from all L. A document uses those that are neither its
    positives nor its hard negatives, each with weight L / uniform: a label is drawn with probability uniform / L, so
    the weighted sum is in expectation the sum over all such labels (ASTRA, equation 2 and lemma 4.1; the paper draws
    per document from L - k_h labels, with weight (L - k_h) / k_r). Labels that other documents added have weight 0.

    With ``draws`` above 1, every draw-th document of the batch shares one of as many independent draws. The weights
    are the same, so the loss stays unbiased; its error is averaged over the draws, and the pool is larger.

    Before the first search all negatives are uniform (algorithm 1, line 8). With ``uniform`` 0 all negatives are hard,
    and the loss is biased.
    """

    hard: int = 40
    """Hard negatives per document (k_h)."""
    uniform: int = 1024
    """Labels per draw (k_r)."""
    draws: int = later(1, was=1)
    """Independent draws per batch, each shared by an equal part of its documents."""
    curriculum: float = 0.0
    """Epochs over which the hard negatives grow from none to ``hard``, uniform ones making up the rest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, hard=0, uniform=0, draws=1)
        within(self, curriculum=(0, MAX_EPOCHS))
        if not self.hard:
            at_least(self, uniform=1)

    def shortened(self, epochs: float, *, of: float) -> dict[str, Any]:
        """Return the changes of the search, and a curriculum that is shortened in proportion."""
        changes = super().shortened(epochs, of=of)
        if self.curriculum and math.ceil(epochs) > 1:
            changes["curriculum"] = float(f"{self.curriculum * epochs / of:.3g}")
        return changes

    def unused(self) -> frozenset[str]:
        """Without hard negatives, settings of the search are unused."""
        searching = {"search_in", "refresh_every", "warmup_epochs", "ahead", "curriculum"}
        return frozenset() if self.hard else frozenset(searching)

    def build(self, documents: Documents, seed: int) -> NegativeSource:
        """Return the source."""
        return ImportanceSource(self, documents, seed)


class ImportanceSource(SearchingSource[Importance]):
    """Hard negatives with weight 1 and weighted uniform draws."""

    def __init__(self, settings: Importance, documents: Documents, seed: int) -> None:
        super().__init__(settings, documents, seed)
        self.epoch = 0

    def refresh(self, epoch: int, doc_ND: F32, labels: LabelVectors) -> dict[str, float]:
        """Search if due; store the epoch, for the curriculum."""
        self.epoch = epoch
        figures = super().refresh(epoch, doc_ND, labels)
        hard, grows = self._counts()[0], self.settings.hard and self.settings.curriculum
        return figures | ({"hard_used": float(hard)} if figures or grows else {})

    def arrays(self) -> dict[str, Array]:
        """Return the hard negatives and the epoch."""
        return super().arrays() | {"epoch": np.array([self.epoch])}

    def load(self, arrays: dict[str, Array]) -> None:
        """Restore the hard negatives and the epoch."""
        super().load(arrays)
        self.epoch = int(arrays["epoch"][0])

    def estimates(self) -> dict[str, NegativeSource]:
        """Return this source and, for comparison, one with as many negatives, all of them uniform."""
        uniform = replace(self.settings, hard=0, uniform=sum(self._counts()), ahead=0, curriculum=0.0)
        all_uniform = ImportanceSource(uniform, Documents(self.truth, self.known), self.seed)
        return {"gradient_error": self, "gradient_error_uniform": all_uniform}

    def _counts(self) -> tuple[int, int]:
        """Return how many hard and uniform negatives there are now; their sum is constant."""
        settings = self.settings
        share = min(self.epoch / settings.curriculum, 1.0) if settings.curriculum else 1.0
        hard = min(round(settings.hard * share), self.hard_NK.shape[1])
        return hard, settings.uniform + settings.hard - hard if self._replaces_hard else settings.uniform

    @property
    def _replaces_hard(self) -> bool:
        """True if uniform draws replace hard negatives that are not there yet."""
        return bool(self.settings.curriculum) or not self.hard_NK.shape[1]

    def pool(self, docs_B: I64, step: int) -> LabelPool:
        """Return positives, hard negatives and draws with their weights.

        They depend on the seed, ``step``, the last search and the epoch.
        """
        chosen = self._chosen(docs_B, step)
        hard, uniform = self._counts()
        hard_BK = self.hard_NK[docs_B, :hard]
        size = self.truth.num_labels
        drawn_GK = self._draw_uniform(min(uniform, size), step)
        filled_BK = hard_BK != PAD_ID
        hard_pairs = LabelMatrix.from_pairs(np.nonzero(filled_BK)[0], hard_BK[filled_BK], (len(docs_B), size))
        labels_U = np.unique(np.concatenate([chosen.indices, hard_pairs.indices, drawn_GK.ravel()])).astype(np.int64)
        pool = self._pool(docs_B, chosen, labels_U)
        weight_BU = np.zeros(pool.known_BU.shape, np.float32)
        for group, drawn_K in enumerate(drawn_GK if drawn_GK.size else ()):
            weight_BU[group :: len(drawn_GK), np.searchsorted(labels_U, drawn_K)] = size / len(drawn_K)
        weight_BU[mask(hard_pairs, labels_U)] = 1.0
        weight_BU[pool.known_BU] = 0.0
        return LabelPool(labels_U, pool.chosen_BU, pool.known_BU, weight_BU)

    def _draw_uniform(self, count: int, step: int) -> I64:
        """Return the uniform draws (draws x ``count``), each without replacement."""
        random, size = generator(self.seed, "uniform", step), self.truth.num_labels
        drawn = [random.choice(size, count, replace=False, shuffle=False) for _ in range(self.settings.draws)]
        return np.stack(drawn).astype(np.int64)
