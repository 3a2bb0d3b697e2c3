"""A package with one part of every family: installing it changes no artefact, and its parts work in every stage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import TOY_SETTINGS
from tests.conftest import ToyWorld, make_workspace, write_lines
from tests.plugins.conftest import Run
from xc_core.chain import STAGES, Workspace
from xc_core.metrics.evaluation import Evaluation

pytestmark = [pytest.mark.chain, pytest.mark.timeout(600)]

PARTS = {
    "encoder.loss": "hinge",
    "encoder.loss.margin": "0.3",
    "encoder.order": "by-label",
    "encoder.negatives": "popular",
    "encoder.negatives.most": "3",
    "classifier.loss": "{kind: hinge, margin: 0.4}",
    "classifier.order": "by-label",
    "classifier.negatives": "popular",
    "scores.label_text.index": "half",
    "scores.bm25": "{k1: 1.5}",
}
OTHERS = [name for name in STAGES if name != "leaderboard"]
"""The stages of one experiment."""


@pytest.fixture
def copy(trained: Workspace, tmp_path: Path) -> Workspace:
    return Workspace(Path(shutil.copytree(trained.root, tmp_path / "copy")))


def manifests(workspace: Workspace) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in workspace.data.rglob("made.json")}


def test_installing_parts_makes_no_stage_of_a_trained_experiment_stale(copy: Workspace, run: Run) -> None:
    rows = [
        json.loads(line)
        for line in run(copy.root, "status", "--json", starts_python=True).splitlines()
        if line.startswith("{")
    ]
    assert {row["stage"]: row["status"] for row in rows} == dict.fromkeys(OTHERS, "up to date")
    before = manifests(copy)
    printed = run(copy.root, "train", "--dataset", "toy", "--recipe", "ngame", *TOY_SETTINGS, starts_python=True)
    assert [line for line in printed.splitlines() if line.endswith(": up to date")] == [
        f"{n}: up to date" for n in OTHERS
    ]
    assert manifests(copy) == before


def test_parts_of_another_package_train_fuse_are_packed_served_and_timed(tmp_path: Path, run: Run) -> None:
    workspace = make_workspace(tmp_path / "project")
    settings = [part for name, value in PARTS.items() for part in ("--set", f"{name}={value}")]
    changes = [*settings, "--set", "encoder.encoder.name=bag", "--set", "encoder.optim.lr=0.02"]
    printed = run(
        workspace.root, "train", "--dataset", "toy", "--recipe", "mine", "--base", "ngame", *changes, "--budget", "20s"
    )
    assert "of it for encoding and scores" in printed, "the score says what it costs"
    recipe = workspace.folder("fusion", "toy", "mine")
    assert {"label_text", "classifier", "bm25"} <= set(json.loads((recipe / "fusion.json").read_text())["names"])
    found = Evaluation.open(workspace.folder("evaluation", "toy", "mine"))
    assert found.report["ablation"]["bm25"]["P_at_1"] > 90
    assert found.metrics["P_at_1"] > 90
    answer = json.loads(run(workspace.root, "predict", "--dataset", "toy", "--recipe", "mine", "--json", "-k", "2",
                            "river0 castle0 river1 castle1").splitlines()[0])  # fmt: skip
    assert {label["title"] for label in answer} == {"river", "castle"}
    assert (workspace.folder("model", "toy", "mine") / "scores" / "bm25" / "weights.npz").is_file()
    assert "bm25" in run(workspace.root, "compare", "--dataset", "toy", "mine", "mine:bm25")
    shown = run(workspace.root, "settings", "--dataset", "toy", "--recipe", "mine")
    assert "kind: hinge" in shown
    assert "k1: 1.5" in shown


def test_a_dataset_in_a_layout_of_another_package_is_found_and_read(tmp_path: Path, run: Run) -> None:
    workspace, world = make_workspace(tmp_path / "project"), ToyWorld.make(documents=60, tests=10)
    (tmp_path / "drop").mkdir()
    for split, rows in (("train", world.train), ("test", world.test)):
        lines = [json.dumps([f"{row['title']} {row['content']}", *row["target_ind"]]) for row in rows]
        write_lines(tmp_path / "drop" / f"{split}.pairs", lines)
    (tmp_path / "drop" / "names.json").write_text(json.dumps([label["title"] for label in world.labels]))
    printed = run(workspace.root, "ingest", str(tmp_path / "drop"), "--dataset", "pairs")
    assert "pairs: 51 train, 9 validation, 10 test documents, 10 labels" in printed
