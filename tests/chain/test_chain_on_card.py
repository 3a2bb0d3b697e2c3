"""All stages of a recipe, and its packed model, on the device of ``tests/card.py``."""

from __future__ import annotations

import numpy as np
import pytest

from tests.card import CARD
from xc_core.chain import Workspace, run_stage
from xc_core.chain.registry import TRAIN_STAGES
from xc_core.devices import CPU, Device
from xc_core.infer.bundle import open_predictor
from xc_core.metrics.evaluation import Evaluation

pytestmark = pytest.mark.usefixtures("fake_card")
SHORT = {"encoder": {"encoder": {"name": "bag", "width": 16}, "epochs": 2.0}, "classifier": {"epochs": 2.0}}


def test_a_model_answers_on_a_card_as_on_a_cpu(trained: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU may multiply in bf16."""
    folder, texts = trained.folder("model", "toy", "ngame"), ["river1 castle2", "engine1 violin3 glacier2", ""]
    expected = open_predictor(folder).predict(texts, 3)
    monkeypatch.setattr(Device, "chosen", lambda: CARD)
    predictor = open_predictor(folder)
    assert predictor.encoder.device == CARD.torch
    for ours, theirs in zip(predictor.predict(texts, 3), expected, strict=True):
        assert [one.uid for one in ours] == [one.uid for one in theirs]
        np.testing.assert_allclose([one.score for one in ours], [one.score for one in theirs], rtol=0.03, atol=0.02)


@pytest.mark.chain
@pytest.mark.parametrize("recipe", ["ance", "astra", "house", "renee", "unidec"])
def test_every_stage_runs_on_a_card_with_the_figures_of_a_cpu(
    recipe: str, copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.params.declare_experiment("toy", recipe, recipe, SHORT)
    found = []
    for device in (CPU, CARD):
        monkeypatch.setattr(Device, "chosen", lambda device=device: device)
        for stage in TRAIN_STAGES:
            run_stage(copied, stage, "toy", recipe, force=device is CARD)
        found.append(Evaluation.open(copied.folder("evaluation", "toy", recipe)).report["metrics"])
    assert found[1]["P_at_1"] == pytest.approx(found[0]["P_at_1"], abs=5.0)
    assert open_predictor(copied.folder("model", "toy", recipe)).predict(["river1 castle2"], 1)
