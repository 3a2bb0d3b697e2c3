"""M1 and M4 in 1, 2 and 4 processes: same losses and state; a killed process ends all, any number of them resumes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import forks
from tests.processes import free_port
from tests.train.ranks import CASES, ENCODERS, ROOT, run, trained
from xc_core.chain import Workspace, run_stage
from xc_core.classifiers import LabelTables
from xc_core.cli.main import main
from xc_core.distributed import ALONE
from xc_core.encoders import TrainedEncoder
from xc_core.errors import CorruptError
from xc_core.manifests import read_manifest
from xc_core.sampling.hard import HardNegatives
from xc_core.train import checkpoint
from xc_core.train.checkpoint import Checkpoints

pytestmark = pytest.mark.chain

NEAR = 1e-6
KILLED = ("triplet, averaged", "all labels", "M1 of unidec")


def outputs(size: int, folder: Path, *cases: str) -> list[dict[str, Any]]:
    """Return what each process printed; all must end well."""
    ended = run(size, folder, cases)
    assert [one.code for one in ended] == [0] * size, "\n".join(one.err for one in ended)
    return [json.loads(one.out) for one in ended]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What one process gives."""
    folder = tmp_path_factory.mktemp("one")
    return {case: trained(folder / case, case, ALONE) for case in [*CASES, *ENCODERS]}


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_give_the_losses_and_rows_of_one(size: int, one: dict[str, Any], tmp_path: Path) -> None:
    for found in outputs(size, tmp_path, *one):
        assert found.keys() == one.keys()
        for case, expected in one.items():
            for name in expected:
                np.testing.assert_allclose(
                    found[case][name], expected[name], rtol=NEAR, atol=NEAR, err_msg=f"{case}, {name}"
                )


@pytest.mark.parametrize("recipe", ["ngame", "astra", "unidec"])
def test_a_batch_in_passes_gives_the_losses_of_a_whole_one(recipe: str, one: dict[str, Any]) -> None:
    """A pass has 24 tokens, a batch of 9 documents some 60."""
    (name,) = (case for case in ENCODERS if case.startswith(f"M1 of {recipe}, ") and case.endswith("in passes"))
    for key, expected in one[f"M1 of {recipe}"].items():
        np.testing.assert_allclose(one[name][key], expected, rtol=NEAR, atol=NEAR, err_msg=key)


def test_a_killed_process_ends_all_and_another_number_resumes(one: dict[str, Any], tmp_path: Path) -> None:
    for case in KILLED:
        left, killed = run(2, tmp_path, [case], end=5)
        assert killed.code == -9
        assert left.code not in (0, None)
        assert "process 0 of 2, which lost the others" in left.err
        assert "resumes from its last checkpoint" in left.err
    for found in outputs(4, tmp_path, *KILLED):
        for case in KILLED:
            assert found[case]["began"] == 4, f"{case}: the checkpoint after the last losses that were read"
            for name in one[case].keys() - {"began"}:
                np.testing.assert_allclose(
                    found[case][name], one[case][name], rtol=NEAR, atol=NEAR, err_msg=f"{case}, {name}"
                )


def torchrun(
    workspace: Workspace, stage: str, *options: str, machines: int, each: int, programs: Path | None = None
) -> list[str]:
    """Run a stage by the script of ``deploy``, as ``machines`` with ``each`` processes; return what they said.

    ``programs`` is a folder with another program ``xc``.
    """
    place = {"MACHINES": str(machines), "PER_MACHINE": str(each), "FIRST": f"127.0.0.1:{free_port()}"}
    environment = {
        **os.environ,
        **place,
        "XC_ROOT": str(workspace.root),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    folders = [str(folder) for folder in (programs, Path(sys.executable).parent) if folder]
    environment["PATH"] = os.pathsep.join([*folders, environment["PATH"]])
    command = [str(ROOT / "deploy" / "torchrun.sh"), stage, "--dataset", "toy", "--recipe", "ngame", *options]
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(machines)
    ]
    said = [process.communicate(timeout=300)[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("\n".join(said))
    return said


def shared(
    workspace: Workspace, stage: str, *options: str, size: int, program: str = forks.XC
) -> list[subprocess.CompletedProcess[str]]:
    """Run a stage in ``size`` processes, with the environment that torchrun gives them; return how they ended."""
    one = {**os.environ, "XC_ROOT": str(workspace.root), "WORLD_SIZE": str(size)}
    one |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = (stage, "--dataset", "toy", "--recipe", "ngame", *options)
    ranks = [
        forks.start(program, "run", *command, env={**one, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(size)
    ]
    return [process.wait() for process in ranks]


def said_by(ended: list[subprocess.CompletedProcess[str]]) -> str:
    """Return what the processes said; all must have ended well."""
    assert [one.returncode for one in ended] == [0] * len(ended), "\n".join(one.stderr for one in ended)
    return "".join(one.stdout + one.stderr for one in ended)


def test_the_stage_classifier_on_two_machines_gives_what_one_process_gives(copied: Workspace) -> None:
    folder = copied.folder("classifier", "toy", "ngame")
    expected = LabelTables.open(folder)
    rows = {fold.name: np.array(expected.rows(fold.name)) for fold in expected.folds}
    torchrun(copied, "classifier", "--force", machines=2, each=1)
    found = LabelTables.open(folder)
    for name, rows_LD in rows.items():
        np.testing.assert_allclose(found.rows(name), rows_LD, rtol=NEAR, atol=NEAR)
    assert found.history["losses"] == pytest.approx(expected.history["losses"], rel=NEAR)
    assert not list(folder.parent.glob(".*")), "the second process leaves nothing behind"
    assert "up to date" in said_by(shared(copied, "classifier", size=2))


def test_one_machine_starts_as_many_processes_as_it_is_told(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "xc").write_text('#!/bin/sh\necho "process $RANK of $WORLD_SIZE: xc $*"\n', "utf-8")
    (tmp_path / "xc").chmod(0o755)
    (said,) = torchrun(workspace, "classifier", "--force", machines=1, each=2, programs=tmp_path)
    command = "xc run classifier --dataset toy --recipe ngame --force"
    lines = sorted(line for line in said.splitlines() if line.startswith("process "))
    assert lines == [f"process {rank} of 2: {command}" for rank in range(2)]


def test_the_stage_encoder_gives_what_one_process_gives(copied: Workspace) -> None:
    folder = copied.folder("encoder", "toy", "ngame")
    expected = TrainedEncoder.open(folder)
    said_by(shared(copied, "encoder", "--force", size=2))
    found = TrainedEncoder.open(folder)
    assert found.history["losses"] == pytest.approx(expected.history["losses"], rel=NEAR, abs=NEAR)
    weights = expected.encoder.state_dict()
    for name, value in found.encoder.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-5)


def test_the_stage_embeddings_gives_the_bytes_of_one_process(
    copied: Workspace, edit: Callable[[Workspace, Any], None]
) -> None:
    """Each process encodes every second pass, of 64 tokens: some 40 for the documents, an odd number for the labels."""
    edit(copied, {"experiments/toy_ngame/stages/encoder/encoder/tokens_per_pass": 64})
    run_stage(copied, "encoder", "toy", "ngame")
    run_stage(copied, "embeddings", "toy", "ngame")
    folder = copied.folder("embeddings", "toy", "ngame")
    expected = read_manifest(folder).digest()
    said = said_by(shared(copied, "embeddings", "--force", size=2))
    assert read_manifest(folder).digest() == expected
    assert said.count("embeddings: done") == 1
    assert not list(folder.parent.glob(".*")), "the second process leaves nothing behind"


def test_the_stage_negatives_finds_what_one_process_finds(
    copied: Workspace, edit: Callable[[Workspace, Any], None]
) -> None:
    edit(copied, {"experiments/toy_ngame/stages/negatives/k": 5})
    run_stage(copied, "negatives", "toy", "ngame")
    folder = copied.folder("negatives", "toy", "ngame")
    expected = HardNegatives.open(folder)
    said = said_by(shared(copied, "negatives", "--force", size=3))
    found = HardNegatives.open(folder)
    np.testing.assert_array_equal(found.found.ids_NK, expected.found.ids_NK)
    np.testing.assert_allclose(found.found.scores_NK, expected.found.scores_NK, rtol=NEAR, atol=NEAR)
    assert said.count("search recall 1.000") == 1
    assert not list(folder.parent.glob(".*")), "the other processes leave nothing behind"


def second_fails() -> None:
    """Run ``xc``; the second process finds that the encoder is damaged."""
    if os.environ["RANK"] == "1":
        importlib.import_module("xc_core.stages.embeddings").run = _damaged  # type: ignore[attr-defined]
    main()


def _damaged(_: object) -> None:
    raise CorruptError("a damaged file", expected="what was written", do="write it again")


def test_each_process_reports_its_own_error(copied: Workspace) -> None:
    """The first one loses the others; why, only the second can say."""
    first, second = shared(copied, "embeddings", "--force", size=2, program=f"{__name__}:second_fails")
    assert (second.returncode, first.returncode) == (74, 69)
    assert second.stderr.startswith("xc: found a damaged file")
    assert "lost the others" in first.stderr


def inputs_change() -> None:
    """Run ``xc``; params.yaml changes before the first process writes its first checkpoint."""
    due = Checkpoints.due

    def edited(self: Checkpoints, seconds: float) -> bool:
        if self.world.first:
            params = Path(os.environ["XC_ROOT"]) / "params.yaml"
            params.write_text(params.read_text().replace("epochs: 4", "epochs: 3"))
        return due(self, seconds)

    Checkpoints.due = edited  # type: ignore[method-assign]
    main()


def test_a_change_of_the_inputs_ends_all_processes_with_the_same_error(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first one checks them: the others lost it, or waited for it on a GPU."""
    monkeypatch.setenv("XC_CHECKPOINT_SECONDS", "0")
    for ended in shared(copied, "encoder", "--force", size=2, program=f"{__name__}:inputs_change"):
        assert ended.returncode == 76, ended.stderr
        assert "parameters or inputs of encoder that changed during the run: " in ended.stderr


def disk_fills() -> None:
    """Run ``xc``; the disk of the first process is full when it writes a checkpoint."""
    module: Any = checkpoint
    save = module.save_file

    def full(tensors: Any, path: Path) -> None:
        stage = sys.argv[sys.argv.index("run") + 1]
        if os.environ["RANK"] == "0" and (stage == "encoder" or path.name.startswith("rows")):
            raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
        save(tensors, path)

    module.save_file = full
    main()


@pytest.mark.parametrize("stage", ["encoder", "classifier"])
def test_a_checkpoint_that_cannot_be_written_ends_all_processes_with_the_same_error(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The first one alone writes; the others lost it (69), or waited for it on a GPU."""
    monkeypatch.setenv("XC_CHECKPOINT_SECONDS", "0")
    for ended in shared(copied, stage, "--force", size=2, program=f"{__name__}:disk_fills"):
        assert ended.returncode == 73, ended.stderr
        assert "found a full disk (Error while serializing: I/O error: No space left on device" in ended.stderr


def test_a_stage_that_is_not_shared_refuses_several_processes(copied: Workspace) -> None:
    for ended in shared(copied, "clusters", "--force", size=2):
        assert ended.returncode
        assert "2 processes started for the stage clusters" in ended.stderr
