"""The toy model, opened as a service would open it."""

from __future__ import annotations

import pytest

from xc_core.chain import Workspace
from xc_core.infer.bundle import open_predictor
from xc_core.infer.predictor import Predictor


@pytest.fixture(scope="session")
def predictor(trained: Workspace) -> Predictor:
    """The packed model of the toy world; tests only read it."""
    return open_predictor(trained.folder("model", "toy", "ngame"))
