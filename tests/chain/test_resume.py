"""kill -9 in the middle of a training costs time, never a bit: started again, it ends with the bytes of a whole run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chain.toy import STAGES_OF, Edit, downstream
from xc_core.chain import Workspace

pytestmark = pytest.mark.chain

KILLED = Path(__file__).with_name("killed.py")
Starts = Callable[..., list[dict[str, Any]]]
DROPOUT = {f"{STAGES_OF}/classifier/dropout": 0.2}


@pytest.fixture
def before(trained: Workspace, tmp_path: Path) -> Callable[[str, str], Workspace]:
    """Make a workspace in which a stage and all that need it have not run yet."""

    def make(name: str, stage: str) -> Workspace:
        shutil.copytree(trained.root, tmp_path / name)
        workspace = Workspace(tmp_path / name)
        for gone in (stage, *downstream(stage)):
            shutil.rmtree(workspace.folder(gone, "toy", "ngame"))
        return workspace

    return make


@pytest.fixture(scope="module")
def starts() -> Iterator[Starts]:
    """Start a stage once a moment, in processes of one thread that save after every step."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XC_CHECKPOINT_SECONDS": "-1"}
    command = [sys.executable, str(KILLED)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        asked, answered = process.stdin, process.stdout
        assert asked is not None and answered is not None

        def start(workspace: Workspace, stage: str, *moments: str) -> list[dict[str, Any]]:
            answers = []
            for moment in moments:
                asked.write(json.dumps([str(workspace.root), stage, moment]) + "\n")
                asked.flush()
                answers.append(json.loads(answered.readline()))
            return answers

        yield start
        asked.close()


def content(workspace: Workspace, stage: str) -> dict[str, bytes]:
    folder = workspace.folder(stage, "toy", "ngame")
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("stage", ["encoder", "classifier"])
def test_a_training_killed_again_and_again_ends_with_the_bytes_of_an_unbroken_one(
    stage: str, before: Callable[[str, str], Workspace], edit: Edit, starts: Starts
) -> None:
    """Killed within an epoch, at its end, right after the refresh of the next, and in the middle of a checkpoint."""
    whole, broken = before("whole", stage), before("broken", stage)
    for workspace in (whole, broken):
        edit(workspace, {**DROPOUT, f"{STAGES_OF}/classifier/refit": False})
    (unbroken,) = starts(whole, stage, "end")
    assert (unbroken["began"], unbroken["ended"]) == (0, 0)

    epochs = json.loads(content(whole, stage)["history.json"])["epochs"]
    steps, epoch = len(epochs), epochs.index(1.0) + 1
    at = [3, epoch, epoch + 1, *sorted(random.Random(3).sample(range(epoch + 2, steps - 1), 2))]
    moments = [*(f"step:{step}" for step in at), "save:2"]
    answers = starts(broken, stage, *moments, "end")
    assert [one["ended"] for one in answers] == [-signal.SIGKILL] * len(moments) + [0]
    # where a start is killed before step n, the next begins with step n; a half-written checkpoint is one step back
    assert [one["began"] for one in answers] == [0, *at, at[-1] + 1]
    assert all(any("resuming at epoch" in line for line in one["said"]) for one in answers[1:])
    assert content(broken, stage) == content(whole, stage)
    assert not list((broken.state / "run").iterdir()), "nothing of the checkpoints is left"


def test_a_table_that_is_trained_several_times_resumes_in_the_training_that_was_killed(
    before: Callable[[str, str], Workspace], edit: Edit, starts: Starts
) -> None:
    whole, broken = before("whole", "classifier"), before("broken", "classifier")
    for workspace in (whole, broken):
        edit(workspace, DROPOUT)
    (unbroken,) = starts(whole, "classifier", "end")
    answers = starts(broken, "classifier", "step:5", "again:2", "again:9", "end")
    assert [one["ended"] for one in answers] == [-signal.SIGKILL] * 3 + [0]
    # a start resumes the first training if that was killed, and skips to its end if the second was
    assert [one["began"] for one in (unbroken, *answers)] == [0, 0, 5, 2, 9]
    assert content(broken, "classifier") == content(whole, "classifier")
    assert {"half-0/rows.npy", "half-1/rows.npy", "final/rows.npy"} < set(content(whole, "classifier"))
    assert not list((broken.state / "run").iterdir())


def test_a_training_does_not_resume_from_a_checkpoint_of_other_parameters(
    before: Callable[[str, str], Workspace], edit: Edit, starts: Starts
) -> None:
    other = {f"{STAGES_OF}/encoder/optim": {"lr": 0.01}}
    whole, broken = before("whole", "encoder"), before("broken", "encoder")
    starts(broken, "encoder", "step:9")
    for workspace in (whole, broken):
        edit(workspace, other)
    starts(whole, "encoder", "end")
    (again,) = starts(broken, "encoder", "end")
    assert again["began"] == 0
    assert "encoder: the checkpoint is of other parameters or inputs, starting from the beginning" in again["said"]
    assert content(broken, "encoder") == content(whole, "encoder")


def test_a_killed_stage_leaves_the_artefact_and_frees_its_lock(
    trained: Workspace, copied: Workspace, edit: Edit, starts: Starts
) -> None:
    edit(copied, {f"{STAGES_OF}/classifier/table": {"lr": 0.03}})
    old = content(copied, "classifier")
    (killed,) = starts(copied, "classifier", "step:5")
    assert content(copied, "classifier") == old == content(trained, "classifier")
    (done,) = starts(copied, "classifier", "end")
    assert (killed["ended"], done["ended"], done["began"]) == (-signal.SIGKILL, 0, 5)
    assert content(copied, "classifier") != old
