"""Noise distributions p_n(label | document): what drawn labels are drawn from, and what prediction gives back.

Takes: document vectors, LabelMatrix.                  Gives: Noise, its plain arrays.
May import: errors, plugins, shapes, data.labels, sampling.label_tree.  Never: reads a validation or test row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from safetensors.numpy import load_file, save_file

from xc_core.data.labels import LabelMatrix
from xc_core.errors import CorruptError
from xc_core.plugins import Table
from xc_core.sampling.label_tree import LabelTree
from xc_core.shapes import F32, F64, I32, I64, PAD_ID, Array

FILE: Final = "noise.safetensors"


class Noise(Protocol):
    """A distribution over the labels for each document."""

    def log_prob(self, doc_BD: F32, labels_BK: I64) -> F64:
        """Return log p_n(y | x) of K labels of each document (B x K); -inf for holes."""

    def likely(self, doc_BD: F32, k: int) -> I32:
        """Return about the ``k`` likeliest labels of each document (B x k), holes last."""

    def arrays(self) -> dict[str, Array]:
        """Return all of it as plain arrays."""


class FrequencyNoise:
    """p_n(y) = the share of label y among the train pairs, whatever the document."""

    def __init__(self, log_prob_L: F64) -> None:
        self.log_prob_L = log_prob_L

    @classmethod
    def of(cls, truth: LabelMatrix) -> FrequencyNoise:
        """Count; a label without a pair counts half a pair, for a share of 0 has no logarithm."""
        counts_L = np.maximum(truth.frequency_L().astype(np.float64), 0.5)
        return cls(np.log(counts_L / counts_L.sum()))

    def log_prob(self, doc_BD: F32, labels_BK: I64) -> F64:
        """Return the logarithm of each label's share."""
        return np.where(labels_BK == PAD_ID, -np.inf, self.log_prob_L[np.maximum(labels_BK, 0)])

    def likely(self, doc_BD: F32, k: int) -> I32:
        """Return the most frequent labels, the same for each document."""
        best = np.argsort(-self.log_prob_L, kind="stable")[:k].astype(np.int32)
        return np.broadcast_to(best, (len(doc_BD), len(best))).copy()

    def arrays(self) -> dict[str, Array]:
        """Return the shares."""
        return {"log_prob_L": self.log_prob_L}


NOISES: Table[Callable[[dict[str, Array]], Noise]] = Table("noise")
NOISES.add("frequency", lambda arrays: FrequencyNoise(arrays["log_prob_L"]))
NOISES.add("tree", LabelTree.from_arrays)


def save_noise(noise: Noise, folder: Path) -> None:
    """Write ``noise.safetensors`` into ``folder``."""
    kind = "tree" if isinstance(noise, LabelTree) else "frequency"
    arrays = {f"{kind}/{name}": np.ascontiguousarray(value) for name, value in noise.arrays().items()}
    save_file(arrays, folder / FILE)


def load_noise(folder: Path) -> Noise | None:
    """Return what ``save_noise`` wrote; None where nothing was written."""
    if not (folder / FILE).is_file():
        return None
    arrays = load_file(folder / FILE)
    kinds = {name.partition("/")[0] for name in arrays}
    if len(kinds) != 1 or not kinds <= set(NOISES):
        raise CorruptError(f"{folder / FILE} of kind {sorted(kinds)}", expected="one noise", do="train again")
    (kind,) = kinds
    return NOISES[kind]({name.partition("/")[2]: value for name, value in arrays.items()})
