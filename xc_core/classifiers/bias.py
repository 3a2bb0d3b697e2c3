"""A bias per label: a number that is added to the scores of the label's row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from xc_core.classifiers.shard import WHOLE, Shard
from xc_core.classifiers.table import LabelTable, TableConfig
from xc_core.data.labels import LabelMatrix
from xc_core.params import within
from xc_core.plugins import HasUnused


@dataclass(frozen=True, kw_only=True)
class BiasConfig(HasUnused):
    """A trained number per label that is added to its scores, so that frequent labels need no direction in space."""

    lr: float = 0.0
    """Learning rate after the warm-up, in units of the score, up to 100; 0 trains no bias."""
    prior: float = 1.0
    """The bias starts at ``prior`` times the loss's temperature times log(share of the documents with the label).
    0 to 100; 1 is the logarithm of the label's frequency itself."""

    def __post_init__(self) -> None:
        within(self, lr=(0, 100), prior=(0, 100))

    def unused(self) -> frozenset[str]:
        """Without a learning rate there is no bias."""
        return frozenset() if self.lr else frozenset({"prior"})

    def build(self, truth: LabelMatrix, temperature: float, shard: Shard = WHOLE) -> LabelTable | None:
        """Return the table of the bias of a shard's labels (L x 1), or None if there is none.

        A label without documents counts as half a document, because a share of 0 has no logarithm.
        """
        if not self.lr:
            return None
        share_L = np.maximum(truth.frequency_L(), 0.5) / max(len(truth), 1)
        start_L1 = (self.prior * temperature * np.log(share_L)).astype(np.float32)[:, None]
        return LabelTable(torch.from_numpy(shard.of(start_L1)), TableConfig(unit=False, lr=self.lr))
