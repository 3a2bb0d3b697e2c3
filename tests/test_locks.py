"""File locks between processes: refused with the owner's number, waited for, and released however a process ends."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.artefacts import started
from xc_core import locks
from xc_core.errors import BusyError, MissingError, StorageError
from xc_core.locks import locked

HOLDER = """
    import sys, time
    from pathlib import Path
    from xc_core.locks import locked

    with locked(Path(sys.argv[1]), "the thing"):
        print("ready", flush=True)
        time.sleep(60)
"""


def test_a_lock_is_refused_to_a_second_process_and_released_by_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "x"
    with started(HOLDER, path) as holder:
        with pytest.raises(BusyError, match=f"the thing, which process {holder.pid} is running\n") as caught:
            locked(path, "the thing").__enter__()
        assert caught.value.exit_code == 75
    with locked(path, "the thing"), pytest.raises(BusyError, match=f"process {os.getpid()} is running\n"):
        locked(path, "the thing").__enter__()


def test_a_lock_can_be_waited_for(tmp_path: Path) -> None:
    code = HOLDER.replace("time.sleep(60)", "time.sleep(0.3)")
    with started(code, tmp_path / "x") as holder, locked(tmp_path / "x", "the thing", patience=30):
        assert holder.wait() == 0
    with started(HOLDER, tmp_path / "x"):
        before = time.monotonic()
        with pytest.raises(BusyError):
            locked(tmp_path / "x", "the thing", patience=0.2).__enter__()
        assert time.monotonic() - before >= 0.2


def test_a_lock_whose_folder_moves_while_it_is_waited_for_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's lock was taken at the old place of a project that was moved, and its database made there."""
    old, new = tmp_path / "old", tmp_path / "new"
    lock = old / ".xc" / "lock" / "x"
    with started(HOLDER, lock) as holder:

        def moved(_: float) -> None:
            old.rename(new)
            holder.kill()
            holder.wait()

        monkeypatch.setattr(time, "sleep", moved)
        with pytest.raises(MissingError, match="run the same command again where the project is now"):
            locked(lock, "the thing", patience=30).__enter__()
    assert not old.exists()
    with locked(new / ".xc" / "lock" / "x", "the thing"):
        pass


def test_a_lock_that_is_replaced_while_it_is_waited_for_is_that_of_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes had the lock, one of them that of the deleted file."""
    lock = tmp_path / "x"
    with started(HOLDER, lock) as first, started(HOLDER, tmp_path / "other") as second:

        def replaced(_: float) -> None:
            (tmp_path / "other").replace(lock)
            first.kill()
            first.wait()
            monkeypatch.undo()

        monkeypatch.setattr(time, "sleep", replaced)
        with pytest.raises(BusyError, match=f"process {second.pid} is running"):
            locked(lock, "the thing", patience=1).__enter__()


def test_a_long_wait_for_a_lock_names_who_has_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registration waits for another one up to ten minutes, and said nothing meanwhile."""
    lines: list[str] = []
    monkeypatch.setattr(locks, "report", lines.append)
    monkeypatch.setattr(locks, "QUIET_SECONDS", 0.2)
    with started(HOLDER, tmp_path / "x") as holder:
        for patience in (0.0, 0.05, 0.6):
            with pytest.raises(BusyError):
                locked(tmp_path / "x", "the thing", patience=patience).__enter__()
        assert lines == [f"waiting for the thing, which process {holder.pid} is running"]


def test_a_lock_is_released_when_the_block_raises(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "x", "the thing"):
        raise ZeroDivisionError
    with locked(tmp_path / "x", "the thing"):
        pass


def test_the_lock_file_names_its_present_owner_only(tmp_path: Path) -> None:
    """The number of an earlier owner, longer or shorter, does not remain."""
    (tmp_path / "x").write_text("123456789012\n")
    with locked(tmp_path / "x", "the thing"):
        assert (tmp_path / "x").read_text() == f"{os.getpid()}\n"


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that does not say who has a lock."""
    monkeypatch.setattr(locks, "lockers", lambda *_: [])


@pytest.mark.usefixtures("unlisted")
def test_a_lock_file_without_a_number_is_refused_too(tmp_path: Path) -> None:
    with locked(tmp_path / "x", "the thing"):
        (tmp_path / "x").write_text("")
        with pytest.raises(BusyError, match="process unknown is running"):
            locked(tmp_path / "x", "the thing").__enter__()


@pytest.mark.parametrize(("folder", "file"), [(0o777, 0o666), (0o775, 0o664), (0o755, 0o644), (0o700, 0o644)])
def test_everybody_who_may_write_into_the_folder_of_a_lock_may_lock_it(tmp_path: Path, folder: int, file: int) -> None:
    """The second user of a project could not train, although all of its folders were shared."""
    tmp_path.chmod(folder)
    before = os.umask(0o022)
    try:
        with locked(tmp_path / "x", "the thing"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == file


@pytest.mark.usefixtures("unlisted")
def test_a_full_disk_has_locks_without_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise ``xc delete``, which frees space, would be refused for want of a block."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with locked(tmp_path / "x", "the thing"), pytest.raises(BusyError, match="process unknown is running"):
        locked(tmp_path / "x", "the thing").__enter__()


def test_a_disk_without_locks_is_not_called_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StorageError, match=r"/x: found a disk that gives no file locks \(No locks available\)"):
        locked(tmp_path / "x", "the thing", patience=30).__enter__()


def test_locks_of_other_paths_do_not_interfere(tmp_path: Path) -> None:
    with locked(tmp_path / "x", "x"), locked(tmp_path / "y", "y"):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_a_shared_lock_has_several_owners_and_excludes_one_of_the_other_kind(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with locked(path, "a reader", shared=True), locked(path, "another", shared=True), pytest.raises(BusyError):
        locked(path, "the thing").__enter__()
    with locked(path, "the thing"), pytest.raises(BusyError):
        locked(path, "a reader", shared=True).__enter__()


@pytest.mark.usefixtures("unlisted")
def test_the_owners_of_a_shared_lock_are_named_as_long_as_they_run(tmp_path: Path) -> None:
    path, other = tmp_path / "x", subprocess.Popen(["sleep", "60"])
    path.write_text(f"{other.pid}\n")
    try:
        with locked(path, "a reader", shared=True):
            with pytest.raises(BusyError, match=f"which processes {other.pid} and {os.getpid()} are running"):
                locked(path, "the thing").__enter__()
            other.kill()
            other.wait()
            with pytest.raises(BusyError, match=f"process {os.getpid()} is running"):
                locked(path, "the thing").__enter__()
    finally:
        other.kill()
        other.wait()


@pytest.mark.usefixtures("unlisted")
def test_a_process_of_another_user_is_an_owner_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    (tmp_path / "x").write_text("1234567\n")
    monkeypatch.setattr(os, "kill", refuse)
    with (
        locked(tmp_path / "x", "a reader", shared=True),
        pytest.raises(BusyError, match=f"processes 1234567 and {os.getpid()} are running"),
    ):
        locked(tmp_path / "x", "the thing").__enter__()


def test_who_may_only_read_the_file_of_a_lock_locks_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a command that only shows something, in a project that belongs to somebody else."""
    path = tmp_path / "x"
    path.write_text(f"{os.getppid()}\n")
    path.chmod(0o444)
    with started(f"    from tests.unprivileged import bound; bound(){HOLDER}", path) as holder:
        named = f"process {holder.pid} is" if Path("/proc/locks").exists() else ""
        with pytest.raises(BusyError, match=named):  # not the one that had the lock before, whose number is there
            locked(path, "the thing").__enter__()
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.EBADF, "Bad file descriptor")))  # as NFS says
    monkeypatch.setattr(Path, "open", Mock(side_effect=[path.open(), PermissionError(errno.EACCES, "Denied", "x")]))
    with pytest.raises(StorageError, match="no permission"):
        locked(path, "the thing").__enter__()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs a system that lists locks")
def test_the_owners_of_a_lock_are_not_those_of_another_kind_or_file(tmp_path: Path) -> None:
    """sqlite's locks are of the kind POSIX."""
    with locked(tmp_path / "x", "the thing"), (tmp_path / "y").open("w") as stream:
        fcntl.lockf(stream, fcntl.LOCK_EX)
        found = {(name, kind): locks.lockers(tmp_path / name, kind) for name in "xy" for kind in ("FLOCK", "POSIX")}
    own = [os.getpid()]
    assert found == {("x", "FLOCK"): own, ("x", "POSIX"): [], ("y", "FLOCK"): [], ("y", "POSIX"): own}


def test_a_lock_on_a_read_only_disk_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_text("")
    refusal = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr(Path, "open", Mock(side_effect=[refusal, path.open()]))
    with locked(path, "the thing"), pytest.raises(BlockingIOError), open(path) as other:  # noqa: PTH123
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
