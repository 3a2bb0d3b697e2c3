"""A command that is asked to end, in a process of its own: a line, an exit code, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from xc_core.chain import Workspace, run_stage

LONG = {**TOY_CHANGES, "encoder": {**TOY_CHANGES["encoder"], "epochs": 100_000.0}}


def training(workspace: Workspace) -> subprocess.Popen[str]:
    """Start a training that lasts for hours; return its process once it has written a checkpoint."""
    command = [sys.executable, "-m", "xc_core.cli.main", "run", "encoder", "--dataset", "toy", "--recipe", "ngame"]
    environment = {**os.environ, "XC_ROOT": str(workspace.root), "XC_CHECKPOINT_SECONDS": "-1"}
    # under nohup the tests ignore SIGHUP, and so would what they start
    heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    checkpoint = workspace.state / "run" / "encoder@toy_ngame"
    while not checkpoint.is_dir():
        assert process.poll() is None, process.stderr and process.stderr.read()
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
    process.send_signal(number)
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code
    assert said.splitlines()[-1] == message
    assert "Traceback" not in said
    assert list(long.root.rglob("*.tmp")) == []


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """``nohup xc train`` goes on after its terminal is closed."""
    make_workspace(tmp_path)
    script = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from xc_core.cli import main as m;"
        "m.cli.main = lambda **_: os.kill(os.getpid(), signal.SIGHUP); m.main([])"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
