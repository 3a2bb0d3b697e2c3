"""What the last stations share: weights of labels are of the train file as published, validation rows included."""

from __future__ import annotations

import math

import numpy as np

from tests.conftest import TOPICS, ToyWorld
from xc_core.data.corpus import Corpus
from xc_core.stages import Workspace
from xc_core.stages.released import weights


def test_weights_are_the_inverse_propensities_of_the_published_train_file(trained: Workspace, toy: ToyWorld) -> None:
    size, a, b = len(toy.train), 0.55, 1.5
    expected = []
    for label in range(len(TOPICS)):
        frequency = sum(label in row["target_ind"] for row in toy.train)
        expected.append(1 + (math.log(size) - 1) * (b + 1) ** a * (frequency + b) ** -a)
    np.testing.assert_allclose(weights(Corpus.open(trained.folder("corpus", "toy"))), expected, rtol=1e-9)
