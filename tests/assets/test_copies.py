"""Copies of models from a registry elsewhere: as few as are used, and none is left when the process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from assets.release import champions, copies, health, registry, versions
from assets.release.registry import Released
from assets.release.repair import repaired
from tests.artefacts import started
from tests.assets.conftest import Store, failing
from xc_core.artifacts import verify
from xc_core.chain import Workspace
from xc_core.errors import StorageError
from xc_core.infer.champion import Champion


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files of all versions lie on another machine."""
    monkeypatch.setattr(copies, "is_here", lambda uri: False)


def test_files_on_this_machine_are_read_where_they_are(store: Store, released: Released) -> None:
    version = store.client.get_model_version("xc-toy", str(released.version))
    folder = versions.download(version)
    assert folder.is_relative_to(store.artifacts.removeprefix("file://"))
    assert copies.destination(f"models:/xc-toy/{released.version}", "toy", "1") is None


def test_reading_files_on_this_machine_writes_nothing(store: Store, released: Released) -> None:
    """Another user, or a disk that is read-only, was told that the files are gone, and to register them again."""
    version = store.client.get_model_version("xc-toy", str(released.version))
    home = versions.download(version).parents[1]
    (home / "registered_model_meta").unlink(missing_ok=True)
    before = {path: path.stat().st_mtime_ns for path in (home, *home.rglob("*"))}
    assert versions.is_whole(version)
    assert before == {path: path.stat().st_mtime_ns for path in (home, *home.rglob("*"))}


def test_a_version_from_elsewhere_is_copied_into_the_project(
    elsewhere: None, store: Store, released: Released, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    version = store.client.get_model_version("xc-toy", str(released.version))
    first, again = versions.download(version), versions.download(version)
    assert first.is_relative_to(tmp_path / ".xc" / "models" / "toy")
    assert first != again, "another process may be reading the first one"
    assert verify(first, kind="model").digest() == verify(again, kind="model").digest()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(28, "No space left on device"), StorageError),
        (MlflowException("failures:\nOSError: [Errno 28] No space left on device"), StorageError),
        (MlflowException("no answer"), MlflowException),
    ],
)
def test_a_copy_that_ends_with_an_error_is_deleted_and_a_full_disk_is_called_so(
    error: Exception,
    expected: type[Exception],
    elsewhere: None,
    store: Store,
    released: Released,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk was called a server that does not answer, or files that are gone."""
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    monkeypatch.setattr(versions, "files_of", failing(error))
    with pytest.raises(expected):
        versions.download(store.client.get_model_version("xc-toy", str(released.version)))
    assert not list((tmp_path / copies.HOME / "toy").iterdir())


def test_a_version_is_copied_once_per_question(
    elsewhere: None, store: Store, released: Released, own: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its files belong to the project was asked of another copy of them."""
    copied: list[int] = []
    monkeypatch.setattr(
        versions, "destination", lambda *asked: copied.append(int(asked[-1])) or copies.destination(*asked)
    )
    assert "ok" in {finding.level for finding in health.check() if "champion of toy" in finding.text}
    assert "is whole" in repaired(own, store.client, "toy")
    digest = verify(own.folder("model", "toy", "ngame"), kind="model").digest()
    assert registry.registered(store.client, "xc-toy", digest, store.artifacts) is not None
    assert copied == [released.version] * 3


def test_a_place_for_copies_that_cannot_be_made_is_a_storage_error(
    elsewhere: None, store: Store, released: Released, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    (tmp_path / ".xc").write_text("a file in the place of the folder")
    with pytest.raises(StorageError, match="a file where a folder should be"):
        versions.download(store.client.get_model_version("xc-toy", str(released.version)))


def test_a_champion_that_cannot_be_copied_after_its_promotion_is_one(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = StorageError("a full disk", expected="space", do="free some")
    monkeypatch.setattr(champions, "champion", lambda *_: Champion("2", "aa", failing(full)))
    champions.write_pointer(workspace, "toy")
    assert not champions._pointer_file(workspace, "toy").exists()


def test_the_last_three_copies_of_a_model_are_kept(
    elsewhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    folders: list[Path] = []
    for number, version in enumerate((9, 10, 2, 2, 11, 3)):
        folders.append(Path(str(copies.destination("", "other", str(version)))))
        os.utime(folders[-1], (number, number))
        assert [folder.is_dir() for folder in folders[:-3]] == [False] * (len(folders) - 3)
        assert all(folder.is_dir() for folder in folders[-3:])
    assert Path(str(copies.destination("", "third", "1"))).is_dir()
    assert folders[-1].is_dir(), "each model has copies of its own"


HOLDER = """
    import sys, time
    from assets.release import copies

    copies.is_here = lambda uri: False
    copies.destination("", "other", "1")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_copy_that_another_process_reads_is_not_deleted(
    elsewhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four predictions at once, or four servers on one disk, would delete each other's files."""
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    home = tmp_path / ".xc" / "models" / "other"
    with started(HOLDER):
        (first,) = home.iterdir()
        os.utime(first, (1, 1))
        for _ in range(4):
            copies.destination("", "other", "1")
        assert first.is_dir()
        assert len(list(home.iterdir())) == 4
    copies.destination("", "other", "1")
    assert not first.exists()
    assert len(list(home.iterdir())) == 3


DOWNLOADER = """
    from assets.release import copies

    copies.is_here = lambda uri: False
    for _ in range(4):
        copies.destination("", "other", "1")
    print("ready", flush=True)
"""


def test_a_copy_of_an_ended_process_that_this_one_reads_again_is_not_deleted(
    elsewhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    home = tmp_path / ".xc" / "models" / "other"
    with started(HOLDER):
        (copy,) = home.iterdir()
        (copy / "artifacts" / "model").mkdir(parents=True)
        copies.hold(copy / "artifacts" / "model")  # while the process that downloaded it holds it too
    os.utime(copy, (1, 1))
    with started(DOWNLOADER):
        assert copy.is_dir()
    copies._HELD.pop(copy).close()
    with started(DOWNLOADER):
        assert not copy.exists(), "nobody reads it any more"


def test_a_copy_that_is_read_again_is_the_youngest(
    elsewhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    first, second, third = (Path(str(copies.destination("", "other", str(number)))) for number in range(3))
    for folder in (first, second, third):
        copies._HELD.pop(folder).close()
        os.utime(folder, (1, 1))
    copies.hold(first)
    copies.destination("", "other", "4")
    copies.destination("", "other", "5")
    assert [folder.is_dir() for folder in (first, second, third)] == [True, False, False]


def test_a_copy_of_another_user_is_locked_though_its_time_cannot_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    copy = tmp_path / ".xc" / "models" / "toy" / "1-theirs"
    copy.mkdir(parents=True)
    monkeypatch.setattr(os, "utime", failing(PermissionError()))
    copies.hold(copy)
    assert copy in copies._HELD
    copies._HELD.pop(copy).close()


def test_files_of_no_copy_need_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    before = dict(copies._HELD)
    for path in (tmp_path / "data", tmp_path / ".xc" / "models" / "toy" / "gone", Path("/elsewhere")):
        copies.hold(path)
    assert before == copies._HELD


def test_outside_a_project_copies_go_with_their_process(tmp_path: Path) -> None:
    code = (
        "from assets.release import copies; copies.is_here = lambda _: False; print(copies.destination('', 'm', '1'))"
    )
    own = {**os.environ, "PYTHONPATH": str(Path(copies.__file__).parents[2])}
    own.pop("XC_ROOT", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=own, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() and not Path(done.stdout.strip()).parent.parent.exists()


def test_a_version_without_a_digest_has_nothing_to_compare(tmp_path: Path) -> None:
    """It was registered by hand."""
    versions.check_files(SimpleNamespace(name="xc-toy", version="1", tags={}), tmp_path, "0" * 64)
