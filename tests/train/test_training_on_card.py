"""Trainings on the device of ``tests/card.py``: refreshes, searches, batches from a thread, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.card import CARD
from tests.train.steps import STEPS, m1, take_steps
from tests.train.test_on_card import assert_same_state
from xc_core.devices import CPU, Device
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.loop import Plan, fit
from xc_core.train.state import History, Position

pytestmark = pytest.mark.usefixtures("fake_card")


@pytest.mark.parametrize("name", ["ngame", "unidec", "astra"])
def test_a_training_on_a_card_has_the_losses_and_figures_of_a_cpu(
    name: str, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three epochs; searches run on the card too, those of ``astra`` in a thread beside the steps."""
    found: list[History] = []
    for device in (CARD, CPU):
        monkeypatch.setattr(Device, "chosen", lambda device=device: device)
        task = m1(name, device, small)
        task.fill_banks = name == "astra"  # the errors of gradients are measured before the first step too
        plan = Plan(epochs=3, warmup=0.1, read_every=7, ahead=device.ahead)
        found.append(fit(task, plan, Checkpoints(tmp_path / device.kind, "f")))
    card, cpu = found
    np.testing.assert_allclose(card.losses, cpu.losses, rtol=2e-3, atol=1e-5)
    assert [set(one) for one in card.refreshes] == [set(one) for one in cpu.refreshes] != []
    for ours, theirs in zip(card.refreshes, cpu.refreshes, strict=True):
        assert ours == {figure: pytest.approx(value, rel=0.01, nan_ok=True) for figure, value in theirs.items()}


@pytest.mark.parametrize("name", ["ngame", "unidec"])
def test_texts_that_are_encoded_twice_give_the_losses_of_a_cpu(name: str, small: Any) -> None:
    cached = {"cache": True, "scorer": {"cache": True}}
    card, cpu = (m1(name, device, small, **cached) for device in (CARD, CPU))
    assert take_steps(card) == [pytest.approx(pair, rel=1e-5) for pair in take_steps(cpu)]
    assert_same_state(card, cpu)


def test_m1_goes_on_from_a_checkpoint_of_a_card(small: Any, tmp_path: Path) -> None:
    cut, again = (m1("unidec", CARD, small) for _ in range(2))
    take_steps(cut)
    checkpoints = Checkpoints(tmp_path / "run", "f")
    checkpoints.save(cut, Position(step=STEPS), History(), beside=True)
    checkpoints.wait()
    Checkpoints(tmp_path / "run", "f").restore(again)
    assert_same_state(again, cut)
    assert take_steps(again) == [pytest.approx(pair) for pair in take_steps(cut)]
