"""The seconds of a training are those of its steps, and of what is computed once for them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.stages.halves import run_until
from xc_core.chain import Workspace
from xc_core.chain.costs import read_costs
from xc_core.train.encoder import EncoderTask


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
