"""A project of an earlier release under the present code: its champion answers as before, a killed training goes on."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import NGAME, TOY, TOY_SETTINGS
from tests.conftest import ToyWorld
from tests.source import PACKAGES, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("starting")]

RELEASES = ("0.2.0", "0.3.0")
QUICK = tuple(part for part in TOY_SETTINGS if part not in ("--set", "audit.sample=50", "audit.k=4"))
SETTINGS = [part for setting in QUICK for part in ("--set", setting)]
LONG = [*SETTINGS, "--set", "encoder.epochs=40"]
TEXTS = ("falcon", "castle0 castle1", "engine2 violin3 n4")


@dataclass(frozen=True)
class Project:
    """A project, and the code of the release that made it."""

    root: Path
    code: Path

    def command(self, code: Path, *arguments: object) -> tuple[list[str], dict[str, str]]:
        """Return a command of ``xc`` with the code in a folder, and its environment."""
        environment = {**os.environ, "PYTHONPATH": str(code), "XC_ROOT": str(self.root), "XC_CHECKPOINT_SECONDS": "-1"}
        return [sys.executable, "-P", "-m", "xc_core.cli.main", *map(str, arguments)], environment

    def xc(self, code: Path, *arguments: object) -> str:
        """Run a command; return its output and its messages. It has to succeed."""
        command, environment = self.command(code, *arguments)
        ended = subprocess.run(command, env=environment, cwd=self.root, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert "Traceback" not in ended.stderr
        return ended.stdout + ended.stderr

    def answers(self, code: Path, *arguments: object) -> list[dict[str, Any]]:
        """Return the labels of all texts."""
        said = self.xc(code, "predict", *arguments, "--json", *TEXTS).splitlines()
        return [label for line in said if line.startswith("[") for label in json.loads(line)]


@pytest.fixture(params=RELEASES)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """The toy world as a dataset that a release has ingested."""
    release, code, root = request.param, tmp_path / "code", tmp_path / "project"
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "log", f"--grep=^Version {release}$", "--format=%H", "-1"], capture_output=True,
                           text=True, check=False)  # fmt: skip
    if not (commit := found.stdout.strip()):
        pytest.skip(f"no commit of release {release} in the history of git")
    packed = subprocess.run([*git, "archive", commit, *PACKAGES], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(code, filter="data")
    root.mkdir()
    (root / "params.yaml").write_text("datasets: {}\nexperiments: {}\n")
    project = Project(root, code)
    project.xc(code, "ingest", ToyWorld.make().write(tmp_path / "raw"), *TOY)
    return project


def test_a_champion_answers_as_before(project: Project) -> None:
    recipes = {"ngame": SETTINGS, "words": []}
    for recipe in (name for name in recipes if (project.code / "xc_core" / "recipes" / f"{name}.py").is_file()):
        project.xc(project.code, "train", *TOY, "--recipe", recipe, *recipes[recipe])
        project.xc(project.code, "promote", *TOY, "--recipe", recipe)
        before = project.answers(project.code, *TOY, "--recipe", recipe)  # entry points are those of the present code
        after = project.answers(ROOT, *TOY)  # of the champion
        assert [label["uid"] for label in after] == [label["uid"] for label in before] != []
        assert [label["score"] for label in after] == pytest.approx([label["score"] for label in before], abs=1e-5)
        project.xc(ROOT, "status", *TOY, "--recipe", recipe, "--json")


def test_a_training_that_was_killed_resumes(project: Project) -> None:
    command, environment = project.command(project.code, "train", *NGAME, *LONG)
    checkpoint = project.root / ".xc" / "run" / "encoder@toy_ngame" / "position.json"
    with subprocess.Popen(command, env=environment, cwd=project.root, stderr=subprocess.DEVNULL) as training:
        while not checkpoint.exists():
            assert training.poll() is None, "it ended before its first checkpoint"
            time.sleep(0.05)
        training.send_signal(signal.SIGKILL)
    said = project.xc(ROOT, "train", *NGAME, *LONG)
    assert "encoder: resuming at epoch" in said
