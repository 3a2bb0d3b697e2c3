"""``xc doctor``: a healthy project, and every fault it reports."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import Xc, entry, offered, spoil
from xc_core.chain import STAGES, Workspace
from xc_core.cli.doctor import Finding, _machine, _python, _selection_parser, _versions


def test_doctor_finds_a_healthy_project_well(xc: Xc, own: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("one is fine", "other is fine")
    checks = [entry(text, partial(iter, [Finding("ok", text)])) for text in texts]
    offered(monkeypatch, "xc.checks", *checks)
    ended = xc("doctor")
    assert ended.code == 0, ended.out
    assert "   ok  params.yaml: 1 dataset, 1 experiment\n" in ended.out
    assert f"   ok  {len(STAGES)} artefacts whole" in ended.out
    assert all(f"   ok  {text}\n" in ended.out for text in texts)
    assert ended.out.splitlines()[-1] == "all well"


@pytest.mark.parametrize("fault", ["content", "missing file", "manifest"])
def test_doctor_finds_a_broken_artefact(xc: Xc, own: Workspace, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    offered(monkeypatch, "xc.checks")
    path = spoil(own)
    if fault == "missing file":
        path.unlink()
    elif fault == "manifest":
        path.with_name("manifest.json").write_text("{")
    ended = xc("doctor")
    assert ended.code == 78
    (line,) = [line for line in ended.out.splitlines() if line.startswith("fault")]
    assert str(path if fault != "manifest" else path.with_name("manifest.json")) in line
    assert "xc run model --force" in ended.out
    assert f"{len(STAGES) - 1} artefacts whole" in ended.out
    assert ended.out.splitlines()[-1] == "1 fault"


def test_doctor_finds_wrong_parameters_and_checks_that_cannot_run(
    xc: Xc, own: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, "xc.checks", entry("broken", lambda: 1 / 0))
    params = (own.root / "params.yaml").read_text()
    (own.root / "params.yaml").write_text(params.replace("epochs: 6.0", "epoch: 6.0"))
    ended = xc("doctor")
    assert ended.code == 78
    assert "experiments.toy_ngame: found ngame.classifier.epoch (nearest: 'epochs')" in ended.out
    assert "fault  a check that cannot run (ZeroDivisionError: division by zero)" in ended.out
    assert ended.out.splitlines()[-1] == "2 faults"


def test_doctor_compares_versions_with_the_pins(xc: Xc, own: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.checks")
    (own.root / "constraints.txt").write_text("# pins\nnumpy==0.1\nnot-installed-here==1.0\n")
    said = xc("doctor").out
    assert re.search(r"^ note  versions differ from constraints.txt: numpy \S+ instead of 0\.1$", said, re.MULTILINE)


def test_a_build_of_a_pinned_version_is_that_version(monkeypatch: pytest.MonkeyPatch, fresh: Workspace) -> None:
    """torch for the CPU is 2.6.0+cpu."""
    (fresh.root / "constraints.txt").write_text("torch==2.6.0\nnumpy==2.0.1+local\n")
    monkeypatch.setattr("importlib.metadata.version", {"torch": "2.6.0+cpu", "numpy": "2.0.1"}.__getitem__)
    assert [finding.text for finding in _versions()] == ["versions as pinned"]
    marked = "torch==2.6.0 ; python_version >= '3.11' and sys_platform == 'linux'\n  numpy[x] == 2.0.1  # a==b\n"
    (fresh.root / "constraints.txt").write_text(marked)
    assert [finding.text for finding in _versions()] == ["versions as pinned"]


@pytest.mark.parametrize(("version", "level"), [((3, 11, 0), "ok"), ((3, 10, 9), "fault"), ((4, 0, 1), "ok")])
def test_doctor_wants_a_python_that_is_new_enough(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], level: str
) -> None:
    monkeypatch.setattr("xc_core.cli.doctor.sys", SimpleNamespace(version_info=(*version, "final", 0)))
    text = f"Python {'.'.join(map(str, version))} (3.11 or newer is needed)"
    assert list(_python()) == [Finding(level, text)]


@pytest.mark.parametrize(("version", "level"), [("4.13.2", "ok"), ("4.9.3", "fault")])
def test_doctor_finds_the_parser_that_breaks_the_selection_of_assets(
    monkeypatch: pytest.MonkeyPatch, version: str, level: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    (finding,) = _selection_parser()
    assert finding.level == level
    assert f"parser of Dagster's asset selection: antlr4-python3-runtime {version} (4.13 is needed)" in finding.text
    assert ("pip install -c constraints.txt" in finding.text) == (level == "fault")


@pytest.mark.parametrize(("free", "level"), [(5.1e9, "ok"), (5.0e9, "note"), (4.9e9, "note")])
def test_doctor_notes_a_disk_that_is_nearly_full(
    fresh: Workspace, monkeypatch: pytest.MonkeyPatch, free: float, level: str
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Disk", (), {"free": free})())
    found = [finding.level for finding in _machine() if "GB free on the project's disk" in finding.text]
    assert found == [level]


def another_disk(folder: Path) -> Path:
    """Return a folder on another disk than ``folder``: one in memory, or the one of the tests."""
    disks = (path for path in (Path("/dev/shm"), Path(__file__).parent) if path.is_dir())
    found = next((path for path in disks if path.stat().st_dev != folder.stat().st_dev), None)
    return found or pytest.skip("needs a second disk")


@pytest.mark.parametrize(
    "place",
    [
        ".xc", ".xc/dagster", ".xc/mlflow/artifacts", ".dvc/cache", "data", "data/mine", "state", "log", "files", "db",
        "dvc's", "cache of the user", "cache of the machine", "remote",
    ],
)  # fmt: skip
def test_doctor_shows_the_space_of_each_disk(
    fresh: Workspace, monkeypatch: pytest.MonkeyPatch, place: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As with the folder of a dataset, or of MLflow's files, on a disk of its own.

    DVC's cache may be put elsewhere by its settings of the project, of the user and of the machine.
    """
    monkeypatch.setattr("tempfile.tempdir", str(fresh.root))
    monkeypatch.setenv("XC_STATE_DIR", "state")
    monkeypatch.setenv("XC_LOG_DIR", "log")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (fresh.root / "files").as_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{fresh.root}/db")
    (fresh.root / ".dvc").mkdir(exist_ok=True)
    local = '[cache]\n    dir = "../dvc\'s"\n' if place == "dvc's" else "['remote \"near\"']\n    url = ../remote\n"
    (fresh.root / ".dvc" / "config.local").write_text(local)
    for variable, name in (("DVC_GLOBAL_CONFIG_DIR", "the user"), ("DVC_SYSTEM_CONFIG_DIR", "the machine")):
        (folder := tmp_path_factory.mktemp("dvc")).joinpath("config").write_text(
            f"[cache]\n    dir = {fresh.root}/cache of {name}\n" if name in place else ""
        )
        monkeypatch.setenv(variable, str(folder))
    if (there := fresh.root / place).exists():
        shutil.move(there, fresh.root / "before")
    there.parent.mkdir(exist_ok=True, parents=True)
    there.symlink_to(another_disk(fresh.root))
    free = {fresh.root: 60e9, there: 0.3e9}
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free[path]))
    found = [finding for finding in _machine() if "GB free" in finding.text]
    assert found == [
        Finding("ok", "60 GB free on the project's disk"),
        Finding("note", f"0 GB free on the disk of {there}"),
    ]


def test_doctor_says_how_git_reads_the_project_again(xc: Xc, own: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that mounts a folder of the host."""
    offered(monkeypatch, "xc.checks")
    subprocess.run(["git", "init", "-q"], cwd=own.root, check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    said = xc("doctor").out
    assert " note  models are recorded without a commit: fatal: detected dubious ownership" in said
    assert f"do this:  git config --global --add safe.directory {own.root}" in said


def test_doctor_outside_a_project_says_so_once(xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.checks")
    monkeypatch.delenv("XC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    ended = xc("doctor")
    assert ended.code == 78
    assert ended.out.count("no params.yaml in") == 1


def test_doctor_finds_a_mistyped_recipe_that_competes(
    xc: Xc, own: Workspace, monkeypatch: pytest.MonkeyPatch, edit: Callable[[Workspace, Any], None]
) -> None:
    offered(monkeypatch, "xc.checks")
    edit(own, {"datasets/toy/release": {"recipes": ["ngame"]}})
    assert xc("doctor").code == 0
    edit(own, {"datasets/toy/release": {"recipes": ["ngame", "hose"]}})
    ended = xc("doctor")
    assert ended.code == 78
    assert "fault  found datasets.toy.release.recipes names 'hose'" in ended.out
