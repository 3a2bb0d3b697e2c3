"""The seconds of a training are those of its steps, and of what is computed once for them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.stages.halves import open_tables, run_until
from xc_core.chain import Workspace, run_stage
from xc_core.chain.costs import read_costs
from xc_core.stages import classifier
from xc_core.train.encoder import EncoderTask
from xc_core.train.loop import fit
from xc_core.train.state import History


def test_frozen_layers_that_are_computed_before_the_first_step_count(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic
    passed = [0.0]

    def slow(task: Any, folder: Any) -> None:
        passed[0] += 1000.0

    monkeypatch.setattr(time, "monotonic", lambda: now() + passed[0])
    monkeypatch.setattr(EncoderTask, "keep_states", slow)
    run_until(workspace, "encoder")
    assert 1000 < read_costs(workspace, "encoder", "toy", "ngame")["train_seconds"] < 1500


def test_the_seconds_of_a_classifier_are_those_of_all_its_trainings(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(*given: Any) -> History:
        history = fit(*given)
        history.seconds, history.refresh_seconds = 1000.0, 300.0
        return history

    monkeypatch.setattr(classifier, "fit", timed)
    run_stage(copied, "classifier", "toy", "ngame", force=True)
    trainings, costs = len(open_tables(copied).folds), read_costs(copied, "classifier", "toy", "ngame")
    assert trainings == 3
    assert (costs["train_seconds"], costs["mining_seconds"]) == (3000.0, 900.0)
