"""A full or read-only disk: a StorageError, the old artefact untouched, and no leftovers."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.artefacts import content_of, neighbours, put
from xc_core import artifacts
from xc_core.causes import storage_reason
from xc_core.errors import StorageError
from xc_core.leftovers import temporary_folder
from xc_core.locks import locked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "thing"


class SafetensorError(Exception):
    """A full disk as safetensors reports it: not an OSError, without an error number."""


FULL = {
    "the system": OSError(errno.ENOSPC, "No space left on device"),
    "a quota": OSError(errno.EDQUOT, "Disk quota exceeded"),
    "a library": SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
}


@pytest.mark.parametrize("source", FULL)
def test_a_disk_that_fills_while_an_artefact_is_made_is_a_storage_error(folder: Path, source: str) -> None:
    put(folder)
    before = content_of(folder)
    with pytest.raises(StorageError) as caught, artifacts.building(folder, kind="thing"):
        raise FULL[source]
    assert ("full disk" in caught.value.found) or ("quota" in caught.value.found)
    assert "untouched" in caught.value.expected
    assert content_of(folder) == before
    assert neighbours(folder) == ["thing"]


def test_a_full_disk_of_temporary_files_is_named() -> None:
    """A write to an open file names no file: the error did not say which disk is full."""
    with (
        pytest.raises(StorageError, match=rf"a full disk .* while writing {re.escape(tempfile.gettempdir())}/"),
        temporary_folder(),
    ):
        raise FULL["the system"]
    with pytest.raises(OSError, match="/other"), temporary_folder() as scratch:
        raise OSError(errno.ENOSPC, "No space left on device", "/other")
    assert not scratch.exists()


def test_that_no_folder_of_temporary_files_can_be_written_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python says that there is none; it was called a fault of this software."""
    error = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/project']")
    assert storage_reason(error, tmp_path) == ""

    def full(**_: object) -> None:
        raise FULL["the system"]

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert storage_reason(error, tmp_path).startswith("a full disk ([Errno 2] No usable temporary directory found in")


def test_a_disk_without_room_for_a_mapped_array_is_a_storage_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the reservation the first write to its rows would kill the process (SIGBUS)."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StorageError, match="full disk"), artifacts.building(folder, kind="thing") as build:
        artifacts.mapped_array(build.path / "rows.npy", (4, 2), np.float32)
    assert neighbours(folder) == []


@pytest.mark.parametrize("moment", ["sync", "_seal", "_exchange"])
def test_a_disk_that_fills_at_the_end_leaves_the_old_artefact(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    put(folder)
    before = content_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, moment, full)
        with pytest.raises(StorageError):
            put(folder, "new")
        with pytest.raises(StorageError):
            patch.setattr(artifacts, "sync", full)
            artifacts.write_file(folder.with_name("small"), "text")
    assert content_of(folder) == before
    assert neighbours(folder) == ["thing"]


def test_a_writer_that_fails_on_a_full_disk_without_a_reason_is_a_storage_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 0}))
    with pytest.raises(StorageError, match="requested and 262112 written"), artifacts.building(folder, kind="thing"):
        raise OSError("1048576 requested and 262112 written")


def test_an_error_that_is_not_about_the_disk_is_not_changed(folder: Path) -> None:
    with pytest.raises(FileNotFoundError), artifacts.building(folder, kind="thing"):
        (folder / "absent").read_text()


@pytest.mark.parametrize("name", ["raw/trn.txt", "thing.txt", ".thing"])
def test_a_file_that_cannot_be_read_while_another_is_built_is_not_called_written(tmp_path: Path, name: str) -> None:
    found = f"no permission ([Errno 13] Permission denied: '{tmp_path}/{name}')"
    with pytest.raises(StorageError) as caught, artifacts.building(tmp_path / "thing", kind="thing"):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / name))
    assert caught.value.found == found
    assert caught.value.expected.startswith("files that can be read")


def test_a_failing_disk_that_names_no_file_may_have_been_read(tmp_path: Path) -> None:
    building = artifacts.building(tmp_path / "thing", kind="thing")
    with pytest.raises(StorageError, match=r"Input/output error\) while building .*/thing\n"), building:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("name", ["thing", "thing/a", ".thing.1-0.tmp/a", ".thing.old"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
def test_a_file_of_what_is_built_that_cannot_be_written_is_named_so(tmp_path: Path, name: str, number: int) -> None:
    building = artifacts.building(tmp_path / "thing", kind="thing")
    with pytest.raises(StorageError, match=r"\) while writing .*/thing\n"), building:
        raise OSError(number, os.strerror(number), str(tmp_path / name))


def test_a_full_disk_of_another_file_is_not_one_of_reading(tmp_path: Path) -> None:
    building = artifacts.building(tmp_path / "thing", kind="thing")
    with pytest.raises(StorageError, match="expected: free space"), building:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "checkpoint"))


def test_a_file_where_a_folder_should_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file")
    calls: list[Callable[[], object]] = [
        lambda: put(tmp_path / "file" / "thing"),
        lambda: artifacts.write_file(tmp_path / "file" / "thing", "x"),
        lambda: locked(tmp_path / "file" / "lock", "x").__enter__(),
        lambda: artifacts.install(tmp_path, tmp_path / "file" / "thing"),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=re.escape(f"while writing {path}")):
            call()


@pytest.mark.parametrize(("way", "found"), [("file", "a file where a folder should be"), ("loop", "a symbolic link")])
def test_what_is_in_the_way_of_a_folder_is_to_be_moved(tmp_path: Path, way: str, found: str) -> None:
    """Neither free space nor permission helps, which the advice named."""
    place = tmp_path / way
    place.write_text("a") if way == "file" else place.symlink_to(place)
    with pytest.raises(StorageError, match=f"{found}.*while writing {re.escape(str(place))}") as caught:
        artifacts.write_file(place / "thing" / "params.yaml", "a")
    assert caught.value.do.startswith("move the file or link away")
