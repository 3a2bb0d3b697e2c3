"""What the system or a library reports becomes a storage error or a shortage, or stays what it is."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from xc_core import artifacts, causes
from xc_core.causes import explanation, owners, resolved, shortage, storage_error, storage_reason
from xc_core.errors import ConfigError, MissingError, StorageError


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        RuntimeError('called `Result::unwrap()` on an `Err` value: Os { code: 24, message: "Too many open files" }'),
        OSError(errno.ENFILE, "Too many open files in system"),
        RuntimeError("can't start new thread"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),  # of a fork
        ImportError("libopenblas.so: failed to map segment from shared object"),
        ImportError("\n\nIMPORTANT: READ THIS\n\nOriginal error was: a.so: failed to map segment from shared object\n"),
    ],
)
def test_a_limit_of_the_system_is_a_shortage_that_names_ulimit(error: Exception) -> None:
    found = shortage(error)
    assert found is not None and "ulimit" in found.do and "IMPORTANT" not in found.found


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79 GiB"),
        torch.AcceleratorError(
            "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the documentation"
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_shortage_of_a_gpu_names_what_else_may_take_its_memory(error: Exception) -> None:
    found = shortage(error)
    assert found is not None and found.found.startswith("too little memory (CUDA ")
    assert "nvidia-smi" in found.do
    assert "nvidia-smi" not in shortage(MemoryError()).do  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOMEM, "Cannot allocate memory"),  # of a fork or a memory-map
        RuntimeError("mmap failed: Cannot allocate memory (os error 12)"),  # of Rust code
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_an_allocation_that_the_system_refuses_is_a_shortage(error: Exception) -> None:
    assert "too little memory (" in str(shortage(error))


def test_a_shortage_without_a_message_is_shown_by_its_type() -> None:
    assert "too little memory (MemoryError)" in str(shortage(MemoryError()))


def test_a_folder_that_this_user_may_not_enter_is_the_innermost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask for what is in it raises an error for any other user than root."""
    closed, real = tmp_path / "closed", Path.stat

    def stat(path: Path, **how: bool) -> os.stat_result:
        if closed in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, **how)

    closed.mkdir()
    monkeypatch.setattr(Path, "stat", stat)
    assert causes._existing_part(closed / "inner" / "file") == closed
    assert str(closed) in storage_error("no permission (x)", closed / "inner" / "file").do
    assert causes._existing_part(closed) == closed


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "a full disk"),
        (OSError(errno.EFBIG, "File too large"), "a limit on the size of files"),
        (RuntimeError("Error while serializing: I/O error: File too large (os error 27)"), "a limit on the size of"),
        (OSError(errno.EROFS, "Read-only file system"), "a read-only disk"),
        (PermissionError(errno.EACCES, "Permission denied"), "no permission"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "a full disk"),
        (RuntimeError("(sqlite3.OperationalError) database or disk is full\n[SQL: ...]"), "a full disk"),
        (RuntimeError("(sqlite3.OperationalError) attempt to write a readonly database"), "no permission"),
        (RuntimeError("(sqlite3.OperationalError) disk I/O error\n[SQL: ...]"), "a failing disk"),
        (RuntimeError("(sqlite3.OperationalError) unable to open database file"), ""),
        (FileNotFoundError(errno.ENOENT, "No such file"), ""),
        (FileNotFoundError(errno.ENOENT, "No space left on device"), "a full disk"),  # words say more than a number
        (ConnectionError("refused"), ""),
        (ValueError(""), ""),
        (ConfigError("No space left on device", expected="", do=""), ""),
    ],
)
def test_the_reason_of_a_failed_write_is_distinguished_from_other_errors(
    error: Exception, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1 << 40}))
    found = storage_reason(error, tmp_path / "absent" / "too")
    assert found.startswith(reason) if reason else not found


@pytest.mark.parametrize(
    "words", ["attempt to write a readonly database", "disk I/O error", "unable to open database file"]
)
def test_a_disk_that_became_read_only_under_a_database_is_called_so(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ext4 does after an error; sqlite says one of these, by the connection and the kind of its journal."""
    asked = Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    monkeypatch.setattr("tempfile.TemporaryFile", asked)
    error = RuntimeError(f"(raised as a result of autoflush)\n(sqlite3.OperationalError) {words}\n[SQL: x]")
    for _ in range(2):
        assert storage_reason(error, tmp_path / "a.db") == f"a read-only disk ((sqlite3.OperationalError) {words})"
        asked.assert_called_with(dir=tmp_path)
        (tmp_path / "a.db").touch()


def test_a_folder_that_refuses_a_file_for_another_reason_is_no_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    assert storage_reason(RuntimeError("unable to open database file"), tmp_path / "a.db") == ""


def test_a_file_that_may_not_be_written_is_named_with_its_owner_and_mode_and_those_of_its_folder(
    tmp_path: Path,
) -> None:
    """As the second user of a project learns it of MLflow's database, which needs a journal beside it."""
    (tmp_path / "a.db").touch()
    (tmp_path / "a.db").chmod(0o640)
    tmp_path.chmod(0o750)
    owner = f"belongs to {tmp_path.owner()}:{tmp_path.group()}, mode"
    folder = f"{tmp_path} {owner} drwxr-x---"
    file = storage_error("no permission (x)", tmp_path / "a.db").do
    assert file.startswith(f"fix the permission ({tmp_path}/a.db {owner} -rw-r-----; {folder}), then")
    absent = storage_error("no permission (x)", tmp_path / "absent" / "b").do
    assert absent.startswith(f"fix the permission ({folder}; {tmp_path.parent} {owner} d")
    assert storage_error("a full disk (x)", tmp_path).do.startswith("free space or")


def test_a_user_who_does_not_own_the_file_asks_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the owner can give the permission, so the message does not advise anybody else to fix it."""
    for user, do in ((0, "fix the permission ("), (tmp_path.stat().st_uid, "fix the permission (")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert storage_error("no permission (x)", tmp_path / "mlflow.db").do.startswith(do)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    found = storage_error("no permission (x)", tmp_path / "mlflow.db").do
    assert found.startswith(f"ask the owner to let you write ({tmp_path} belongs to {tmp_path.owner()}:")


def test_an_owner_without_a_name_here_is_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, whose users are not those of the machine."""
    monkeypatch.setattr(Path, "owner", Mock(side_effect=KeyError("uid not found")))
    found = tmp_path.stat()
    owner = f"{tmp_path} belongs to {found.st_uid}:{found.st_gid}, mode d"
    assert storage_error("no permission (x)", tmp_path).do.startswith(f"fix the permission ({owner}")


def test_a_name_that_is_too_long_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    with pytest.raises(StorageError, match="a name that is too long") as refused, artifacts.writing(path):
        path.touch()
    assert refused.value.do == "use a shorter name or path, then run the same command again"


def test_at_a_limit_on_the_size_of_files_space_is_no_advice(tmp_path: Path) -> None:
    error = OSError(errno.EFBIG, "File too large")
    refused = storage_error(storage_reason(error, tmp_path), tmp_path, error)
    assert refused.do == "raise the limit (ulimit -f), then run the same command again"
    assert "free space" not in refused.expected


def test_on_a_full_disk_any_error_but_a_described_one_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    for words in ("write error", "disk I/O error"):  # sqlite says the latter of a database with a write-ahead log
        assert storage_reason(RuntimeError(words), tmp_path) == f"a full disk ({words})"
    assert storage_reason(ConfigError("x", expected="y", do="z"), tmp_path) == ""
    assert storage_error("a full disk", tmp_path).exit_code == StorageError.exit_code == 73


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE, errno.EINVAL, errno.ECONNREFUSED])
def test_an_error_that_the_system_gives_another_number_is_not_one_of_a_full_disk(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 0}))
    assert storage_reason(OSError(number, os.strerror(number)), tmp_path / "file") == ""


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
def test_a_folder_that_is_of_no_disk_is_not_called_full() -> None:
    path = Path("/proc/page.html")
    with pytest.raises(StorageError, match=r"^found a folder that takes no files ") as refused, artifacts.writing(path):
        path.touch()
    assert refused.value.found.endswith(" while writing /proc/page.html")
    assert "space" not in str(refused.value) and refused.value.do == "choose another folder"


@pytest.mark.parametrize(
    ("number", "name", "found", "do"),
    [
        (errno.ENOSPC, "", "a full disk ([Errno 28] No space left on device: '{target}') while writing {copy}", "free"),
        (errno.ENOSPC, "source", "a full disk ([Errno 28] No space left on device: '{source}') while", "free"),
        (errno.EACCES, "source", "no permission ([Errno 13] Permission denied: '{source}')", "fix the permission or"),
        (
            errno.EACCES,
            "target",
            "no permission ([Errno 13] Permission denied: '{target}') while writing {copy}",
            "fix",
        ),
    ],
)
def test_of_a_folder_that_cannot_be_copied_the_first_error_is_reported(
    tmp_path: Path, number: int, name: str, found: str, do: str
) -> None:
    """shutil lists the errors of all files; the message was that list."""
    for file in ("a", "b"):
        artifacts.write_file(tmp_path / "folder" / file, "content")
    copy = tmp_path / "copy"

    def refuse(source: str, target: str) -> None:
        names = {"source": source, "target": target}
        raise OSError(number, os.strerror(number), names.get(name))

    with pytest.raises(shutil.Error) as listed:
        shutil.copytree(tmp_path / "folder", copy, copy_function=refuse)
    error = storage_error(storage_reason(listed.value, copy), copy, listed.value)
    first = listed.value.args[0][0][0]
    assert error.found.startswith(found.format(copy=copy, source=first, target=copy / Path(first).name))
    assert error.do.startswith(do)
    assert storage_reason(shutil.Error("a different kind"), tmp_path) == ""


@pytest.mark.parametrize("inside", ["", "folder/file"])
def test_a_link_to_itself_is_an_error_with_every_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    """``Path.resolve`` raises a RuntimeError for it up to 3.12; since then it returns the link, as it does here."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for way in (Path.resolve, lambda path: path):
        monkeypatch.setattr(Path, "resolve", way)
        with pytest.raises((OSError, RuntimeError)) as caught:
            resolved(loop / inside)
        assert storage_reason(caught.value, tmp_path).startswith("a symbolic link that leads to itself (")


def test_a_path_that_is_not_there_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert resolved(tmp_path / "file" / "below") == tmp_path / "file" / "below"
    assert resolved(tmp_path / "link" / "below") == tmp_path / "gone" / "below"


@pytest.mark.parametrize("named", [True, False])
def test_a_disk_that_fails_while_nothing_is_named_may_be_that_of_an_input(tmp_path: Path, named: bool) -> None:
    error = OSError(errno.EIO, os.strerror(errno.EIO), *[str(tmp_path / "f")] * named)
    found = storage_error(os.strerror(errno.EIO), tmp_path, error)
    assert found.found == f"{os.strerror(errno.EIO)} while {'writing' if named else 'building'} {tmp_path}"


def test_an_error_that_needs_the_current_folder_names_it_if_it_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    nameless, relative = FileNotFoundError(2, "No such file"), FileNotFoundError(2, "No such file", "data/file")
    named = FileNotFoundError(2, "No such file", str(tmp_path / "absent"))
    assert [explanation(error) for error in (nameless, relative, named)] == [None] * 3
    (tmp_path / "gone").rmdir()
    assert isinstance(explanation(nameless), MissingError) and isinstance(explanation(relative), MissingError)
    assert explanation(named) is None


def test_a_file_whose_name_is_bytes_is_named_too(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "f")
    found = explanation(PermissionError(errno.EACCES, os.strerror(errno.EACCES), path))
    assert found is not None and owners(tmp_path / "f") in found.do
