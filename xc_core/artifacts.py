"""The only writer of folders: an artefact appears complete, with a manifest of hashes, or not at all.

An artefact is a folder with ``manifest.json``, written last: name, size and SHA-256 of each file, so equal manifests
mean equal content. ``made.json`` records how it was made; it is not part of the content. A new artefact is built beside
the old one and exchanged with it in one system call, so a reader sees one of them, on Linux never a missing folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from xc_core.canonical import canonical
from xc_core.causes import storage_error, storage_reason
from xc_core.errors import CorruptError, StorageError
from xc_core.leftovers import aside, claimed, drop, remove_leftovers
from xc_core.leftovers import work as temporary
from xc_core.manifests import MANIFEST, Manifest, how_to_make, read_manifest
from xc_core.progress import report

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

T = TypeVar("T")
MADE: Final = "made.json"
_HASHED: Final[ContextVar[dict[tuple[int, ...], str] | None]] = ContextVar("hashed", default=None)
"""Hashes that are known inside ``hashed_once``."""


@dataclass(frozen=True)
class Made:
    """How an artefact was made: the inputs that decide whether it is up to date, and facts for people."""

    fingerprint: str = ""
    """Hash of everything the result depends on."""
    depends: Mapping[str, str] = field(default_factory=dict)
    """Digests of the single parts, by name: of the settings, of each input and so on."""
    settings: Any = None
    """All settings of the stage, in plain form."""
    refreshed: bool = False
    """True if trained parts were kept and only updated for new data."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Counts and figures."""

    def to_json(self) -> str:
        """Return the record as text; the same content gives the same bytes."""
        return canonical({field.name: getattr(self, field.name) for field in fields(self)})


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex; see ``hashed_once``."""
    with path.open("rb") as stream:
        hashes, status = _HASHED.get(), os.fstat(stream.fileno())
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if hashes is None:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        if key not in hashes:
            hashes[key] = hashlib.file_digest(stream, "sha256").hexdigest()
        return hashes[key]


@contextlib.contextmanager
def hashed_once() -> Iterator[None]:
    """Read each file for its hash only once inside the block, under all of its names.

    For a command that opens the same artefacts again and again. A file counts as another one if its inode, size or time
    of change is another; the files of an artefact never change, so only damage within the block stays unseen.
    """
    token = _HASHED.set({})
    try:
        yield
    finally:
        _HASHED.reset(token)


def read_made(folder: Path) -> Made:
    """Return how the artefact at ``folder`` was made; an empty record if there is none or it cannot be read."""
    try:
        content = json.loads((folder / MADE).read_text("utf-8"))
        made = Made(**{name: content[name] for name in Made.__dataclass_fields__})
    except (OSError, ValueError, KeyError, TypeError):
        return Made()
    return made if isinstance(made.depends, dict) and isinstance(made.facts, dict) else Made()


def steady(folder: Path, read: Callable[[], T]) -> T:
    """Return what ``read`` returns; if ``folder`` is replaced meanwhile, ``read`` is called again.

    So the result comes from one artefact. An error raised while files of two artefacts were mixed is ignored.
    """
    while True:
        before = _identity(folder)
        try:
            result = read()
        except Exception:
            if _identity(folder) == before:
                raise
        else:
            if _identity(folder) == before:
                return result


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what distinguishes two folders at one path; an inode number alone may be reused."""
    with contextlib.suppress(OSError):
        status = folder.stat()
        return status.st_ino, status.st_ctime_ns
    return None


def verify(folder: Path, *, kind: str | None = None) -> Manifest:
    """Return the manifest after checking kind, presence, size and SHA-256 of every file.

    Raises MissingError, CorruptError.
    """
    return steady(folder, lambda: _verified(folder, kind))


def _verified(folder: Path, kind: str | None) -> Manifest:
    manifest = read_manifest(folder, kind or "")
    if kind is not None and manifest.kind != kind:
        found, do = f"an artefact of kind {manifest.kind!r} at {folder}", "pass the folder of the right artefact"
        raise CorruptError(found, expected=f"kind {kind!r}", do=do)
    check_sizes(folder, manifest)
    for name, entry in manifest.files.items():
        try:
            digest = sha256_file(folder / name)
        except FileNotFoundError:
            check_sizes(folder, manifest)  # raises, unless the file is there again
            raise
        if digest != entry["sha256"]:
            found = f"{folder / name}, whose content has changed since it was written"
            expected = f"SHA-256 {entry['sha256'][:16]}..., as the manifest says"
            raise CorruptError(found, expected=expected, do=how_to_make(manifest.kind, folder))
    return manifest


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise CorruptError if a file is missing or has another size; no content is read."""
    for name, entry in manifest.files.items():
        path, size = folder / name, None
        with contextlib.suppress(FileNotFoundError):  # of an artefact that is being deleted
            size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            raise CorruptError(
                f"no file {path}" if size is None else f"{path} of {size} bytes",
                expected=f"{entry['bytes']} bytes, as the manifest says",
                do=how_to_make(manifest.kind, folder),
            )


@contextlib.contextmanager
def building(folder: Path, *, kind: str, keep: bool = True) -> Iterator[Build]:
    """Yield a Build whose ``path`` is an empty folder; at the end it becomes ``folder``, manifest last.

    If the block raises, or without ``keep``, ``folder`` does not change. Raises StorageError if the disk is full or not
    writable.
    """
    work = temporary(folder)
    build = Build(work)
    try:
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder)
            work.mkdir()
        with claimed(work):
            yield build
            if keep:
                _seal(work, kind, build.made)
                _exchange(work, folder)
    except Exception as error:
        if reason := storage_reason(error, folder):
            raise storage_error(reason, folder, error) from error
        raise
    finally:
        try:
            drop(work)
        except KeyboardInterrupt:  # a signal that asks this process to end, in the middle of the deletion
            drop(work)
            raise


@dataclass
class Build:
    """An artefact that is being built: write files under ``path``, put counts and figures into ``facts``."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    origin: Made = field(default_factory=Made)
    """How the artefact was made, without the facts."""

    @property
    def made(self) -> Made:
        """The content of ``made.json``."""
        return replace(self.origin, facts=self.facts)

    def json(self, name: str, content: object) -> None:
        """Write ``content`` as canonical JSON."""
        (self.path / name).write_text(canonical(content), "utf-8")


def _seal(work: Path, kind: str, made: Made) -> None:
    (work / MADE).write_text(made.to_json(), "utf-8")
    files = {}
    for path in sorted(work.rglob("*")):
        if path.is_file() and path.name != MADE:
            files[path.relative_to(work).as_posix()] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
            _make_readable(path)
        sync(path)
    (work / MANIFEST).write_text(Manifest(kind, files).to_file(), "utf-8")
    sync(work / MANIFEST)
    sync(work)


def _make_readable(path: Path) -> None:
    """Make a file as readable as its folder: safetensors writes files that only their owner can read."""
    present, readers = path.stat().st_mode, path.parent.stat().st_mode & 0o444
    if readers & ~present:
        with contextlib.suppress(PermissionError):  # a link to the file of another user
            path.chmod(present | readers)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk: a power cut loses what is only in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(new: Path, old: Path) -> None:
    """Put ``new`` in place of ``old``; the old folder is left under the name of ``new``, or deleted."""
    if old.is_symlink() and old.exists():  # replaced, not followed: what it points to may belong to another project
        report(f"note: {old} was a link; {old.resolve()} stays as it is, and the new files are in the project")
    if not old.exists():
        new.rename(old)
    elif not _renameat2_exchange(new, old):
        replaced = aside(old)
        old.rename(replaced)
        new.rename(old)
        drop(replaced)
    sync(old.parent)


def _renameat2_exchange(new: Path, old: Path) -> bool:
    """Exchange two folders atomically (Linux renameat2, flag RENAME_EXCHANGE = 2); False if that is impossible."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    current_folder = -100  # AT_FDCWD of <fcntl.h>
    return bool(renameat2(current_folder, os.fsencode(new), current_folder, os.fsencode(old), 2) == 0)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError."""
    try:
        yield
    except OSError as error:
        raise storage_error(storage_reason(error, path) or str(error), path) from error


def mapped_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> np.memmap[Any, Any]:
    """Return a memory-mapped array of zeros of a new ``.npy`` file; raise an OSError if the disk is full.

    The disk space is allocated: a write to an unallocated part of a mapped file would kill the process (SIGBUS).
    """
    from numpy.lib.format import open_memmap  # not before it is needed: commands without arrays start without numpy

    array = open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    return array


def install(new: Path, folder: Path) -> None:
    """Move the finished folder ``new`` to ``folder``, replacing what is there; from another disk it is copied first.

    Until ``folder`` is complete, ``new`` is too. Raises StorageError.
    """
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        if new.stat().st_dev == folder.parent.stat().st_dev:
            _exchange(new, folder)
        else:
            _copy_from_other_disk(new, folder)
    drop(new)


def _copy_from_other_disk(new: Path, folder: Path) -> None:
    work = temporary(folder)
    try:
        work.mkdir()
        with claimed(work):
            shutil.copytree(new, work, dirs_exist_ok=True)
            for path in work.rglob("*"):
                sync(path)
            _exchange(work, folder)
    finally:
        drop(work)


def remove(folder: Path) -> None:
    """Delete an artefact and the leftovers of killed writers."""
    drop(folder)
    if folder.parent.is_dir():
        remove_leftovers(folder)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; the file then replaces ``path`` in one step and takes its permissions."""
    work = temporary(path)
    try:
        with writing(path):
            if path.exists() and not (path.is_file() or path.is_dir()):  # even /dev/null, if root writes
                raise StorageError(f"the pipe or device {path}", expected="a file", do="give the name of a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path)
            work.touch()
            with claimed(work):
                yield work
                with contextlib.suppress(OSError):  # there was none, or the disk has no permissions
                    shutil.copymode(path, work)
                sync(work)
                work.replace(path)
    finally:
        drop(work)


def write_file(path: Path, content: str | bytes) -> None:
    """Write one small file atomically."""
    with replacing(path) as work:
        work.write_bytes(content.encode() if isinstance(content, str) else content)
