"""Copies of artefacts by hard links."""

from __future__ import annotations

from pathlib import Path

import pytest

from xc_core import artifacts
from xc_core.leftovers import sweep
from xc_core.linked import link


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with artifacts.building(tmp_path / "source", kind="thing") as build:
        (build.path / "a.txt").write_text("a")
    return tmp_path / "source"


def test_a_link_shares_the_files(source: Path, tmp_path: Path) -> None:
    assert link(source, tmp_path / "more" / "copy")
    copy = tmp_path / "more" / "copy"
    assert (copy / "a.txt").samefile(source / "a.txt")
    assert artifacts.verify(copy, kind="thing") == artifacts.read_manifest(source)


def test_a_damaged_source_is_not_linked(source: Path, tmp_path: Path) -> None:
    (source / "a.txt").write_text("longer")
    assert not link(source, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_the_sweep_of_another_thread_leaves_a_link_that_is_being_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, swept = artifacts.check_sizes, []

    def sweeping(folder: Path, manifest: artifacts.Manifest) -> None:
        swept.extend(sweep([tmp_path]))
        check(folder, manifest)

    monkeypatch.setattr(artifacts, "check_sizes", sweeping)
    assert link(source, tmp_path / "copy")
    assert swept == []
