"""The record of a study and what is printed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tune.records import study, trial
from xc_core.errors import CorruptError, MissingError
from xc_core.tune.record import State, StudyRecord, machine
from xc_core.tune.report import command, note, summary, table, winner


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = study(trial(0, 50.0, own=True), trial(1), trial(2, state=State.STOPPED), importances={"encoder.loss": 1.0})
    record.write(tmp_path)
    assert StudyRecord.read(tmp_path) == record
    for content in ('{"name": "x"}', '{"trials": [], "of": "a later version"}', "[]", "null", '"text"', "{", b"\xff"):
        (tmp_path / "study.json").write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(CorruptError):
            StudyRecord.read(tmp_path)
    with pytest.raises(MissingError):
        StudyRecord.read(tmp_path / "nowhere")


def test_the_best_is_the_highest_and_of_equal_ones_the_first() -> None:
    record = study(trial(0, 50.0), trial(1), trial(2, 60.0), trial(3, 60.0), trial(4, 40.0))
    assert [own.number for own in record.ranked()] == [2, 3, 0, 4]
    assert record.best is record.trials[2]
    assert study(trial(0)).best is None


def test_stopped_trials_take_time_but_do_not_count() -> None:
    record = study(trial(0, 50.0), trial(1, state=State.STOPPED), trial(2, 55.0))
    assert [own.number for own in record.ended] == [0, 2]
    assert record.seconds == 7.5


def test_the_table_and_the_summary_name_the_winner() -> None:
    record = study(trial(0, 50.0, own=True), trial(1), trial(2, 60.25), importances={"encoder.loss": 0.75})
    rows = table(record).splitlines()
    assert len(rows) == 4
    assert len({len(row) for row in rows}) == 1, "aligned"
    assert rows[2].split()[1:7:2] == ["2", "60.25", "60.00"]
    text = summary(record)
    assert "trials: 2 done, 1 pruned" in text
    assert "the recipe's own settings, trial 0: 50.00; the best: +10.25" in text
    assert "settings that matter (PED-ANOVA): encoder.loss 0.75" in text
    assert text.endswith(f"train it:  {command(record, record.trials[2])}")
    assert len(table(record, 1).splitlines()) == 3
    assert summary(study(trial(0))).count("\n") == 0


def test_the_command_has_the_fixed_and_the_drawn_settings() -> None:
    record = study(trial(0, 50.0))
    assert command(record, record.trials[0]) == (
        "xc train --dataset toy --recipe ngame-tuned --base ngame --budget none --set classifier.epochs=3 "
        "--set fusion.rule.depth=1 --set encoder.loss=triplet"
    )


@pytest.mark.parametrize(
    ("changes", "values", "expected"),
    [
        ({"encoder.loss.margin": 0.2}, {"encoder.loss": "triplet"},
         {"encoder.loss.margin": 0.2, "encoder.loss": "triplet"}),
        ({"encoder.loss.kind": "triplet", "encoder.loss.margin": 0.2}, {"encoder.loss": "supcon"},
         {"encoder.loss": "supcon"}),
        ({"encoder.loss": "triplet"}, {"encoder.loss": "supcon"}, {"encoder.loss": "supcon"}),
        ({"encoder.epochs": 3}, {"encoder.epochs": 4}, {"encoder.epochs": 4}),
    ],
)  # fmt: skip
def test_settings_of_another_kind_of_part_are_left_out(
    changes: dict[str, object], values: dict[str, object], expected: dict[str, object]
) -> None:
    record = study(trial(0, 50.0, values=values))
    assert (
        winner(StudyRecord(**{**vars(record), "asked": {**record.asked, "changes": changes}}), record.trials[0])
        == expected
    )


def test_the_note_says_what_was_pruned_and_why() -> None:
    text = note(study(trial(0, 50.0), trial(1, why="one of the lowest after classifier: 3.00")), "xc tune ...")
    assert (
        "- trial 1 pruned (one of the lowest after classifier: 3.00): fusion.rule.depth 2, encoder.loss triplet" in text
    )
    assert "on a processor" in text
    assert "```\nxc tune ...\n```" in text


def test_the_machine_has_no_name() -> None:
    import socket

    words = machine()
    assert "cores" in words
    assert socket.gethostname() not in words
