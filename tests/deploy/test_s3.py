"""DVC's remote and MLflow's artefacts in a real S3-compatible server, SeaweedFS; logins come from the environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assets.resources import Dvc
from tests.conftest import make_workspace
from tests.deploy.weed import SECRET, running
from tests.pipelines.conftest import dvc, make_project
from xc_core import artifacts
from xc_core.chain import Workspace, run_stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server with two buckets, and the environment of its clients."""
    with running(tmp_path_factory.mktemp("store"), "xc-dvc", "xc-mlflow") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield


def holders(root: Path, text: str) -> list[Path]:
    """Return the files under ``root`` that hold ``text``."""
    return [path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_what_one_project_pushes_another_pulls(tmp_path: Path, store: None) -> None:
    pytest.importorskip("dvc_s3", reason="pip install -e '.[s3]'")
    ours = make_project(tmp_path / "ours")
    dvc(ours.root, "remote", "add", "--default", "store", "s3://xc-dvc/project")
    for stage in ("corpus", "tokens"):
        run_stage(ours, stage, "toy")
        assert Dvc(root=str(ours.root)).record(stage, "toy", None)
    dvc(ours.root, "push", "corpus@toy", "tokens@toy")
    theirs = Workspace(tmp_path / "theirs")
    dropped = shutil.ignore_patterns("cache", "tmp", "corpus", "tokens", ".xc")
    shutil.copytree(ours.root, theirs.root, ignore=dropped)
    assert not theirs.folder("corpus", "toy", None).exists()
    dvc(theirs.root, "pull", "corpus@toy", "tokens@toy")
    for stage in ("corpus", "tokens"):
        one, two = (artifacts.verify(project.folder(stage, "toy", None)).digest() for project in (ours, theirs))
        assert one == two
    assert holders(tmp_path, SECRET) == []


def xc(root: Path, *arguments: str) -> str:
    """Run ``xc`` for a project in a process of its own; return what it prints."""
    command = [sys.executable, "-m", "xc_core.cli.main", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_champion_is_registered_in_the_store_and_answers_from_there(
    copied: Workspace, store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(copied.root))
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", "s3://xc-mlflow/artifacts")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    xc(copied.root, "promote", "--dataset", "toy", "--recipe", "ngame")
    shutil.rmtree(copied.folder("model", "toy", "ngame"))
    shutil.rmtree(copied.state / "champions", ignore_errors=True)
    assert not (copied.root / ".xc" / "mlflow" / "artifacts").exists(), "the files of models are in the store alone"
    answer = xc(copied.root, "predict", "--dataset", "toy", "river0 castle0 river1 castle1 river2 castle2")
    assert {"river", "castle"} <= set(answer.replace(",", " ").split())
    assert holders(copied.root, SECRET) == []


def test_a_wrong_login_is_an_error_that_names_no_secret(
    tmp_path: Path, store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dvc_s3", reason="pip install -e '.[s3]'")
    ours = make_workspace(tmp_path)
    for command in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"]):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    dvc(ours.root, "remote", "add", "--default", "store", "s3://xc-dvc/project")
    dvc(ours.root, "add", "data/toy/raw")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wr0ng-secret")
    with pytest.raises(AssertionError) as refused:
        dvc(ours.root, "push")
    assert "wr0ng-secret" not in str(refused.value)
