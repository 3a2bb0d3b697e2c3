"""Trainings on the device of ``tests/card.py``: refreshes, searches, batches from a thread, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.card import CARD
from tests.train.steps import STEPS, TRAINED, assert_alike, m1, take_steps, train
from tests.train.test_on_card import assert_same_state
from xc_core.devices import CPU, Device
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.state import History, Position

pytestmark = pytest.mark.usefixtures("fake_card")


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_on_a_card_has_the_losses_and_figures_of_a_cpu(
    name: str, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches run on the card too."""
    found: list[History] = []
    for device in (CARD, CPU):
        monkeypatch.setattr(Device, "chosen", lambda device=device: device)
        found.append(train(name, device, small, tmp_path))
    assert_alike(*found)


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
