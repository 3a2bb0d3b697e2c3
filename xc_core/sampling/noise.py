"""Noise distributions p_n(label | document): negatives are drawn from one, and prediction needs it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, Protocol

import numpy as np
from safetensors.numpy import save_file

from xc_core.arrays import read_arrays
from xc_core.data.labels import LabelMatrix
from xc_core.errors import CorruptError
from xc_core.plugins import Table
from xc_core.sampling.label_tree import LabelTree
from xc_core.shapes import F32, F64, I32, I64, PAD_ID, Array

_FILE: Final = "noise.safetensors"


class Noise(Protocol):
    """A distribution over the labels for each document."""

    kind: ClassVar[str]
    """Its name in the table of noise distributions."""

    @property
    def num_labels(self) -> int:
        """L."""

    def log_prob(self, doc_BD: F32, labels_BK: I64) -> F64:
        """Return log p_n(y | x) of K labels of each document (B x K); -inf for holes."""

    def likely(self, doc_BD: F32, k: int) -> I32:
        """Return about the ``k`` likeliest labels of each document (B x k), holes last."""

    def arrays(self) -> dict[str, Array]:
        """Return the distribution as plain arrays."""


class FrequencyNoise:
    """p_n(y) = the share of label y among the train pairs, the same for every document."""

    kind: ClassVar[str] = "frequency"

    def __init__(self, log_prob_L: F64) -> None:
        self.log_prob_L = log_prob_L

    @property
    def num_labels(self) -> int:
        """L."""
        return len(self.log_prob_L)

    @classmethod
    def of(cls, truth: LabelMatrix) -> FrequencyNoise:
        """Count pairs. A label without pairs counts as half a pair, because a share of 0 has no logarithm."""
        counts_L = np.maximum(truth.frequency_L().astype(np.float64), 0.5)
        return cls(np.log(counts_L / counts_L.sum()))

    def log_prob(self, doc_BD: F32, labels_BK: I64) -> F64:
        """Return the logarithm of each label's share (B x K); -inf for holes."""
        return np.where(labels_BK == PAD_ID, -np.inf, self.log_prob_L[np.maximum(labels_BK, 0)])

    def likely(self, doc_BD: F32, k: int) -> I32:
        """Return the ``k`` most frequent labels, the same for each document."""
        best = np.argsort(-self.log_prob_L, kind="stable")[:k].astype(np.int32)
        return np.broadcast_to(best, (len(doc_BD), len(best))).copy()

    def arrays(self) -> dict[str, Array]:
        """Return the logarithms of the shares."""
        return {"log_prob_L": self.log_prob_L}


NOISES: Table[Callable[[dict[str, Array]], Noise]] = Table("noise")
NOISES.add(FrequencyNoise.kind, lambda arrays: FrequencyNoise(arrays["log_prob_L"]))
NOISES.add(LabelTree.kind, LabelTree.from_arrays)


def save_noise(noise: Noise, folder: Path) -> None:
    """Write ``noise.safetensors`` into ``folder``."""
    arrays = {f"{noise.kind}/{name}": np.ascontiguousarray(value) for name, value in noise.arrays().items()}
    save_file(arrays, folder / _FILE)


def load_noise(folder: Path) -> Noise:
    """Return what ``save_noise`` wrote.

    Raises CorruptError if the file cannot be read or does not hold one known distribution.
    """
    path, do = folder / _FILE, "run the stage that builds it again"
    arrays = read_arrays(path, content="a saved distribution", do=do)
    kinds = {name.partition("/")[0] for name in arrays}
    if len(kinds) != 1 or not kinds <= set(NOISES):
        found = f"{path} with distributions {sorted(kinds)}"
        raise CorruptError(found, expected="one known distribution", do=do)
    (kind,) = kinds
    return NOISES[kind]({name.partition("/")[2]: value for name, value in arrays.items()})
