"""The package ``tests.plugins``, installed for other processes: they find its modules by entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import forks
from xc_core.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("bm25", "parts")
METADATA = "Metadata-Version: 2.1\nName: example\nVersion: 1.0\n"
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs ``xc`` in a project, with the package installed, and returns what it prints."""
    info = tmp_path / "site" / "example-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text("[xc.parts]\n" + "".join(f"{m} = tests.plugins.{m}\n" for m in MODULES))
    installed = os.pathsep.join((str(info.parent), str(ROOT)))

    def call(root: Path, *arguments: str, starts_python: bool = False) -> str:
        environment = {**os.environ, "XC_ROOT": str(root), "PYTHONPATH": installed}
        command = [sys.executable, "-m", "xc_core.cli.main", *arguments]
        if starts_python:
            done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
        else:
            done = forks.run("tests.plugins.conftest:xc", info.parent, *arguments, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return call


def xc() -> None:
    """Run ``xc`` in a forked process; ``sys.argv`` has the folder of the installed package, then its arguments."""
    sys.path.insert(0, sys.argv.pop(1))
    os.chdir(os.environ["XC_ROOT"])
    main()
