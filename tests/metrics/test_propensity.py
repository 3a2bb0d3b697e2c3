"""Inverse propensities against hand-computed values for the three published sets of constants."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.naive import metrics as naive
from xc_core.data.propensity import PROPENSITY, inverse_propensity
from xc_core.errors import ConfigError

# ln 1000 - 1 = 5.907755279. C = 5.907755279 (B + 1)^A: 5.907755279 x 1.655262990, x 1.183215957, x 2.156659091.
# Then 1 + C (n + B)^-A, for n = 0, 1, 4, 99; a label seen once always gets ln N, whatever the constants.
BY_HAND = {
    "default": [8.824188578, 6.907755279, 4.829041051, 1.774636877],
    "wikipedia": [12.052398088, 6.907755279, 4.332423409, 1.701121560],
    "amazon": [8.181579767, 6.907755279, 5.106554927, 1.796283603],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_inverse_propensities_equal_the_hand_calculation(name: str) -> None:
    found = inverse_propensity(np.array([0, 1, 4, 99]), 1000, PROPENSITY[name])
    assert found == pytest.approx(BY_HAND[name], rel=1e-9)


def test_the_constants_are_the_published_ones() -> None:
    assert {name: PROPENSITY[name] for name in PROPENSITY} == {
        "default": (0.55, 1.5),
        "wikipedia": (0.5, 0.4),
        "amazon": (0.6, 2.6),
    }


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("documents", [1, 2, 3, 50, 10**7])
def test_inverse_propensities_equal_the_slow_twin(name: str, documents: int) -> None:
    frequency = [n for n in (0, 1, 2, 7, 1000) if n <= documents]
    a, b = PROPENSITY[name]
    found = inverse_propensity(np.array(frequency), documents, (a, b))
    assert found == pytest.approx(naive.inverse_propensity(frequency, documents, a, b), rel=1e-12)


@pytest.mark.parametrize("documents", [1, 2])
def test_below_three_documents_every_label_counts_one(documents: int) -> None:
    assert inverse_propensity(np.array([0, 1, 2]), documents, (0.55, 1.5)).tolist() == [1.0, 1.0, 1.0]


def test_a_rarer_label_never_counts_less() -> None:
    found = inverse_propensity(np.arange(200), 200, (0.55, 1.5))
    assert (np.diff(found) < 0).all()
    assert found[-1] > 1
    assert math.isfinite(found[0])


def test_no_train_documents_is_refused() -> None:
    with pytest.raises(ConfigError, match="no train documents"):
        inverse_propensity(np.array([0]), 0, (0.55, 1.5))
