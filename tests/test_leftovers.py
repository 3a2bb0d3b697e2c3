"""Leftovers of killed writers are deleted at the next start of any command; what a living writer builds never is."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from xc_core import artifacts, leftovers, linked
from xc_core.chain import Workspace, changelog
from xc_core.leftovers import abandoned, claimed, process_of, sweep, temporary_folder, work

BUILDER = """
import sys, pathlib
from xc_core import artifacts
with artifacts.building(pathlib.Path(sys.argv[1]), kind="thing") as build:
    print(build.path.name, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that builds an artefact for as long as nobody stops it, and the folder in which it builds."""
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "data" / "toy" / "ngame" / "thing")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, tmp_path / "data" / "toy" / "ngame" / process.stdout.readline().strip()
        process.kill()


def test_the_start_of_a_command_deletes_what_a_killed_one_left_and_only_that(
    builder: tuple[subprocess.Popen[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, folder = builder
    (tmp_path / "params.yaml").touch()
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    Workspace.find()
    assert folder.is_dir(), "its builder lives"
    process.kill()
    process.wait()
    assert folder.is_dir(), "nobody cleans up after kill -9"
    Workspace.find()
    assert not folder.exists()


def test_a_lock_protects_where_process_ids_mean_nothing(
    builder: tuple[subprocess.Popen[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another container on the same disk the builder's process cannot be seen."""

    def unseen(pid: int) -> None:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", unseen)
    process, folder = builder
    assert not abandoned(folder, process.pid)
    assert sweep([folder.parent]) == []
    process.kill()
    process.wait()
    assert sweep([folder.parent]) == [folder]


def test_a_living_process_protects_on_a_disk_without_locks(
    builder: tuple[subprocess.Popen[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(9, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    process, folder = builder
    assert not abandoned(folder, process.pid)
    process.kill()
    process.wait()
    assert abandoned(folder, process.pid)


def test_a_process_that_is_younger_than_the_folder_is_another_one(tmp_path: Path) -> None:
    folder = tmp_path / f".thing.{os.getppid()}.tmp"
    folder.mkdir()
    assert not abandoned(folder, os.getppid()), "it may be about to lock it"
    os.utime(folder, (1, 1))
    assert abandoned(folder, os.getppid())


def test_a_process_that_has_ended_and_that_nobody_has_waited_for_does_not_run() -> None:
    with subprocess.Popen(["true"]) as ended:
        while psutil.Process(ended.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert process_of(ended.pid, time.time() + 1) is None
    assert process_of(os.getpid(), time.time() + 1) == psutil.Process()
    assert process_of(os.getpid(), 1) is None, "a younger one"


def test_two_writers_with_the_same_process_id_do_not_meet(tmp_path: Path) -> None:
    """Two containers on one disk may have it, and one process may build in two threads."""
    folder = tmp_path / "thing"
    with artifacts.building(folder, kind="x") as one:
        with artifacts.building(folder, kind="x") as other:
            (other.path / "text").write_text("second")
        (one.path / "text").write_text("first")
    assert (folder / "text").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_names_of_today_and_of_before_are_swept(tmp_path: Path) -> None:
    places = [
        tmp_path / ".thing.9999999-0a1b2c3d.tmp",
        Path(re.sub(r"\.\d+-", ".9999999-", str(work(tmp_path / "thing")))),
    ]
    for place in places:
        place.mkdir()
    assert sorted(sweep([tmp_path])) == sorted(places)


def test_a_copy_that_was_killed_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with artifacts.building(tmp_path / "thing", kind="x") as build:
        (build.path / "text").write_text("content")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(artifacts, "install", killed)
    monkeypatch.setattr(linked, "drop", lambda path: None)
    with pytest.raises(KeyboardInterrupt):
        linked.link(tmp_path / "thing", tmp_path / "copy")
    (left,) = (path for path in tmp_path.iterdir() if path.name.startswith("."))
    os.utime(left, (1, 1))
    assert sweep([tmp_path]) == [left]


def test_the_temporary_folder_of_a_killed_command_is_deleted_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of ``xc plan`` in a project that may only be read, or of ``xc lineage``: a copy of the texts stayed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, other = (tmp_path / f".{name}.9999999-0a1b2c3d.tmp" for name in ("xc", "other"))
    for folder in (left, other):
        folder.mkdir()
    with temporary_folder() as one, temporary_folder():
        assert one.is_dir() and not left.exists(), "the command of one lives"
        assert stat.S_IMODE(one.stat().st_mode) == 0o700, "other users may not read it"
    assert list(tmp_path.iterdir()) == [other]


def test_a_pipe_among_the_temporary_files_keeps_no_command_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user may put one there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    os.mkfifo(tmp_path / ".xc.9999999-0a1b2c3d.tmp")
    done = threading.Thread(target=temporary_folder().__enter__, daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    for name in (
        "thing.77.tmp",
        ".thing.tmp",
        ".thing.x.tmp",
        ".thing.9999999-0a1b2c3d.tmp.kept",
        ".notes.2026.tmp",
        ".notes.2026-11.tmp",
    ):
        (tmp_path / name).touch()
    assert sweep([tmp_path, tmp_path / "absent"]) == []


def test_every_place_in_which_a_command_writes_is_swept(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    (tmp_path / "params.yaml").touch()
    places = (
        "", "data", "data/toy", "data/toy/settings", "data/toy/ngame", "data/toy/ngame/settings",
        "data/toy/changes", ".xc", ".xc/cost", ".xc/run", ".xc/run/encoder@toy_ngame", ".xc/source", ".xc/versions/toy",
        ".xc/reports/toy", ".xc/drift/toy", ".xc/models/toy", ".xc/inbox/toy", ".xc/tune", ".xc/tune/toy/study",
        ".xc/tune/toy/study/best/encoder",
    )  # fmt: skip
    for place in places:
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        left = tmp_path / place / ".thing.9999999-0a1b2c3d.tmp"
        left.touch()
        os.utime(left, (1, 1))
    workspace.swept()
    assert list(tmp_path.rglob("*.tmp")) == []


def test_a_kept_version_whose_copy_was_killed_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds texts, which nobody would find there."""
    workspace = Workspace(tmp_path)
    (tmp_path / "params.yaml").touch()
    workspace.raw("toy").mkdir(parents=True)
    (workspace.raw("toy") / "trn.json").write_text("a text")
    monkeypatch.setattr(changelog, "drop", lambda path: None)
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        changelog.keep(workspace, "toy", 1)
    (left,) = (tmp_path / ".xc" / "versions" / "toy").iterdir()
    os.utime(left, (1, 1))
    workspace.swept()
    assert not left.exists()


def test_a_claim_ends_with_its_block(tmp_path: Path) -> None:
    file = tmp_path / ".thing.9999999-0a1b2c3d.tmp"
    file.touch()
    with claimed(file):
        assert not abandoned(file, os.getpid())
    assert abandoned(file, os.getpid())


@pytest.mark.parametrize("shared", [True, False])
def test_a_claim_waits_for_one_that_asks(tmp_path: Path, shared: bool) -> None:
    """Whoever asks holds the lock for a moment; what is read or built without one may be deleted meanwhile."""
    file = tmp_path / ".thing.9999999-0a1b2c3d.tmp"
    file.touch()
    asking = os.open(file, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_EX)
    ends = threading.Timer(0.1, os.close, [asking])
    ends.start()
    with claimed(file, shared=shared):
        leftovers._BUILDING.discard(file)  # as another process sees it
        ends.join()
        assert not abandoned(file, os.getpid())


def test_a_lock_that_is_held_on_keeps_no_reader_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_CLAIM_SECONDS", 0.05)
    file = tmp_path / ".thing.9999999-0a1b2c3d.tmp"
    file.touch()
    with claimed(file), claimed(file, shared=True):
        assert file in leftovers._BUILDING
