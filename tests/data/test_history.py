"""The history of a training in its artefact."""

from __future__ import annotations

from pathlib import Path

import pytest

from xc_core import artifacts
from xc_core.data.history import TrainedOn, read_history, write_history
from xc_core.errors import CorruptError, MissingError

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


def test_what_was_learnt_from_is_recorded_beside_the_losses() -> None:
    given = TrainedOn(train=15_762, validation=1_746, label_texts=3_853)
    found = TrainedOn.read(HISTORY | given.recorded(), otherwise=TrainedOn(train=1))
    assert found == TrainedOn(train=15_762, validation=1_746, label_texts=3_853, epochs=1.5)
    assert found.seen == round(1.5 * (15_762 + 1_746 + 3_853))
    assert str(found) == "17,508 train and validation documents and 3,853 label texts, 1.5 epochs"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (TrainedOn(train=90, epochs=1.0), "90 train documents, 1 epoch"),
        (TrainedOn(train=90, validation=10, epochs=2.28), "100 train and validation documents, 2.28 epochs"),
        (TrainedOn(train=90), "not trained"),
    ],
)
def test_what_was_learnt_from_in_words(found: TrainedOn, words: str) -> None:
    assert str(found) == words


def test_a_training_that_no_release_recorded_is_refused_with_what_to_do() -> None:
    """What it had learnt from was guessed from the corpus."""
    nothing = TrainedOn(train=7)
    assert TrainedOn.read({}, nothing) == nothing and nothing.seen == 0
    with pytest.raises(CorruptError, match="did not record how many documents") as caught:
        TrainedOn.read({"losses": [0.5], "epochs": [1.0]}, nothing)
    assert "0.2.0" in caught.value.expected and "xc run encoder --force" in caught.value.do
