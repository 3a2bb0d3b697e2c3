"""Weights of labels are computed from the train file as published, validation documents included."""

from __future__ import annotations

import math

import numpy as np

from tests.conftest import TOPICS, ToyWorld
from xc_core.chain import Workspace
from xc_core.data.corpus import Corpus


def test_weights_are_the_inverse_propensities_of_the_published_train_file(trained: Workspace, toy: ToyWorld) -> None:
    size, a, b = len(toy.train), 0.55, 1.5
    expected = []
    for label in range(len(TOPICS)):
        frequency = sum(label in row["target_ind"] for row in toy.train)
        expected.append(1 + (math.log(size) - 1) * (b + 1) ** a * (frequency + b) ** -a)
    np.testing.assert_allclose(Corpus.open(trained.folder("corpus", "toy")).weights(), expected, rtol=1e-9)
