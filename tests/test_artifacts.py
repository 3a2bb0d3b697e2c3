"""Artefacts appear completely or not at all, with concurrent readers, kill -9, damage and other disks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.artefacts import content_of, neighbours, put, started, text_of
from tests.processes import open_files
from xc_core import artifacts, leftovers, manifests
from xc_core.chain.registry import STAGES
from xc_core.errors import CorruptError, MissingError, StorageError, XCError
from xc_core.progress import listen, silence

WRITER = """
    import os, sys
    from pathlib import Path
    from xc_core import artifacts, manifests

    os.fsync = lambda descriptor: None  # slow, and only about power cuts: readers and kills do not see it
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    print("ready", flush=True)
    for version in range(first, last):
        with artifacts.building(folder, kind="thing") as build:
            build.facts["version"] = version
            for name in "abc":
                (build.path / name).write_bytes(str(version).encode() * 1000)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "thing"


def test_a_reader_sees_only_complete_artefacts_while_they_are_replaced_600_times(folder: Path) -> None:
    def read() -> tuple[int, set[bytes]]:
        artifacts.verify(folder, kind="thing")
        version = int(artifacts.read_made(folder).facts["version"])
        return version, {(folder / name).read_bytes() for name in "abc"}

    with started(WRITER, folder, 0, 1) as writer:
        assert writer.wait() == 0
    seen = []
    with started(WRITER, folder, 1, 601) as writer:
        while writer.poll() is None:
            version, content = artifacts.steady(folder, read)
            assert content == {str(version).encode() * 1000}
            seen.append(version)
        assert writer.returncode == 0
    assert seen == sorted(seen)
    assert len(set(seen)) > 20, "the reader must see many replacements"
    assert artifacts.read_made(folder).facts["version"] == 600
    assert artifacts.verify(folder).files["a"]["bytes"] == 3000


def test_a_read_across_two_artefacts_is_repeated_and_its_error_ignored(folder: Path) -> None:
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


def test_an_error_of_a_read_is_raised_if_nothing_was_replaced(folder: Path) -> None:
    put(folder)
    with pytest.raises(ZeroDivisionError):
        artifacts.steady(folder, lambda: 1 // 0)


def test_kill_9_of_a_writer_leaves_a_complete_artefact_and_the_next_writer_cleans_up(folder: Path) -> None:
    put(folder)
    chance, last = random.Random(5), -1
    leftovers = 0
    for _ in range(10):
        with started(WRITER, folder, last + 1, 10**6):
            time.sleep(chance.uniform(0, 0.04))
        artifacts.verify(folder)
        version = artifacts.read_made(folder).facts.get("version", -1)
        assert version >= last
        last = version
        leftovers += len(neighbours(folder)) - 1
    assert last > 0
    assert leftovers > 0, "no writer was killed at work"
    put(folder, "new")
    assert neighbours(folder) == ["thing"]


def test_an_incomplete_exchange_is_undone_by_the_next_writer(folder: Path) -> None:
    put(folder, "old")
    folder.rename(folder.with_name(".thing.old"))
    with pytest.raises(RuntimeError), artifacts.building(folder, kind="thing"):
        raise RuntimeError("the next writer fails too")
    assert text_of(folder) == "old"
    assert neighbours(folder) == ["thing"]


def test_without_an_atomic_exchange_the_artefact_is_still_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "_renameat2_exchange", lambda new, old: False)
    put(folder, "old")
    put(folder, "new")
    assert text_of(folder) == "new"
    assert neighbours(folder) == ["thing"]


def test_a_writer_does_not_touch_the_work_of_a_neighbour_with_a_longer_name(folder: Path) -> None:
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
        path = folder / manifests.MANIFEST
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def without_digest(folder: Path) -> None:
    """As no release wrote it."""
    path = folder / manifests.MANIFEST
    path.write_text(
        json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "digest"})
    )


DAMAGES: dict[str, tuple[Callable[[Path], object], type[XCError], str]] = {
    "a flipped bit": (flip, CorruptError, "whose content has changed"),
    "a missing file": (lambda f: (f / "b.txt").unlink(), CorruptError, "no file"),
    "a missing inner file": (lambda f: (f / "inner" / "a.txt").unlink(), CorruptError, "no file"),
    "a truncated file": (lambda f: os.truncate(f / "b.txt", 1), CorruptError, "of 1 bytes"),
    "no manifest": (lambda f: (f / manifests.MANIFEST).unlink(), MissingError, "no artefact"),
    "an empty manifest": (lambda f: os.truncate(f / manifests.MANIFEST, 0), CorruptError, "unreadable"),
    "a cut manifest": (lambda f: os.truncate(f / manifests.MANIFEST, 40), CorruptError, "unreadable"),
    "a manifest that is not UTF-8": (
        lambda f: (f / manifests.MANIFEST).write_bytes(b"\xff\xfe"),
        CorruptError,
        "unreadable",
    ),
    "a manifest that is a list": (lambda f: (f / manifests.MANIFEST).write_text("[1]"), CorruptError, "unreadable"),
    "files that are a list": (manifest_with(files=["b.txt"]), CorruptError, "unreadable"),
    "a file without a hash": (manifest_with(files={"b.txt": {"bytes": 6}}), CorruptError, "unreadable"),
    "a changed manifest": (manifest_with(kind="other"), CorruptError, "has changed since it was written"),
    "a manifest without its digest": (without_digest, CorruptError, "no digest in"),
    "another kind": (lambda f: put(f, kind="other"), CorruptError, "of kind 'other'"),
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


@pytest.mark.parametrize(
    ("place", "kind", "command"),
    [
        ("data/mine/corpus", "corpus", "xc run corpus --force --dataset mine;"),
        ("data/mine/tokens/minilm", "tokens", "xc run tokens --force --dataset mine;"),
        ("data/mine/ngame/encoder", "encoder", "xc run encoder --force --dataset mine --recipe ngame;"),
        ("data/data/mine/ngame/encoder", "encoder", "xc run encoder --force --dataset mine --recipe ngame;"),
        ("data/mine/ngame/model", "", "xc run model --force --dataset mine --recipe ngame;"),
        ("model/data/mine/ngame/model", "model", "xc run model --force --dataset mine --recipe ngame;"),
        ("models/m-1/model", "model", "xc run model --force, with its --dataset (and --recipe);"),
        ("somewhere", "", "xc run STAGE --force, with its --dataset (and --recipe);"),
    ],
)
def test_the_advice_names_the_dataset_and_the_recipe_of_an_artefact(
    tmp_path: Path, place: str, kind: str, command: str
) -> None:
    with pytest.raises(MissingError) as caught:
        manifests.read_manifest(tmp_path / place, kind)
    assert caught.value.do == f"rebuild it: {command} or `dvc pull` from a remote"


def test_the_artefacts_of_a_dataset_are_those_of_the_registry() -> None:
    assert set(manifests._OF_DATASET) == {name for name, stage in STAGES.items() if stage.scope == "dataset"}


def test_a_file_is_hashed_once_in_a_block_under_all_of_its_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, hashed = hashlib.file_digest, list[str]()
    monkeypatch.setattr(hashlib, "file_digest", lambda stream, kind: hashed.append(stream.name) or digest(stream, kind))
    path, again = folder / "file", folder / "link"
    folder.mkdir(parents=True)
    path.write_bytes(b"content")
    again.hardlink_to(path)
    other = folder / "other"
    other.write_bytes(b"CONTENT")
    with artifacts.hashed_once():
        first = [artifacts.sha256_file(name) for name in (path, again, path, other)]
        assert len(hashed) == 2
        path.write_bytes(b"changed")
        os.utime(path, ns=(1, 1))  # the clock of a file system may not have moved on
        assert artifacts.sha256_file(again) == hashlib.sha256(b"changed").hexdigest()
    assert first == [hashlib.sha256(content).hexdigest() for content in (b"content",) * 3 + (b"CONTENT",)]
    hashed.clear()
    assert artifacts.sha256_file(path) == artifacts.sha256_file(path)
    assert len(hashed) == 2, "outside of a block every reading counts"


@pytest.mark.parametrize("name", ["manifest.json", "inner/a.txt"])
def test_a_file_that_is_deleted_while_an_artefact_is_read_is_no_fault_of_software(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ``xc delete`` beside ``xc predict``, which ended with 70."""
    manifest, opened = put(folder), Path.open

    def deleting(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == folder / name:
            path.unlink()
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", deleting)
    kind, read = (
        (CorruptError, artifacts.verify) if manifest.files.get(name) else (MissingError, manifests.read_manifest)
    )
    with pytest.raises(kind, match=r"^found no (artefact at|file) "):
        read(folder)


def test_sizes_reveal_a_missing_file_but_not_changed_content(folder: Path) -> None:
    manifest = put(folder)
    flip(folder)
    artifacts.check_sizes(folder, manifest)
    (folder / "b.txt").unlink()
    with pytest.raises(CorruptError):
        artifacts.check_sizes(folder, manifest)


def test_the_same_content_gives_the_same_manifest_and_other_content_another(tmp_path: Path) -> None:
    one, same, other = (put(tmp_path / name, text) for name, text in (("1", "x"), ("2", "x"), ("3", "y")))
    assert (tmp_path / "1" / "manifest.json").read_bytes() == (tmp_path / "2" / "manifest.json").read_bytes()
    assert one.digest() == same.digest() != other.digest()
    assert manifests.read_manifest(tmp_path / "1") == one


def test_a_block_that_raises_changes_nothing(folder: Path) -> None:
    put(folder)
    before = content_of(folder)
    with pytest.raises(ZeroDivisionError), artifacts.building(folder, kind="thing") as build:
        (build.path / "b.txt").write_text("half")
        raise ZeroDivisionError
    assert content_of(folder) == before
    assert neighbours(folder) == ["thing"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_file_that_a_library_made_private_has_the_readers_of_its_folder(folder: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with artifacts.building(folder, kind="thing") as build:
            save_file({"rows": np.zeros(2, np.float32)}, build.path / "rows.safetensors")
    finally:
        os.umask(before)
    assert (folder / "rows.safetensors").stat().st_mode & 0o777 == mode


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_a_writer_leaves_no_file_open(folder: Path) -> None:
    put(folder)
    before = open_files()
    put(folder, "new")
    artifacts.write_file(folder.with_name("small"), "text")
    assert open_files() == before


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_mapped_array_has_the_disk_space_of_all_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    rows = artifacts.mapped_array(path, (1 << 10, 1 << 8), np.float32)
    assert path.stat().st_blocks * 512 >= path.stat().st_size > 1 << 20
    rows[-1] = 1.0
    rows.flush()
    assert np.load(path, allow_pickle=False).sum() == 1 << 8


def test_install_replaces_what_is_there_by_a_finished_folder(tmp_path: Path) -> None:
    put(tmp_path / "place", "old")
    put(tmp_path / "new", "new")
    artifacts.install(tmp_path / "new", tmp_path / "place")
    assert text_of(tmp_path / "place") == "new"
    assert neighbours(tmp_path / "place") == ["place"]
    put(tmp_path / "new", "newer")
    artifacts.install(tmp_path / "new", tmp_path / "elsewhere" / "place")
    assert text_of(tmp_path / "elsewhere" / "place") == "newer"


def test_a_link_is_replaced_and_what_it_points_to_is_named_and_stays(tmp_path: Path) -> None:
    """A writer that followed it would change the files of another project, or of another copy of this one."""
    old, lines = tmp_path / "disk" / "old", list[str]()
    old.mkdir(parents=True)
    (tmp_path / "folder").symlink_to(old)
    listen(lines.append)
    try:
        with artifacts.building(tmp_path / "folder", kind="k") as build:
            build.json("a.json", 1)
    finally:
        silence()
    assert (tmp_path / "folder" / "a.json").is_file() and not (tmp_path / "folder").is_symlink()
    assert list(old.iterdir()) == []
    (line,) = lines
    assert line.startswith(f"note: {tmp_path / 'folder'} was a link; {old} stays as it is")


def test_a_link_to_nothing_is_refused_without_a_word_about_what_was_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to(tmp_path / "gone")
    lines: list[str] = []
    listen(lines.append)
    try:
        refused = pytest.raises(StorageError, match="a file where a folder should be")
        with refused, artifacts.building(tmp_path / "folder", kind="k") as build:
            build.json("a.json", 1)
    finally:
        silence()
    assert not lines and (tmp_path / "folder").is_symlink()


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
    assert text_of(tmp_path / "place") == "new"
    assert neighbours(tmp_path / "place") == ["place"]


def test_remove_deletes_an_artefact_and_its_leftovers(folder: Path) -> None:
    put(folder)
    folder.with_name(".thing.9999999-0a1b2c3d.tmp").mkdir()
    artifacts.remove(folder)
    artifacts.remove(folder.parent / "absent" / "thing")
    assert neighbours(folder) == []


def test_write_file_replaces_atomically_and_deletes_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "small.json"
    artifacts.write_file(path, "one")
    path.with_name(".small.json.9999999-0a1b2c3d.tmp").write_text("half")
    artifacts.write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert neighbours(path) == ["small.json"]
    path.chmod(0o664)
    artifacts.write_file(path, "three")
    assert path.stat().st_mode & 0o777 == 0o664, "others of the group may edit params.yaml as before"


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """Nor are devices: as root, ``--out /dev/stdout`` would put a file in place of the device."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="the pipe or device"):
        artifacts.write_file(tmp_path / "pipe", "one")
    assert (tmp_path / "pipe").is_fifo()
    assert neighbours(tmp_path / "pipe") == ["pipe"]


def change_manifest(folder: Path, **changes: object) -> None:
    content = json.loads((folder / manifests.MANIFEST).read_text())
    (folder / manifests.MANIFEST).write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\0b"])
def test_a_manifest_names_no_file_outside_of_its_folder(folder: Path, name: str) -> None:
    put(folder)
    change_manifest(folder, files={name: {"bytes": 1, "sha256": "0"}})
    with pytest.raises(CorruptError, match="an unreadable"):
        manifests.read_manifest(folder)


def test_a_manifest_that_was_changed_is_corrupt(folder: Path) -> None:
    before = put(folder)
    change_manifest(folder, files={})
    with pytest.raises(CorruptError, match="has changed since it was written"):
        manifests.read_manifest(folder)
    (folder / manifests.MANIFEST).write_text(before.to_file())
    assert manifests.read_manifest(folder) == before
    assert artifacts.verify(folder).digest() == before.digest()


def test_what_is_not_kept_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    with artifacts.building(folder, kind="thing") as build:
        (build.path / "a.txt").write_text("first")
    with artifacts.building(folder, kind="thing", keep=False) as build:
        (build.path / "a.txt").write_text("second")
    assert (folder / "a.txt").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_a_signal_in_the_middle_of_a_deletion_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, asked = leftovers.drop, []

    def drop(path: Path) -> None:
        if not asked:
            asked.append(path)
            raise KeyboardInterrupt
        whole(path)

    monkeypatch.setattr(artifacts, "drop", drop)
    with pytest.raises(KeyboardInterrupt), artifacts.building(folder, kind="thing") as build:
        (build.path / "a").write_text("a")
    assert asked == [build.path]
    assert list(folder.parent.rglob("*.tmp")) == []
