"""A project that its user may read but not write, as that of a colleague or on a read-only disk: it can be shown."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from assets.tracking import connect
from tests import forks
from tests.cli.conftest import NGAME, TOY, Xc
from tests.conftest import TOY_CHANGES
from tests.unprivileged import read_only, writable
from xc_core.chain import Workspace
from xc_core.params import deep_merged
from xc_core.sqlite import sqlite_address


def asked(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forks.run("tests.unprivileged:xc", *arguments, env=dict(os.environ))


@pytest.fixture
def closed(own: Workspace, xc: Xc, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """Return a project with an acceptance set and a registry, that may only be read. It has no file of a lock."""
    uri = sqlite_address(own.state / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # MLflow keeps that of other tests
    assert xc("acceptance", *TOY).code == 0
    connect(uri, own.state / "lock" / "mlflow")
    shutil.rmtree(own.state / "lock")
    read_only(own.root)
    yield own
    writable(own.root)


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("settings", *NGAME),
        ("leaderboard", *TOY),
        ("compare", *TOY, "ngame:classifier", "ngame:label_text"),
        ("acceptance", *TOY),
        ("doctor",),
        ("drift", *TOY),
        ("forget", *TOY, "--document", "D0001", "--dry-run"),
    ],
    ids=lambda command: command[0],
)
def test_what_only_shows_needs_no_permission_to_write(closed: Workspace, command: tuple[str, ...]) -> None:
    ended = asked(*command)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("predict", *TOY, "falcon"),
        ("rollback", *TOY),
        ("promote", *TOY),
        ("lineage", "1", *TOY),
        ("delete", *TOY, "--version", "1"),
    ],
    ids=lambda command: command[0],
)
def test_what_was_never_registered_is_missing_though_no_database_can_be_made(
    own: Workspace, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ended with 73: MLflow makes its database when it is asked."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    read_only(own.root)
    ended = asked(*command)
    writable(own.root)
    assert ended.returncode == 66, ended.stderr
    assert "no database" in ended.stderr
    assert not (own.state / "mlflow").exists()


def test_a_report_is_written_elsewhere(closed: Workspace, tmp_path: Path) -> None:
    ended = asked("report", *NGAME, "--out", tmp_path / "page.html")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "page.html").stat().st_size
    assert asked("report", *NGAME).returncode == 73


def test_settings_that_changed_are_shown_though_their_files_cannot_be_written(own: Workspace) -> None:
    """A full disk refused `xc status` too."""
    own.params.declare_experiment("toy", "ngame", "ngame", deep_merged(TOY_CHANGES, {"fusion": {"candidates": 5}}))
    read_only(own.root)
    ended, settings = asked("status", *NGAME), asked("settings", *NGAME)
    writable(own.root)
    assert (ended.returncode, settings.returncode) == (1, 0), ended.stderr + settings.stderr
    for shown in (ended, settings):
        assert "note: the settings files, which DVC compares, are not written: no permission" in shown.stderr
    assert "evaluation  out of date: fusion is out of date" in ended.stdout


def test_a_user_without_permission_to_draw_an_acceptance_set_is_told_so(own: Workspace) -> None:
    read_only(own.root)
    ended = asked("acceptance", *TOY)
    writable(own.root)
    assert ended.returncode == 73, ended.stderr
    assert f"while writing {own.data}/toy/acceptance" in ended.stderr


def test_doctor_names_the_owner_of_a_state_that_cannot_be_read(own: Workspace) -> None:
    """It said that a check cannot run."""
    own.state.chmod(0)
    ended = asked("doctor")
    own.state.chmod(0o755)
    assert ended.returncode == 78
    assert f"fault  found no permission ([Errno 13] Permission denied: '{own.state}/" in ended.stdout
    assert f"fix the permission ({own.state} belongs to {own.state.owner()}:" in ended.stdout
    assert "a check that cannot run" not in ended.stdout
