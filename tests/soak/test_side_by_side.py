"""Month and kills run at once: the figures of both are kept, and one that fails says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.soak.__main__ import side_by_side

FIGURES = "print('a line'); print('{\\n \"requests\": 3\\n}')"
MEETING = """
import sys, time
from pathlib import Path
own, other = map(Path, sys.argv[1:])
own.touch()
ends = time.monotonic() + 30
while not other.exists():
    assert time.monotonic() < ends, "alone"
    time.sleep(0.01)
"""
"""Ends once the other one has begun."""


def test_two_commands_run_at_once_and_their_figures_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("a", "b")]
    meeting = (sys.executable, "-S", "-c", MEETING + FIGURES)
    found = side_by_side({"month": (*meeting, *files), "kills": (*meeting, *reversed(files))})
    assert found == {name: {"requests": 3, "exit code": 0} for name in ("month", "kills")}
    assert sorted(capsys.readouterr().out.splitlines()) == ["kills | a line", "month | a line"]


def test_one_that_fails_leaves_its_exit_code_and_the_other_one_goes_on() -> None:
    commands = {
        "month": (sys.executable, "-S", "-c", "raise SystemExit(3)"),
        "kills": (sys.executable, "-S", "-c", FIGURES),
    }
    assert side_by_side(commands) == {"month": {"exit code": 3}, "kills": {"requests": 3, "exit code": 0}}
