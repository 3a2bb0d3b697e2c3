"""A plug-in that cannot be imported: help still works; ``xc doctor`` and the search for an unknown part name it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import forks
from tests.conftest import make_workspace
from tests.plugins.conftest import METADATA, ROOT


@pytest.fixture
def broken(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process in which a broken plug-in is installed."""
    info = tmp_path / "site" / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA.replace("example", "broken"))
    (info / "entry_points.txt").write_text("[xc.parts]\nbroken = no_such_module_of_a_plugin\n")
    root = make_workspace(tmp_path / "project").root
    return {**os.environ, "XC_ROOT": str(root), "PYTHONPATH": os.pathsep.join((str(info.parent), str(ROOT)))}


def xc(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    site = environment["PYTHONPATH"].split(os.pathsep)[0]
    return forks.run("tests.plugins.conftest:xc", site, *arguments, env=environment)


def test_help_works_without_the_plugin(broken: dict[str, str]) -> None:
    ended = xc(broken, "--help")
    assert ended.returncode == 0, ended.stderr
    assert "ingest" in ended.stdout


UNKNOWN = ("train", "--dataset", "toy", "--recipe", "ngame", "--set", "encoder.loss=hinge")


@pytest.mark.parametrize(("arguments", "stream"), [(["doctor"], "stdout"), (UNKNOWN, "stderr")])
def test_the_plugin_is_named(broken: dict[str, str], arguments: list[str], stream: str) -> None:
    ended = xc(broken, *arguments)
    assert ended.returncode == 78
    assert "the plug-in 'broken' (no_such_module_of_a_plugin), which cannot be imported" in getattr(ended, stream)
    assert "fix or uninstall the package that provides it" in getattr(ended, stream)
