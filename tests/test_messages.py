"""The words by which causes of errors are known are those that the system and the libraries write today.

Each error is made by the library itself, so an upgrade that words it differently is seen here.
"""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from xc_core.causes import explanation, is_locked, shortage, storage_reason

FULL = Path("/dev/full")


@contextmanager
def small_files(size: int = 16_384) -> Iterator[None]:
    """Let the system refuse longer files: the one refusal of a disk that needs no other disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITERS: dict[str, Callable[[Path], object]] = {
    "safetensors": lambda path: save_file({"a": np.zeros(1 << 16)}, path),
    "polars": lambda path: pl.DataFrame({"a": np.random.default_rng(0).random(1 << 16)}).write_parquet(path),
    "tokenizers": lambda path: Tokenizer(WordLevel({str(i): i for i in range(9_999)}, "0")).save(str(path)),
}


@pytest.mark.parametrize("library", WRITERS)
def test_libraries_repeat_the_words_of_the_system(library: str, tmp_path: Path) -> None:
    """Their errors have no number. The words for a full disk come from the same table of the C library."""
    with pytest.raises(Exception, match=os.strerror(errno.EFBIG)) as caught, small_files():
        WRITERS[library](tmp_path / "file")
    assert not isinstance(caught.value, OSError)
    assert storage_reason(caught.value, tmp_path).startswith("a limit on the size of files (")


def full(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA max_page_count = 1")
        database.execute("CREATE TABLE a (b)")


def read_only(file: Path) -> None:
    file.touch()
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
        database.execute("CREATE TABLE a (b)")


def cut_off(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database, small_files():
        database.execute("CREATE TABLE a (b)")
        database.execute("INSERT INTO a VALUES (?)", ["x" * 99_999])
        database.commit()


def unopened(file: Path) -> None:
    sqlite3.connect(file / "absent" / "a.db")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (full, "a full disk (database or disk is full)"),
        (read_only, "no permission (attempt to write a readonly database)"),
        (cut_off, "a failing disk (disk I/O error)"),
        (unopened, "a read-only disk (unable to open database file)"),
    ],
)
def test_sqlite_has_words_of_its_own(
    error: Callable[[Path], None], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(sqlite3.OperationalError) as caught:
        error(tmp_path / "a.db")
    if error is unopened:  # for which the disk itself is asked
        monkeypatch.setattr("tempfile.TemporaryFile", Mock(side_effect=OSError(errno.EROFS, "")))
    assert storage_reason(caught.value, tmp_path) == reason


def test_sqlite_says_that_a_database_is_locked(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with (
        closing(sqlite3.connect(file, isolation_level=None)) as one,
        closing(sqlite3.connect(file, timeout=0)) as other,
    ):
        one.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            other.execute("CREATE TABLE a (b)")
    assert is_locked(caught.value)


@pytest.mark.skipif(not FULL.is_char_device(), reason="no device that is always full")
def test_git_says_that_a_disk_is_full(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = ["git", "pack-objects", "--stdout", "-q"]
    with FULL.open("wb") as device:
        done = subprocess.run(command, cwd=tmp_path, input=b"", stdout=device, stderr=subprocess.PIPE, check=False)
    assert storage_reason(RuntimeError(done.stderr.decode()), tmp_path).startswith("a full disk (")


def test_python_says_that_there_is_no_folder_of_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "absent")])
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(FileNotFoundError) as caught:
        tempfile.gettempdir()
    monkeypatch.setattr(tempfile, "TemporaryFile", Mock(side_effect=OSError(errno.EROFS, "")))
    assert storage_reason(caught.value, tmp_path).startswith("a read-only disk (")


def test_a_link_that_leads_to_itself_is_found_in_the_words_of_python(tmp_path: Path) -> None:
    (loop := tmp_path / "loop").symlink_to(loop)
    with pytest.raises((RuntimeError, OSError)) as caught:
        loop.resolve(strict=True)
    found = explanation(caught.value)
    assert found is not None and found.found.startswith("a symbolic link that leads to itself (")


def test_torch_says_that_memory_is_refused() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert str(shortage(caught.value)).startswith("found too little memory (")


PROGRAM = """
import ctypes, importlib.util, pathlib, resource, threading, time
from xc_core.causes import shortage

torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26),) * 2)
try:
    {}
except Exception as error:
    print(shortage(error).found)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and limits the memory")
@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("threading.stack_size(1 << 28); threading.Thread(target=print).start()", "a limit of the system ("),
        ("ctypes.CDLL(str(next(torch.glob('lib/libtorch_cpu.*'))))", "a library that cannot be loaded ("),
    ],
    ids=["thread", "library"],
)
def test_python_and_the_loader_say_what_they_lack(code: str, found: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(code)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(found)
