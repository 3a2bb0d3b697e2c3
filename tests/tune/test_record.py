"""The record of a study and what is printed of it."""

from __future__ import annotations

import json
import shlex
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.tune.records import study, trial
from xc_core.chain import Workspace
from xc_core.chain.names import checked_name
from xc_core.chain.params_file import nested
from xc_core.cli.train import changes_of
from xc_core.errors import CorruptError, MissingError
from xc_core.params import deep_merged
from xc_core.tune.record import StudyRecord, TrialOutcome, TrialRecord, machine, study_lock
from xc_core.tune.report import command, note, summary, table, winner
from xc_core.tune.storage import opened
from xc_core.tune.study import StudyLimits, _recorded, _Running


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = study(
        trial(0, 50.0, own=True), trial(1), trial(2, state=TrialOutcome.STOPPED), importances={"encoder.loss": 1.0}
    )
    record.write(tmp_path)
    assert StudyRecord.read(tmp_path) == record
    written = json.loads((tmp_path / "study.json").read_text())
    written["trials"][0]["by"] = "a later version"
    (tmp_path / "study.json").write_text(json.dumps(written))
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


def test_a_trial_has_the_recipes_own_settings_only_if_it_says_so() -> None:
    assert study(trial(0, 50.0), trial(1, 60.0)).baseline is None
    record = study(trial(0, own=True), trial(1, 50.0), trial(2, 60.0, own=True))
    assert record.baseline is record.trials[2], "one that is not done shows nothing"


def test_stopped_trials_take_time_but_do_not_count() -> None:
    record = study(trial(0, 50.0), trial(1, state=TrialOutcome.STOPPED), trial(2, 55.0))
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
    assert "objective: P@1, in percent, on 31 validation documents that no score was fitted on\n" in text
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


def test_the_name_in_the_command_is_one_of_a_recipe_however_long_that_of_the_study_is() -> None:
    record = replace(study(trial(0, 50.0)), name="a" * 57 + "-" + "b" * 6)
    name = shlex.split(command(record, record.trials[0]))[5]
    assert name == "a" * 57 + "-tuned" == checked_name("recipe", name)


@pytest.mark.parametrize(
    ("changes", "values", "expected"),
    [
        ({"encoder.loss.margin": 0.2}, {"encoder.loss": "triplet"},
         {"encoder.loss.margin": 0.2, "encoder.loss.kind": "triplet"}),
        ({"encoder.loss.kind": "triplet", "encoder.loss.margin": 0.2}, {"encoder.loss": "supcon"},
         {"encoder.loss.kind": "supcon"}),
        ({"encoder.loss": "triplet"}, {"encoder.loss": "supcon"}, {"encoder.loss": "supcon"}),
        ({"encoder.epochs": 3}, {"encoder.epochs": 4}, {"encoder.epochs": 4}),
        ({"scores.neighbours.nearest": 20}, {"scores.neighbours": {}}, {"scores.neighbours.nearest": 20}),
        ({"scores.neighbours.nearest": 20}, {"scores.neighbours": None}, {"scores.neighbours": None}),
    ],
)  # fmt: skip
def test_the_command_merges_settings_as_the_trial_did(
    changes: dict[str, object], values: dict[str, object], expected: dict[str, object]
) -> None:
    """Settings of another kind of part are left out, and those of a part that is only switched on are kept."""
    record = study(trial(0, 50.0, values=values))
    record = replace(record, asked={**record.asked, "changes": changes})
    assert winner(record, record.trials[0]) == expected
    given = [part for part in shlex.split(command(record, record.trials[0])) if "=" in part]
    assert changes_of(tuple(given)) == deep_merged(nested(changes), nested(values))


def test_the_note_says_what_was_pruned_and_why() -> None:
    text = note(study(trial(0, 50.0), trial(1, why="one of the lowest after classifier: 3.00")), "xc tune ...")
    assert (
        "- trial 1 pruned (one of the lowest after classifier: 3.00): fusion.rule.depth 2, encoder.loss triplet" in text
    )
    assert "on a processor" in text
    assert "```\nxc tune ...\n```" in text


def test_the_note_compares_the_best_trial_with_the_recipes_own_settings() -> None:
    trials = (trial(0, 50.0, own=True), trial(1, 60.25))
    text = note(study(*trials, importances={"encoder.loss": 0.75}), "xc tune ...")
    assert "Trial 0 has the recipe's own settings; the best trial is +10.25 above it." in text
    assert "What matters (PED-ANOVA): `encoder.loss` 0.75." in text
    text = note(study(trial(0, 50.0), trial(1, state=TrialOutcome.STOPPED)), "xc tune ...")
    assert "own settings" not in text and "PED-ANOVA" not in text
    assert "Trials without figures" not in text, "one that goes on is no result"


@pytest.mark.parametrize(("threads", "shown"), [(1, " 1 thread, "), (2, " 2 threads, ")])
def test_the_machine_has_no_name(threads: int, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    words = machine()
    assert "cores" in words and shown in words
    assert socket.gethostname() not in words


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, Any]:
    """The folder of a study with a trial, and what it was started with."""
    tuning = SimpleNamespace(name="s", dataset="toy", project=Workspace(tmp_path), definition=lambda: {"seed": 0})
    made = opened(tmp_path, cast(Any, tuning))
    drawn = made.ask()
    drawn.set_user_attr("record", {"number": 0})
    made.tell(drawn, 1.0)
    return tmp_path, tuning


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [("study_user_attributes", "%", "{"), ("study_user_attributes", "%", "5"), ("study_user_attributes", "origin", "5"),
     ("trial_user_attributes", "%", "{")],
)  # fmt: skip
def test_damaged_json_in_the_file_of_a_study_is_reported(
    stored: tuple[Path, Any], table: str, key: str, value: str
) -> None:
    folder, tuning = stored
    with closing(sqlite3.connect(folder / "study.db")) as database, database:
        database.execute(f"UPDATE {table} SET value_json = ? WHERE key LIKE ?", (value, key))
    with pytest.raises(CorruptError, match=r"an unreadable \S+study\.db"):
        opened(folder, tuning)


def test_a_trial_that_is_no_record_of_one_is_reported(stored: tuple[Path, Any]) -> None:
    folder, tuning = stored
    running = _Running(tuning, StudyLimits(1), folder, opened(folder, tuning), [])
    with pytest.raises(CorruptError, match=r"an unreadable \S+study\.db"):
        running.record("running")


def test_a_field_of_a_trial_that_a_later_version_wrote_is_ignored_in_both_files(tmp_path: Path) -> None:
    """The record could be shown, but the study did not go on."""
    content = {**asdict(trial(0, 50.0)), "by": "a later version"}
    frozen = SimpleNamespace(state=SimpleNamespace(is_finished=lambda: True), user_attrs={"record": content})
    assert _recorded(frozen, 0.0) == TrialRecord.of(content) == trial(0, 50.0)


def test_a_trial_with_the_settings_of_an_earlier_one_has_its_result_and_takes_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, ended = trial(0, 50.0), list[Any]()
    drawn = SimpleNamespace(number=1, params=first.values)
    space = SimpleNamespace(distributions=dict, values=lambda params: params)
    tuning, made = SimpleNamespace(space=space, plan=(), sampler="random", seed=0), SimpleNamespace(ask=lambda _: drawn)
    monkeypatch.setattr(_Running, "_end", lambda self, *one: ended.append(one))
    _Running(cast(Any, tuning), StudyLimits(9), tmp_path, cast(Any, made), [])._next_trial(study(first))
    assert first.taken and ended == [
        (drawn, replace(first, number=1, seconds=0.0, taken=(), why="same settings as trial 0"))
    ]


def test_a_study_whose_file_is_gone_does_not_start_again_without_a_word(stored: tuple[Path, Any]) -> None:
    folder, tuning = stored
    study(trial(0, 50.0)).write(folder)
    (folder / "study.db").unlink()
    with pytest.raises(MissingError, match=r"no \S+study\.db beside study\.json"):
        opened(folder, tuning)
    assert not (folder / "study.db").exists()


def test_no_lock_of_a_study_is_made_at_the_old_place_of_a_project_that_was_moved(tmp_path: Path) -> None:
    moved = pytest.raises(MissingError, match="which was moved or deleted since this command began")
    with moved, study_lock(Workspace(tmp_path / "project"), "toy", "ngame"):
        pass
    assert list(tmp_path.iterdir()) == []
