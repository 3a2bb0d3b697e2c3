"""Copies of artefacts by hard links."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from xc_core import artifacts, linked, manifests
from xc_core.leftovers import sweep
from xc_core.linked import link


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with artifacts.building(tmp_path / "source", kind="thing") as build:
        (build.path / "a.txt").write_text("a")
    return tmp_path / "source"


def test_a_link_shares_the_files(source: Path, tmp_path: Path) -> None:
    """Neither the folder above the copy is there before, nor the one above that."""
    copy = tmp_path / "more" / "folders" / "copy"
    assert link(source, copy)
    assert (copy / "a.txt").samefile(source / "a.txt")
    assert artifacts.verify(copy, kind="thing") == manifests.read_manifest(source)


def test_files_on_another_disk_are_copied(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert link(source, tmp_path / "copy")
    assert not (tmp_path / "copy" / "a.txt").samefile(source / "a.txt")
    assert artifacts.verify(tmp_path / "copy") == manifests.read_manifest(source)


def test_a_damaged_source_is_not_linked(source: Path, tmp_path: Path) -> None:
    (source / "a.txt").write_text("longer")
    assert not link(source, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_source_that_disappears_is_not_linked(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command may delete it, before or while it is copied; the disk is not to blame."""
    assert not link(tmp_path / "absent", tmp_path / "copy")

    def deleted(*_: str) -> None:
        shutil.rmtree(source)
        raise FileNotFoundError(source)

    with monkeypatch.context() as patch:
        patch.setattr(linked, "link_file", deleted)
        assert not link(source, tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_is_replaced_while_it_is_copied_is_copied_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the old one stays in the copy, and an earlier copy, which shares its files, does not change."""
    assert link(source, tmp_path / "earlier")
    link_file, replaced = linked.link_file, False

    def replacing(file: str, target: str) -> None:
        nonlocal replaced
        link_file(file, target)
        if not replaced and Path(file).name == "a.txt":
            replaced = True
            with artifacts.building(source, kind="thing") as build:
                (build.path / "a.txt").write_text("b")

    monkeypatch.setattr(linked, "link_file", replacing)
    assert link(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "a.txt").read_text() == "b"
    assert (tmp_path / "earlier" / "a.txt").read_text() == "a"


def test_the_sweep_of_another_thread_leaves_a_link_that_is_being_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, swept = artifacts.check_sizes, []

    def sweeping(folder: Path, manifest: manifests.Manifest) -> None:
        swept.extend(sweep([tmp_path]))
        check(folder, manifest)

    monkeypatch.setattr(artifacts, "check_sizes", sweeping)
    assert link(source, tmp_path / "copy")
    assert swept == []
