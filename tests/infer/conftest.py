"""The toy model as a service would open it."""

from __future__ import annotations

import pytest

from xc_core.bundle import open_bundle
from xc_core.infer.predictor import Predictor
from xc_core.stages import Workspace


@pytest.fixture(scope="session")
def predictor(trained: Workspace) -> Predictor:
    """The packed model of the toy world; tests only ask it."""
    return open_bundle(trained.folder("model", "toy", "ngame"))
