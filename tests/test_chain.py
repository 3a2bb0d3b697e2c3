"""The whole chain on the toy world: it must find the answer it was built to have."""

import json

from xc_core.stages import Workspace


def test_the_chain_answers_the_toy_world(trained: Workspace) -> None:
    metrics = json.loads((trained.folder("evaluation", "toy", "ngame") / "metrics.json").read_text())
    assert metrics["P_at_1"] >= 95, metrics
    assert metrics["R_at_10"] >= 99, metrics
