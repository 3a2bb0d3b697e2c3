"""The toy model, opened as a service would open it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from xc_core.chain import Workspace
from xc_core.infer.bundle import open_predictor
from xc_core.infer.predictor import Predictor


@pytest.fixture(scope="session")
def predictor(trained: Workspace) -> Predictor:
    """The packed model of the toy world; tests only read it."""
    return open_predictor(trained.folder("model", "toy", "ngame"))


@pytest.fixture(scope="session")
def rare(predictor: Predictor) -> Predictor:
    """The toy model with a dial that prefers labels with higher ids, at 1 by default."""
    dial = predictor.ranker.fusion.dial
    assert dial is not None
    dial = replace(dial, reach=1.0, default=1.0, log_weight_L=np.linspace(0, 8, 10, dtype=np.float32))
    return replace(predictor, ranker=replace(predictor.ranker, fusion=replace(predictor.ranker.fusion, dial=dial)))
