"""What ``xc forget`` prints of DVC, MLflow and Dagster: steps that work, and the places that the settings name."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from assets.places import places
from assets.release.promotion import record
from tests.cli.conftest import TOY, Xc, entry, offered
from tests.conftest import make_workspace
from tests.pipelines.conftest import make_repository
from tests.source import ROOT
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.lifecycle.places import GROUP

pytestmark = pytest.mark.chain

UID, TEXT = "D0003", "n3"
"""A train document, and a word that only it has."""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings in the environment; the entry point as pyproject.toml declares it, installed or not."""
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_REGISTRY_URI",
        "XC_MLFLOW_ARTIFACTS",
        "XC_DAGSTER_HOME",
        "DAGSTER_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("XC_STATE_DIR", "XC_LOG_DIR"):
        monkeypatch.delenv(name, raising=False)
    offered(monkeypatch, GROUP, entry("assets", places))


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project without Dagster, MLflow and DVC."""
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    return make_workspace(tmp_path)


def dvc(root: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def holding(folder: Path) -> list[str]:
    """Return the files, whatever their names, that hold the document."""
    found = []
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        elif content[:4] == b"PAR1":
            content += str(pl.read_parquet(path, glob=False).rows()).encode()
        if UID.encode() in content or f' {TEXT}"'.encode() in content:
            found.append(path.relative_to(folder).as_posix())
    return found


def lines(workspace: Workspace) -> str:
    return "\n".join(f"{place.name}: {place.do}" for place in places(workspace, "toy"))


@pytest.mark.parametrize("again", [False, True], ids=["not-trained", "trained-again"])
def test_the_printed_steps_leave_nothing_in_dvc(xc: Xc, bare: Workspace, tmp_path: Path, again: bool) -> None:
    """The command line does not record what it trains, so the records of before have to go."""
    root, remote = bare.root, tmp_path.with_name(f"{tmp_path.name}-remote")
    make_repository(root)
    dvc(root, "remote", "add", "--default", "away", str(remote))
    for name in STAGES:
        run_stage(bare, name, "toy", "ngame")
    record(bare, "toy", "ngame")
    dvc(root, "push")
    cache = root / ".dvc" / "cache"
    assert len(holding(cache)) >= 2 and len(holding(remote)) >= 2, "raw files and corpus"
    ended = xc("forget", *TOY, "--document", UID)
    assert ended.code == 0, ended.err
    assert "dvc.lock: " in ended.out
    if again:
        for name in STAGES:
            run_stage(bare, name, "toy", "ngame")
    steps = [line.split() for line in ended.out.splitlines() if line.startswith("    dvc ")]
    assert [step[1] for step in steps] == ["add", "gc", "gc"]
    for _, name, *rest in steps:
        dvc(root, name, *rest, *(["--force"] if name == "gc" else []))
    assert (holding(cache), holding(remote)) == ([], [])
    assert holding(root / "data") == []
    record(bare, "toy", "ngame")
    assert holding(cache) == []
    dvc(root, "status", "data/toy/raw.dvc")


def test_the_records_of_other_datasets_stay(xc: Xc, bare: Workspace) -> None:
    lock = bare.root / "dvc.lock"
    lock.write_text("schema: '2.0'\nstages:\n" + "".join(
        f"  {name}:\n    cmd: x\n" for name in ("corpus@toy", "encoder@toy_ngame", "corpus@toy-2", "encoder@toys_ngame")
    ))  # fmt: skip
    assert xc("forget", *TOY, "--document", UID).code == 0
    assert lock.read_text() == (
        "schema: '2.0'\nstages:\n  corpus@toy-2:\n    cmd: x\n  encoder@toys_ngame:\n    cmd: x\n"
    )


@pytest.mark.parametrize("content", ["a: [", "- 1\n", "stages: [1]\n"])
def test_with_an_unreadable_lock_file_nothing_is_removed(xc: Xc, bare: Workspace, content: str) -> None:
    (bare.root / "dvc.lock").write_text(content)
    ended = xc("forget", *TOY, "--document", UID)
    assert (ended.code, "found an unreadable dvc.lock\n" in ended.err) == (74, True)
    assert holding(bare.raw("toy")) != []


def test_a_project_without_them_names_no_place(bare: Workspace) -> None:
    assert places(bare, "toy") == []
    assert not (bare.root / ".xc" / "mlflow").exists(), "asking makes no folder"


def test_places_inside_the_project_are_named(bare: Workspace) -> None:
    for name in ("mlflow", "dagster"):
        (bare.state / name).mkdir(parents=True)
    found = lines(bare)
    assert f"MLflow at sqlite:///{bare.state}/mlflow/mlflow.db: delete the registered versions of xc-toy" in found
    assert f"MLflow's files in {bare.state}/mlflow/artifacts: " in found
    assert f"Dagster ({bare.state / 'dagster'}): delete the runs" in found


def test_a_folder_with_both_state_and_logs_of_dagster_is_named_once(
    bare: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XC_STATE_DIR", "XC_LOG_DIR"):
        monkeypatch.setenv(name, str(bare.root))
    assert f"Dagster ({bare.root}): delete the runs" in lines(bare)


def test_places_of_the_production_profile_are_named_without_logins(
    bare: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hidden@tracking:5000")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", "s3://xc-mlflow/artifacts")
    monkeypatch.setenv("XC_DAGSTER_HOME", str(ROOT / "deploy" / "postgres"))
    monkeypatch.setenv("XC_LOG_DIR", str(bare.root))
    found = lines(bare)
    assert "MLflow at http://***@tracking:5000: " in found
    assert "MLflow's files in s3://xc-mlflow/artifacts: " in found
    assert f"Dagster (postgres, set in {ROOT}/deploy/postgres/dagster.yaml; {bare.root}): " in found
    assert "hidden" not in found


@pytest.mark.parametrize("tracking", ["http://tracking:5000", None])
def test_a_registry_at_another_address_is_named_beside_the_tracking_server(
    bare: Workspace, monkeypatch: pytest.MonkeyPatch, tracking: str | None
) -> None:
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "http://user:hidden@registry:5001")
    if tracking is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    found = lines(bare)
    command = "(xc delete --dataset toy --version N --even-previous --yes)"
    there = f"delete the registered versions of xc-toy with their models {command}, "
    assert f"MLflow's registry at http://***@registry:5001: {there}and the registry's own copies" in found
    own = tracking or f"sqlite:///{bare.state}/mlflow/mlflow.db"
    runs = "the runs of each experiment xc-toy, xc-toy (2) and so on"
    assert f"MLflow at {own}: the same command deletes the models of these versions; delete {runs}, " in found
    assert "hidden" not in found


def test_a_registry_at_the_address_of_the_tracking_server_is_named_once(
    bare: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(name, "http://tracking:5000")
    files = f"MLflow's files in {bare.state}/mlflow/artifacts"
    assert [place.name for place in places(bare, "toy")] == ["MLflow at http://tracking:5000", files]


def test_an_address_of_white_space_is_none(bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from an empty secret: an MLflow that was never used was named, with a database that does not exist."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(name, " \n")
    assert places(bare, "toy") == []


def test_a_home_of_dagster_that_was_set_by_hand_counts(bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(ROOT / "deploy" / "postgres"))
    assert "Dagster (postgres, set in" in lines(bare)


def test_every_remote_of_dvc_has_a_command_of_its_own(bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare.root / ".dvc").mkdir()
    remotes = {"near": "/srv/dvc", "far": "s3://me:hidden@bucket"}
    monkeypatch.setattr("assets.places.DvcSettings.remotes", remotes)
    _, *found = places(bare, "toy")
    assert [place.name for place in found] == ["DVC's remote near (/srv/dvc)", "DVC's remote far (s3://***@bucket)"]
    assert [place.commands for place in found] == [(f"dvc gc --workspace --cloud --remote {name}",) for name in remotes]


def test_an_acceptance_set_that_dvc_tracks_is_recorded_too(bare: Workspace) -> None:
    (bare.root / ".dvc").mkdir()
    home = bare.data / "toy"
    (home / "acceptance.dvc").touch()
    (home / "acceptance").mkdir()
    assert places(bare, "toy")[0].commands == ("dvc add data/toy/acceptance", "dvc gc --workspace")
    (home / "acceptance").rmdir()
    assert places(bare, "toy")[0].commands[0] == "dvc remove data/toy/acceptance.dvc"


def test_pyproject_declares_the_entry_point() -> None:
    assert (
        '[project.entry-points."xc.places"]\nassets = "assets.places:places"\n' in (ROOT / "pyproject.toml").read_text()
    )
