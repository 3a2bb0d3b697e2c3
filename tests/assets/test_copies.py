"""Copies of models from a registry elsewhere: as few as are used, and none is left when the process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from assets.release import copies, registry
from assets.release.registry import Released
from tests.assets.conftest import Store
from xc_core.artifacts import verify


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files of all versions lie on another machine."""
    monkeypatch.setattr(copies, "_is_here", lambda uri: False)


def test_files_on_this_machine_are_read_where_they_are(store: Store, released: Released) -> None:
    version = store.client.get_model_version("xc-toy", str(released.version))
    folder = registry.download(version)
    assert folder.is_relative_to(store.artifacts.removeprefix("file://"))
    assert copies.destination(f"models:/xc-toy/{released.version}", "xc-toy", "1") is None


def test_a_version_from_elsewhere_is_copied_once_however_often_it_is_asked_for(
    elsewhere: None, store: Store, released: Released
) -> None:
    version = store.client.get_model_version("xc-toy", str(released.version))
    first = registry.download(version)
    digest = verify(first, kind="model").digest()
    (first / "spoilt").touch()
    again = registry.download(version)
    assert verify(again, kind="model").digest() == digest
    assert again == first and not (again / "spoilt").exists()
    assert not again.is_relative_to(store.artifacts.removeprefix("file://"))


def test_the_last_three_versions_of_a_model_are_kept(elsewhere: None) -> None:
    folders = []
    for number in range(6):
        folders.append(Path(str(copies.destination("", "xc-other", str(number)))))
        (folders[-1] / "file").touch()
        assert [folder.is_dir() for folder in folders[:-3]] == [False] * (len(folders) - 3)
        assert all(folder.is_dir() for folder in folders[-3:])
    assert Path(str(copies.destination("", "xc-third", "1"))).is_dir()
    assert folders[-1].is_dir(), "each model has copies of its own"


def test_copies_go_with_their_process() -> None:
    code = (
        "from assets.release import copies; copies._is_here = lambda _: False; print(copies.destination('', 'm', '1'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() and not Path(done.stdout.strip()).parent.parent.exists()
