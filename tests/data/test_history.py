"""The history of a training in its artefact."""

from __future__ import annotations

from pathlib import Path

import pytest

from xc_core import artifacts
from xc_core.data.history import read_history, write_history
from xc_core.errors import MissingError

HISTORY = {"losses": [0.5, 0.25, 0.125], "epochs": [0.5, 1.0, 1.5], "refreshes": [{"epoch": 1.0, "cohesion": 0.75}]}


def test_a_history_comes_back_and_its_steps_are_counted(tmp_path: Path) -> None:
    with artifacts.building(tmp_path / "encoder", kind="encoder") as build:
        write_history(build, HISTORY)
    assert read_history(tmp_path / "encoder") == HISTORY
    assert artifacts.read_made(tmp_path / "encoder").facts == {"steps": 3}
    assert "history.json" in artifacts.verify(tmp_path / "encoder").files


def test_losses_that_are_not_finite_become_null(tmp_path: Path) -> None:
    with artifacts.building(tmp_path / "encoder", kind="encoder") as build:
        write_history(build, {"losses": [1.0, float("nan")]})
    assert read_history(tmp_path / "encoder") == {"losses": [1.0, None]}


def test_an_artefact_without_training_has_no_history(tmp_path: Path) -> None:
    with artifacts.building(tmp_path / "clusters", kind="clusters"):
        pass
    assert read_history(tmp_path / "clusters") is None


def test_there_is_no_history_without_an_artefact(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no artefact"):
        read_history(tmp_path / "absent")
