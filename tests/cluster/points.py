"""Points of tests of clusters, on every device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.arrays import unit
from xc_core.cluster import balanced, on_card
from xc_core.shapes import F32, I64

COHESION = 0.02
"""Relative difference of the mean cohesion of three seeds on data without gaps: rounding moves single points of a
node, and all nodes below it. Single seeds differ by up to 1 % there."""


def mixture(seed: int, size: int, width: int, centres: int, noise: float) -> tuple[F32, I64]:
    """Return unit vectors around random centres, and the centre of each."""
    random = np.random.default_rng(seed)
    own = random.permutation(np.arange(size) % centres)
    middle = random.standard_normal((centres, width))
    return unit(middle[own] + noise * random.standard_normal((size, width))), own


def whole_numbers(size: int, width: int) -> F32:
    """Return vectors with many equal ones, of which all sums are exact if nodes have a power of two of points."""
    return np.random.default_rng(0).integers(-2, 3, (size, width)).astype(np.float32)


def see(monkeypatch: pytest.MonkeyPatch, points: int) -> None:
    """Let 2-means see so many points of a node; numpy splits nodes with more one at a time."""
    for module in (balanced, on_card):
        monkeypatch.setattr(module, "SEEN", points)
    monkeypatch.setattr(balanced, "_TOGETHER", points)
