"""Every kind of bad input is refused with file, line and what to do, and nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.data.bad_cases import CASES
from tests.data.spoil import Case, case
from tests.data.worlds import empty_workspace, files_of, write_world
from xc_core.cli.ingest import place
from xc_core.data.ingest import IngestConfig
from xc_core.errors import ConfigError, DataError, UsageError, XCError

NAMES = (
    "../x",
    "/tmp/x",
    "",
    ".",
    "..",
    "a/b",
    "a..b",
    "corpus",
    "raw",
    "Toy",
    "a toy",
    "-a",
    "a-",
    "x\n",
    "ä",
    "a" * 65,
)


def refusal(tmp_path: Path, bad: Case, dataset: str = "toy") -> XCError:
    """Spoil a good folder, ingest it, and return the error after checking that nothing was written."""
    workspace = empty_workspace(tmp_path / "project")
    before = files_of(tmp_path / "project")
    folder = write_world(tmp_path / "world", bad.layout)
    bad.spoil(folder)
    with pytest.raises(XCError) as caught:
        place(workspace, folder, dataset, IngestConfig(**bad.settings), replace=False)
    assert files_of(workspace.root) == before
    assert not workspace.data.exists()
    assert [path.name for path in workspace.state.glob("*") if path.name != "lock"] == []
    return caught.value


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: f"{bad.layout}: {bad.name}")
def test_bad_input_is_refused_with_its_place_and_nothing_is_written(tmp_path: Path, bad: Case) -> None:
    error = refusal(tmp_path, bad)
    assert type(error) is bad.error, error
    message = str(error)
    missing = [fragment for fragment in bad.fragments if fragment not in message]
    assert not missing, f"{missing} not in:\n{message}"
    assert error.expected and error.do
    assert "\n" not in error.found and str(tmp_path / "project") not in message


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_dataset_name_is_refused(tmp_path: Path, name: str) -> None:
    error = refusal(tmp_path, case("name", "xc-json", lambda folder: None), name)
    assert isinstance(error, UsageError) and repr(name) in str(error) and "choose another name" in error.do


def test_an_unknown_kind_to_allow_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, case("allow", "xc-json", lambda folder: None, settings={"allow": ("emtpy-text",)}))
    assert isinstance(error, ConfigError) and "(nearest: 'empty-text')" in str(error)


def test_a_file_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "tst.json")
    error = refusal(tmp_path, case("permission", "xc-json", lambda folder: None))
    assert isinstance(error, DataError) and "tst.json: found no permission to read it" in str(error)
