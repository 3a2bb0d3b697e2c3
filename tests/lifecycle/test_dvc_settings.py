"""DVC's settings: of files that name the same setting the last one counts, as for dvc itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from xc_core.lifecycle.dvc_settings import DvcSettings


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose four files of settings all name a folder for the cache."""
    root = tmp_path / "project"
    files = {"machine/config": "machine", "user/config": "user", "project/.dvc/config": "shared"}
    for name, cache in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"[cache]\n    dir = {tmp_path / cache}\n")
    (root / ".dvc" / "config.local").write_text(
        "[cache]\n    dir = ../near\n['remote \"far\"']\n    url = s3://b/x=y\n"
    )
    monkeypatch.setenv("DVC_SYSTEM_CONFIG_DIR", str(tmp_path / "machine"))
    monkeypatch.setenv("DVC_GLOBAL_CONFIG_DIR", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    return root


def test_the_last_file_that_names_a_setting_counts(root: Path) -> None:
    settings = DvcSettings.of(root)
    assert settings.cache.resolve() == root / "near"
    assert settings.remotes == {"far": "s3://b/x=y"}
    assert [folder.resolve() for folder in settings.folders] == [root / "near", root / "near"]
    (root / ".dvc" / "config.local").unlink()
    assert DvcSettings.of(root).cache == root.parent / "shared"
    (root / ".dvc" / "config").unlink()
    assert DvcSettings.of(root).cache == root.parent / "user"


def test_a_project_without_dvc_has_no_settings(root: Path) -> None:
    (root / ".dvc").rename(root / "elsewhere")
    settings = DvcSettings.of(root)
    assert (settings.values, settings.remotes, settings.folders) == ({}, {}, [root / ".dvc" / "cache"])
