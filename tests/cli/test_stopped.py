"""A command that is asked to end, in a process of its own: a line, an exit code, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import forks
from tests.cli.conftest import TOY, Xc
from tests.conftest import TOY_CHANGES, make_workspace
from xc_core.chain import Workspace, run_stage

LONG = {**TOY_CHANGES, "encoder": {**TOY_CHANGES["encoder"], "epochs": 100_000.0}}


def training(workspace: Workspace) -> forks.Forked:
    """Start a training that lasts for hours; return its process once it has written a checkpoint."""
    environment = {**os.environ, "XC_ROOT": str(workspace.root), "XC_CHECKPOINT_SECONDS": "-1"}
    process = forks.start(forks.XC, "run", "encoder", "--dataset", "toy", "--recipe", "ngame", env=environment)
    checkpoint = workspace.state / "run" / "encoder@toy_ngame"
    while not checkpoint.is_dir():
        assert process.poll() is None, process.wait().stderr
        time.sleep(0.05)
    return process


@pytest.fixture
def long(workspace: Workspace) -> Workspace:
    workspace.params.declare_experiment("toy", "ngame", "ngame", LONG)
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    return workspace


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGINT, 130, "xc: interrupted"),
        (signal.SIGTERM, 143, "xc: terminated"),
        (signal.SIGHUP, 129, "xc: hung up"),
    ],
)
def test_a_training_that_is_asked_to_end_says_so_and_leaves_nothing(
    long: Workspace, number: signal.Signals, code: int, message: str
) -> None:
    process = training(long)
    os.kill(process.pid, number)
    ended = process.wait(60)
    assert ended.returncode == code
    assert ended.stderr.splitlines()[-1] == message
    assert "Traceback" not in ended.stderr
    assert list(long.root.rglob("*.tmp")) == []


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """``nohup xc train`` goes on after its terminal is closed."""
    make_workspace(tmp_path)
    script = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from xc_core.cli import main as m;"
        "m.cli.main = lambda **_: os.kill(os.getpid(), signal.SIGHUP); m.main([])"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_signal_ends_a_command_in_this_process_and_what_handled_it_before_does_so_again(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a test that runs a command, or a notebook, could not be interrupted afterwards."""
    heard: list[int] = []
    monkeypatch.setattr(Workspace, "find", classmethod(lambda cls: signal.raise_signal(signal.SIGTERM)))
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        ended = xc("leaderboard", *TOY)
        assert (ended.code, ended.err.strip(), heard) == (143, "xc: terminated", [])
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
