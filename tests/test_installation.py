"""An installation that is older than the code, as an editable one is after ``git pull``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Xc
from tests.cli.conftest import xc as xc
from xc_core.errors import ConfigError
from xc_core.installation import outdated

_PYPROJECT = """[project]
name = "my-xc"
dependencies = ["Torch>=2", "new_package >= 1 ; python_version > '3'"]
[project.entry-points."xc.commands"]
promote = "assets.release.promotion:promote"
delete = "assets.release.deleting:delete"
[project.entry-points."xc.champions"]
mlflow = "assets.release.champions:champion"
[project.entry-points.pytest11]
ours = "tests.ours"
"""
_OLD = """[xc.commands]
promote = assets.release.promotion:promote
[xc.champions]
mlflow = assets.release.promotion:champion
"""
_SAME = """[xc.commands]
promote = assets.release.promotion:promote
delete = assets.release.deleting:delete
[xc.champions]
mlflow = assets.release.champions:champion
[pytest11]
ours = tests.ours
[console_scripts]
xc = xc_core.cli.main:main
"""


def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: str, *packages: str) -> Path:
    """Install the entry points ``entries``, required packages and others; return a checkout of the code."""
    for name in ("my_xc", *packages):
        info = tmp_path / "site" / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        required = "Requires-Dist: torch>=2\nRequires-Dist: new_package; extra == 'dev'\n"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{required}")
    (tmp_path / "site" / "my_xc-1.0.dist-info" / "entry_points.txt").write_text(entries)
    (tmp_path / "pyproject.toml").write_text(_PYPROJECT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path


def test_entry_points_of_older_code_and_a_required_package_that_is_absent_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = outdated(_installed(tmp_path, monkeypatch, _OLD))
    assert error is not None
    assert error.found.endswith("differ in xc.champions mlflow, xc.commands delete, new-package")
    assert str(tmp_path) in error.do


def test_an_entry_point_that_older_code_lacks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = _SAME.replace("[pytest11]", "[xc.places]\nmlflow = assets.release.places:places\n[pytest11]")
    error = outdated(_installed(tmp_path, monkeypatch, newer, "new_package"))
    assert error is not None and error.found.endswith("differ in xc.places mlflow")


def test_the_installation_of_this_code_and_a_wheel_are_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata may be older than a requirement that is fulfilled. A wheel has no pyproject.toml beside its code."""
    assert outdated(_installed(tmp_path, monkeypatch, _SAME, "new_package")) is None
    assert outdated(tmp_path / "site") is None


def test_a_command_notes_an_installation_of_other_code_and_an_error_is_not_called_a_fault_of_xc(
    xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    error = ConfigError("other entries", expected="these", do="that")
    for command in ("main", "doctor"):
        monkeypatch.setattr(f"xc_core.cli.{command}.outdated", lambda: error)
    monkeypatch.setattr("xc_core.cli.status.Workspace.find", lambda: 1 / 0)
    ended = xc("status")
    assert ended.err.startswith("note: found other entries\n  expected: these\n  do this:  that\n")
    assert (ended.code, "report it" in ended.err, "see the note above" in ended.err) == (78, False, True)
    ended = xc("doctor")
    assert (ended.code, "note: found" in ended.err) == (78, False)
    assert re.search(r"^fault  found other entries$", ended.out, re.MULTILINE)
