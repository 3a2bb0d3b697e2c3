"""M1 and M4 in 1, 2 and 4 processes: same losses and state; a killed process ends all, any number of them resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.ranks import CASES, ENCODERS, ROOT, start, trained
from xc_core.chain import Workspace
from xc_core.classifiers import LabelTables
from xc_core.distributed import ALONE

NEAR = 1e-6


def outputs(size: int, *arguments: str) -> list[dict[str, Any]]:
    """Return what each process printed; all must end well."""
    processes = start(size, *arguments)
    found = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * size, "\n".join(errors for _, errors in found)
    return [json.loads(text) for text, _ in found]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What one process gives."""
    folder = tmp_path_factory.mktemp("one")
    return {case: trained(folder / case, case, ALONE) for case in [*CASES, *ENCODERS]}


@pytest.mark.parametrize("size", [2, 4])
def test_processes_give_the_losses_and_rows_of_one(size: int, one: dict[str, Any], tmp_path: Path) -> None:
    for found in outputs(size, str(tmp_path), "all"):
        assert found.keys() == one.keys()
        for case, expected in one.items():
            for name in expected:
                np.testing.assert_allclose(
                    found[case][name], expected[name], rtol=NEAR, atol=NEAR, err_msg=f"{case}, {name}"
                )


@pytest.mark.parametrize("case", ["triplet, averaged", "all labels", "M1 of unidec"])
def test_a_killed_process_ends_all_and_another_number_resumes(case: str, one: dict[str, Any], tmp_path: Path) -> None:
    killed = start(2, str(tmp_path), case, "7")
    said = [process.communicate(timeout=300)[1] for process in killed]
    assert killed[1].returncode == -9
    assert killed[0].returncode != 0
    assert "process 0 of 2, which lost the others" in said[0]
    assert "resumes from its last checkpoint" in said[0]
    resumed = outputs(4, str(tmp_path), case)
    for found in resumed:
        assert found[case]["began"] == 6, "the checkpoint after the last losses that were read"
        for name in one[case].keys() - {"began"}:
            np.testing.assert_allclose(found[case][name], one[case][name], rtol=NEAR, atol=NEAR)


def torchrun(workspace: Workspace, size: int, *command: str) -> subprocess.CompletedProcess[str]:
    """Run ``xc`` under torchrun."""
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size), "-m", "xc_core.cli.main"]
    environment = {**os.environ, "XC_ROOT": str(workspace.root), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*run, *command, "--dataset", "toy", "--recipe", "ngame"],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_stage_under_torchrun_writes_what_one_process_writes(copied: Workspace) -> None:
    folder = copied.folder("classifier", "toy", "ngame")
    expected = LabelTables.open(folder)
    rows = {fold.name: np.array(expected.rows(fold.name)) for fold in expected.folds}
    done = torchrun(copied, 2, "run", "classifier", "--force")
    assert done.returncode == 0, done.stderr
    found = LabelTables.open(folder)
    for name, rows_LD in rows.items():
        np.testing.assert_allclose(found.rows(name), rows_LD, rtol=NEAR, atol=NEAR)
    assert found.history["losses"] == pytest.approx(expected.history["losses"], rel=NEAR)
    assert not list(folder.parent.glob(".*.tmp*")), "the second process leaves nothing behind"
    again = torchrun(copied, 2, "run", "classifier")
    assert again.returncode == 0 and again.stdout.count("up to date") >= 1, again.stderr


def test_a_stage_that_trains_alone_refuses_several_processes(copied: Workspace) -> None:
    refused = torchrun(copied, 2, "run", "embeddings", "--force")
    assert refused.returncode != 0
    assert "2 processes started for the stage embeddings" in refused.stderr
