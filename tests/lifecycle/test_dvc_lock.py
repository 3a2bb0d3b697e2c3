"""``dvc.lock`` without the stages of a dataset, beside commands of dvc that write it too."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from dvc.lock import make_lock

from xc_core.artifacts import write_file
from xc_core.chain import Workspace
from xc_core.errors import BusyError, CorruptError
from xc_core.lifecycle import dvc_lock

BOTH = "schema: '2.0'\nstages:\n  corpus@toy:\n    cmd: x\n  corpus@other:\n    cmd: old\n"
OTHER = BOTH.replace("  corpus@toy:\n    cmd: x\n", "")


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dvc.lock with stages of two datasets, in a project with DVC; no settings of the user."""
    for name in ("GLOBAL", "SYSTEM"):
        monkeypatch.setenv(f"DVC_{name}_CONFIG_DIR", str(tmp_path / name))
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    (tmp_path / "dvc.lock").write_text(BOTH)
    return tmp_path / "dvc.lock"


def written_meanwhile(monkeypatch: pytest.MonkeyPatch, lock: Path, times: int, text: str = BOTH) -> None:
    """Let a program without the lock write the file while it is being read."""
    real, left = dvc_lock.read, [text.replace("old", f"new {number}") for number in range(times, 0, -1)]

    def read(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        if left:
            lock.write_text(left.pop())
        return found

    monkeypatch.setattr(dvc_lock, "read", read)


def test_the_file_is_left_alone_while_dvc_runs(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dvc_lock, "PATIENCE", 0.2)
    with make_lock(str(lock.parent / ".dvc" / "tmp" / "lock")), pytest.raises(BusyError, match="a command of dvc"):
        dvc_lock.forget(Workspace(lock.parent), "toy")
    assert lock.read_text() == BOTH


def test_what_dvc_writes_until_it_ends_stays(lock: Path) -> None:
    held = make_lock(str(lock.parent / ".dvc" / "tmp" / "lock"))
    held.lock()

    def commit() -> None:
        time.sleep(0.3)
        lock.write_text(BOTH.replace("old", "new"))
        held.unlock()

    dvc = threading.Thread(target=commit)
    dvc.start()
    assert dvc_lock.forget(Workspace(lock.parent), "toy") == 1
    dvc.join()
    assert lock.read_text() == OTHER.replace("old", "new")


def test_dvc_waits_while_the_file_is_written(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC's own lock, so that this test fails if a version of DVC locks in another way."""
    tried: list[bool] = []
    real = write_file

    def write(*arguments: object) -> None:
        with pytest.raises(Exception, match="Unable to acquire lock"):
            make_lock(str(lock.parent / ".dvc" / "tmp" / "lock"))._do_lock()
        tried.append(True)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(dvc_lock, "write_file", write)
    assert dvc_lock.forget(Workspace(lock.parent), "toy") == 1
    assert tried == [True]
    with make_lock(str(lock.parent / ".dvc" / "tmp" / "lock")):
        pass


@pytest.mark.parametrize("place", [".dvc/config", ".dvc/config.local", "GLOBAL/config", "SYSTEM/config"])
def test_a_project_that_locks_with_links_has_no_file_lock(lock: Path, place: str) -> None:
    """A file of ours in the place of DVC's link would stop DVC for ever."""
    (lock.parent / place).parent.mkdir(exist_ok=True)
    (lock.parent / place).write_text("[core]\n    hardlink_lock = true\n")
    assert dvc_lock.forget(Workspace(lock.parent), "toy") == 1
    assert not (lock.parent / ".dvc" / "tmp" / "lock").exists()


def test_without_dvc_no_folder_of_it_is_made(lock: Path) -> None:
    (lock.parent / ".dvc" / "tmp").rmdir()
    (lock.parent / ".dvc").rmdir()
    assert dvc_lock.forget(Workspace(lock.parent), "toy") == 1
    assert not (lock.parent / ".dvc").exists()


def test_a_record_that_a_program_writes_without_the_lock_stays(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_meanwhile(monkeypatch, lock, 1)
    assert dvc_lock.forget(Workspace(lock.parent), "toy") == 1
    assert lock.read_text() == OTHER.replace("old", "new 1")


def test_stages_that_come_back_are_removed_again(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = write_file, [BOTH]

    def write(path: Path, content: bytes) -> None:
        real(path, content)
        if left:
            path.write_text(left.pop())

    monkeypatch.setattr(dvc_lock, "write_file", write)
    assert dvc_lock.forget(Workspace(lock.parent), "toy") == 1
    assert lock.read_text() == OTHER


def test_a_file_that_changes_all_the_time_is_given_up(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_meanwhile(monkeypatch, lock, 100)
    with pytest.raises(BusyError, match=r"dvc\.lock changed by another program, 5 times"):
        dvc_lock.forget(Workspace(lock.parent), "toy")
    assert "corpus@other" in lock.read_text()


@pytest.mark.parametrize("content", [b"", b"\n", b"# none\n", b"schema: '2.0'\n", b"schema: '2.0'\nstages:\n"])
def test_a_file_without_stages_stays_as_it_is(lock: Path, content: bytes) -> None:
    lock.write_bytes(content)
    assert dvc_lock.forget(Workspace(lock.parent), "toy") == 0
    assert lock.read_bytes() == content


@pytest.mark.parametrize("content", [b"\xff\xfe", b"stages: {a: '\xe9'}\n", b"a: 2001-99-99\n", b"- 1\n", b"a: ["])
def test_a_file_that_dvc_did_not_write_is_refused(lock: Path, content: bytes) -> None:
    lock.write_bytes(content)
    with pytest.raises(CorruptError, match=r"an unreadable dvc\.lock"):
        dvc_lock.forget(Workspace(lock.parent), "toy")
    assert lock.read_bytes() == content
