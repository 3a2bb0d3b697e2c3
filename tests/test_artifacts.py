"""Artefacts appear whole or not at all: under concurrent readers, kill -9, full disks, damage, and second writers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core import artifacts
from xc_core.errors import BusyError, CorruptError, MissingError, StorageError, XCError

WRITER = """
    import os, sys
    from pathlib import Path
    from xc_core import artifacts

    os.fsync = lambda descriptor: None  # slow, and about power cuts: who reads and who is killed does not see it
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    killed_in = int(sys.argv[4]) if len(sys.argv) > 4 else -1
    print("ready", flush=True)
    for version in range(first, last):
        with artifacts.building(folder, kind="thing") as build:
            build.facts["version"] = version
            for name in "abc":
                (build.path / name).write_bytes(str(version).encode() * 1000)
                if version == killed_in:
                    os.kill(os.getpid(), 9)
"""
HOLDER = """
    import sys, time
    from pathlib import Path
    from xc_core import artifacts

    with artifacts.locked(Path(sys.argv[1]), "the thing"):
        print("ready", flush=True)
        time.sleep(60)
"""


@contextlib.contextmanager
def started(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` in a Python of its own, from when it has said that it is ready; kill -9 it at the end."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.send_signal(signal.SIGKILL)


def put(folder: Path, text: str = "old", kind: str = "thing") -> artifacts.Manifest:
    """Write a small artefact and return its manifest."""
    with artifacts.building(folder, kind=kind) as build:
        (build.path / "inner").mkdir()
        (build.path / "inner" / "a.txt").write_text(text)
        (build.path / "b.txt").write_text(text * 2)
        build.facts["text"] = text
    return artifacts.read_manifest(folder)


def neighbours(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "thing"


def test_a_reader_sees_only_whole_artefacts_while_they_are_replaced_200_times(folder: Path) -> None:
    def read() -> tuple[int, set[bytes]]:
        version = int(artifacts.verify(folder, kind="thing").facts["version"])
        return version, {(folder / name).read_bytes() for name in "abc"}

    with started(WRITER, folder, 0, 1) as writer:
        assert writer.wait() == 0
    seen = []
    with started(WRITER, folder, 1, 201) as writer:
        while writer.poll() is None:
            version, content = artifacts.steady(folder, read)
            assert content == {str(version).encode() * 1000}
            seen.append(version)
        assert writer.returncode == 0
    assert seen == sorted(seen)
    assert len(set(seen)) > 20, "the reader must have met many replacements"
    assert artifacts.verify(folder).facts["version"] == 200


def test_a_read_over_two_artefacts_is_repeated_and_its_error_not_raised(folder: Path) -> None:
    put(folder, "old")
    calls = []

    def read() -> str:
        text = (folder / "b.txt").read_text()
        calls.append(text)
        if len(calls) == 1:
            put(folder, "new")
            raise ValueError("half of one, half of the other")
        return text

    assert artifacts.steady(folder, read) == "newnew"
    assert calls == ["oldold", "newnew"]


def test_kill_9_of_a_writer_leaves_a_whole_artefact_and_the_next_writer_clears_up(folder: Path) -> None:
    """Killed at any moment, and in the middle of its third version."""
    put(folder)
    chance, last = random.Random(5), -1
    for kill in range(10):
        with started(WRITER, folder, last + 1, 10**6, *([last + 3] if kill == 9 else [])) as writer:
            time.sleep(chance.uniform(0, 0.04))
            if kill == 9:
                assert writer.wait() == -signal.SIGKILL
        version = artifacts.verify(folder).facts.get("version", -1)
        assert version == last + 2 if kill == 9 else version >= last
        last = version
    assert len(neighbours(folder)) == 2, "the half of the version after lies beside it"
    put(folder, "new")
    assert neighbours(folder) == ["thing"]


def test_a_half_done_exchange_is_undone_by_the_next_writer(folder: Path) -> None:
    put(folder, "old")
    folder.rename(folder.with_name(".thing.old"))
    with pytest.raises(RuntimeError), artifacts.building(folder, kind="thing"):
        raise RuntimeError("the next writer fails too")
    assert artifacts.verify(folder).facts["text"] == "old"
    assert neighbours(folder) == ["thing"]


def test_without_an_atomic_exchange_the_new_one_still_takes_the_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "_renameat2_exchange", lambda new, old: False)
    put(folder, "old")
    put(folder, "new")
    assert artifacts.verify(folder).facts["text"] == "new"
    assert neighbours(folder) == ["thing"]


def test_a_writer_leaves_the_work_of_a_neighbour_with_a_longer_name_alone(folder: Path) -> None:
    other = folder.with_name("thing.5")
    with artifacts.building(other, kind="thing") as build:
        (build.path / "x").write_text("x")
        put(folder)
    assert artifacts.verify(other).files


def flip(folder: Path) -> None:
    path = folder / "b.txt"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def manifest_with(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / artifacts.MANIFEST
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


DAMAGES: dict[str, tuple[Callable[[Path], object], type[XCError], str]] = {
    "a flipped bit": (flip, CorruptError, "another content"),
    "a missing file": (lambda f: (f / "b.txt").unlink(), CorruptError, "no file"),
    "a missing inner file": (lambda f: (f / "inner" / "a.txt").unlink(), CorruptError, "no file"),
    "a truncated file": (lambda f: os.truncate(f / "b.txt", 1), CorruptError, "of 1 bytes"),
    "no manifest": (lambda f: (f / artifacts.MANIFEST).unlink(), MissingError, "no artefact"),
    "an empty manifest": (lambda f: os.truncate(f / artifacts.MANIFEST, 0), CorruptError, "unreadable"),
    "a cut manifest": (lambda f: os.truncate(f / artifacts.MANIFEST, 40), CorruptError, "unreadable"),
    "a manifest that is no UTF-8": (
        lambda f: (f / artifacts.MANIFEST).write_bytes(b"\xff\xfe"),
        CorruptError,
        "unreadable",
    ),
    "a manifest that is a list": (lambda f: (f / artifacts.MANIFEST).write_text("[1]"), CorruptError, "unreadable"),
    "files that are a list": (manifest_with(files=["b.txt"]), CorruptError, "unreadable"),
    "a file without a hash": (manifest_with(files={"b.txt": {"bytes": 6}}), CorruptError, "unreadable"),
    "another kind": (manifest_with(kind="other"), CorruptError, "of kind 'other'"),
    "another format": (manifest_with(format=99), CorruptError, "format 99"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_named(folder: Path, name: str) -> None:
    damage, kind, found = DAMAGES[name]
    put(folder)
    damage(folder)
    with pytest.raises(kind) as caught:
        artifacts.verify(folder, kind="thing")
    assert found in caught.value.found
    assert str(folder) in caught.value.found
    assert "xc run thing --force" in caught.value.do or name == "another kind"


def test_sizes_alone_show_a_missing_file_but_not_another_content(folder: Path) -> None:
    manifest = put(folder)
    flip(folder)
    artifacts.check_sizes(folder, manifest)
    (folder / "b.txt").unlink()
    with pytest.raises(CorruptError):
        artifacts.check_sizes(folder, manifest)


def test_the_same_content_gives_the_same_manifest_and_another_content_another(tmp_path: Path) -> None:
    one, same, other = (put(tmp_path / name, text) for name, text in (("1", "x"), ("2", "x"), ("3", "y")))
    assert (tmp_path / "1" / "manifest.json").read_bytes() == (tmp_path / "2" / "manifest.json").read_bytes()
    assert one.digest() == same.digest() != other.digest()
    assert artifacts.read_manifest(tmp_path / "1") == one


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
@settings(max_examples=30, deadline=None)
def test_any_facts_become_json_that_reads_back_with_null_for_what_is_not_finite(facts: dict[str, object]) -> None:
    text = artifacts.Manifest("thing", facts).to_json()
    assert json.loads(text)["facts"] == artifacts.finite(facts)
    assert text == artifacts.Manifest("thing", dict(reversed(facts.items()))).to_json()


def test_not_a_number_and_infinity_become_null(folder: Path) -> None:
    with artifacts.building(folder, kind="thing") as build:
        build.facts |= {"loss": float("nan"), "inner": [1.5, float("inf")]}
        build.json("x.json", {"y": (float("-inf"), 2)})
    assert artifacts.verify(folder).facts == {"loss": None, "inner": [1.5, None]}
    assert json.loads((folder / "x.json").read_text()) == {"y": [None, 2]}


def test_a_block_that_raises_changes_nothing(folder: Path) -> None:
    before = put(folder)
    with pytest.raises(ZeroDivisionError), artifacts.building(folder, kind="thing") as build:
        (build.path / "b.txt").write_text("half")
        raise ZeroDivisionError
    assert artifacts.verify(folder) == before
    assert neighbours(folder) == ["thing"]


class SafetensorError(Exception):
    """As safetensors tells of a full disk: no OSError, no number."""


FULL = {
    "the system": OSError(errno.ENOSPC, "No space left on device"),
    "a quota": OSError(errno.EDQUOT, "Disk quota exceeded"),
    "a library": SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
}


@pytest.mark.parametrize("who", FULL)
def test_a_disk_that_fills_while_an_artefact_is_made_is_a_storage_error(folder: Path, who: str) -> None:
    before = put(folder)
    with pytest.raises(StorageError) as caught, artifacts.building(folder, kind="thing"):
        raise FULL[who]
    assert ("full disk" in caught.value.found) or ("quota" in caught.value.found)
    assert "untouched" in caught.value.expected
    assert artifacts.verify(folder) == before
    assert neighbours(folder) == ["thing"]


@pytest.mark.parametrize("moment", ["_sync", "_seal", "_exchange"])
def test_a_disk_that_fills_at_the_end_leaves_the_old_artefact(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = put(folder)
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, moment, full)
        with pytest.raises(StorageError):
            put(folder, "new")
        with pytest.raises(StorageError):
            patch.setattr(artifacts, "_sync", full)
            artifacts.write_file(folder.with_name("small"), "text")
    assert artifacts.verify(folder) == before
    assert neighbours(folder) == ["thing"]


def test_a_writer_that_does_not_say_why_it_failed_on_a_full_disk_is_understood(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 0}))
    with pytest.raises(StorageError, match="requested and 262112 written"), artifacts.building(folder, kind="thing"):
        raise OSError("1048576 requested and 262112 written")


def test_an_error_that_is_not_about_the_disk_stays_what_it_is(folder: Path) -> None:
    with pytest.raises(FileNotFoundError), artifacts.building(folder, kind="thing"):
        (folder / "absent").read_text()


def test_a_file_where_a_folder_should_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file")
    calls: list[Callable[[], object]] = [
        lambda: put(tmp_path / "file" / "thing"),
        lambda: artifacts.write_file(tmp_path / "file" / "thing", "x"),
        lambda: artifacts.locked(tmp_path / "file" / "lock", "x").__enter__(),
        lambda: artifacts.install(tmp_path, tmp_path / "file" / "thing"),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=f"while writing {path}"):
            call()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_reserve_claims_the_space_of_a_hole(tmp_path: Path) -> None:
    path = tmp_path / "hole"
    path.touch()
    os.truncate(path, 1 << 20)
    before = path.stat().st_blocks
    artifacts.reserve(path)
    assert path.stat().st_size == 1 << 20
    assert before == 0
    assert path.stat().st_blocks * 512 >= 1 << 20


def test_install_exchanges_a_finished_folder_with_what_is_there(tmp_path: Path) -> None:
    put(tmp_path / "place", "old")
    put(tmp_path / "new", "new")
    artifacts.install(tmp_path / "new", tmp_path / "place")
    assert artifacts.verify(tmp_path / "place").facts["text"] == "new"
    assert neighbours(tmp_path / "place") == ["place"]
    put(tmp_path / "new", "newer")
    artifacts.install(tmp_path / "new", tmp_path / "elsewhere" / "place")
    assert artifacts.verify(tmp_path / "elsewhere" / "place").facts["text"] == "newer"


def test_install_copies_from_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def across(old: str | Path, new: str | Path) -> None:
        if "scratch" in str(old):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(old, new)

    put(tmp_path / "place", "old")
    put(tmp_path / "scratch", "new")
    monkeypatch.setattr(os, "rename", across)
    artifacts.install(tmp_path / "scratch", tmp_path / "place")
    assert artifacts.verify(tmp_path / "place").facts["text"] == "new"
    assert neighbours(tmp_path / "place") == ["place"]


def test_remove_deletes_an_artefact_and_its_leftovers(folder: Path) -> None:
    put(folder)
    folder.with_name(".thing.77.tmp").mkdir()
    artifacts.remove(folder)
    artifacts.remove(folder.parent / "absent" / "thing")
    assert neighbours(folder) == []


def test_a_lock_is_refused_to_a_second_process_by_name_and_freed_by_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "x"
    with started(HOLDER, path) as holder:
        with pytest.raises(BusyError, match=f"the thing being run by process {holder.pid}\n") as caught:
            artifacts.locked(path, "the thing").__enter__()
        assert caught.value.exit_code == 75
    with artifacts.locked(path, "the thing"), pytest.raises(BusyError, match=f"process {os.getpid()}\n"):
        artifacts.locked(path, "the thing").__enter__()


def test_a_lock_can_be_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes in naps alone; whoever holds the lock lets it go after the third."""
    held, naps = contextlib.ExitStack(), list[float]()

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            held.close()

    monkeypatch.setattr(artifacts, "time", SimpleNamespace(monotonic=lambda: sum(naps), sleep=nap))
    held.enter_context(artifacts.locked(tmp_path / "x", "the thing"))
    with artifacts.locked(tmp_path / "x", "the thing", patience=30):
        assert len(naps) == 3
        naps[:] = [0.0] * 3
        with pytest.raises(BusyError):
            artifacts.locked(tmp_path / "x", "the thing", patience=0.2).__enter__()
    assert 0.2 <= sum(naps) <= 0.2 + max(naps), "it gives up after its patience, not before"


def test_write_file_replaces_in_one_step_and_clears_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "small.json"
    artifacts.write_file(path, "one")
    path.with_name(".small.json.77.tmp").write_text("half")
    artifacts.write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert neighbours(path) == ["small.json"]
