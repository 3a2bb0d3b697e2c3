"""The whole chain on the toy world finds the answer that the world was built to have."""

from __future__ import annotations

from xc_core.chain import Workspace
from xc_core.metrics.evaluation import Evaluation


def test_the_chain_answers_the_toy_world(trained: Workspace) -> None:
    metrics = Evaluation.open(trained.folder("evaluation", "toy", "ngame")).metrics
    assert metrics["P_at_1"] >= 95, metrics
    assert metrics["R_at_10"] >= 99, metrics
