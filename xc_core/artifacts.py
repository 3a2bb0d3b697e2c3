"""The only writer of folders: an artefact appears whole, with a manifest of hashes, or not at all.

Takes: a path and a function that fills a folder.  Gives: Manifest.
May import: errors.                                Never: interprets what an artefact holds.

An artefact is a folder with ``manifest.json`` written last. A new one is built beside the old one and exchanged
with it in one system call, so a reader sees the old or the new, never a mixture and (on Linux) never neither.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from xc_core.errors import BusyError, CorruptError, MissingError, StorageError

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
"""Version of the manifest's own layout."""
_BLOCK: Final = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """What an artefact says of itself: its kind, its facts, and size and SHA-256 of each file."""

    kind: str
    facts: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    def digest(self) -> str:
        """Return one SHA-256 over all of it: equal digests mean equal artefacts."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the manifest as text; the same content gives the same bytes."""
        content = {"kind": self.kind, "format": self.format, "facts": self.facts, "files": self.files}
        return json.dumps(finite(content), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def finite(content: Any) -> Any:
    """Return ``content`` with None for every number that is not finite: JSON has no word for them."""
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of the artefact at ``folder``, unverified.

    Raises MissingError where there is no artefact, CorruptError where its manifest cannot be read.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise MissingError(f"no artefact at {folder}", expected=f"a folder with {MANIFEST}", do=_how_to_make(folder))
    try:
        content = json.loads(path.read_text("utf-8"))
        manifest = Manifest(content["kind"], content["facts"], content["files"], content["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"an unreadable {path} ({error})",
            expected="JSON with kind, format, facts, files",
            do=_how_to_make(folder),
        ) from error
    if manifest.format != FORMAT:
        raise CorruptError(f"format {manifest.format} in {path}", expected=f"format {FORMAT}", do=_how_to_make(folder))
    return manifest


def _how_to_make(folder: Path) -> str:
    return f"make it again: xc run {folder.name} (or `dvc pull`, where a remote holds it)"


def verify(folder: Path, *, kind: str | None = None) -> Manifest:
    """Return the manifest after checking kind, presence, size and SHA-256 of every file.

    Raises MissingError, CorruptError.
    """
    manifest = read_manifest(folder)
    if kind is not None and manifest.kind != kind:
        raise CorruptError(
            f"an artefact of kind {manifest.kind!r} at {folder}",
            expected=f"kind {kind!r}",
            do="give the right folder",
        )
    for name, facts in manifest.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != facts["bytes"]:
            raise CorruptError(
                f"{path} of {size} bytes",
                expected=f"{facts['bytes']} bytes, as the manifest says",
                do=_how_to_make(folder),
            )
        if sha256_file(path) != facts["sha256"]:
            raise CorruptError(
                f"{path} with another content than was written",
                expected=f"SHA-256 {facts['sha256'][:16]}..., as the manifest says",
                do=_how_to_make(folder),
            )
    return manifest


@contextlib.contextmanager
def building(folder: Path, *, kind: str) -> Iterator[Build]:
    """Yield a Build whose ``path`` is an empty folder; at the end it becomes ``folder``, manifest last.

    Where the block raises, nothing changes. Raises StorageError where the disk is full or not writable.
    """
    work = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        work.mkdir()
        build = Build(work)
        yield build
        _seal(work, Manifest(kind, build.facts))
        _exchange(work, folder)
    except OSError as error:
        raise _storage_error(error, folder) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


@dataclass
class Build:
    """An artefact in the making: write files under ``path``, put what is worth knowing into ``facts``."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def json(self, name: str, content: object) -> None:
        """Write ``content`` as JSON, the same bytes for the same content; numbers that are not finite become null."""
        text = json.dumps(finite(content), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        (self.path / name).write_text(text + "\n", "utf-8")


def _seal(work: Path, manifest: Manifest) -> None:
    files = {}
    for path in sorted(work.rglob("*")):
        if path.is_file():
            facts = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
            files[path.relative_to(work).as_posix()] = facts
            _sync(path)
    sealed = Manifest(manifest.kind, manifest.facts, files)
    (work / MANIFEST).write_text(sealed.to_json(), "utf-8")
    _sync(work / MANIFEST)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(new: Path, old: Path) -> None:
    """Put ``new`` in the place of ``old``; what was old ends at ``new``'s name."""
    if not old.exists():
        new.rename(old)
    elif not _renameat2_exchange(new, old):
        aside = old.with_name(f".{old.name}.old")
        old.rename(aside)
        new.rename(old)
        shutil.rmtree(aside, ignore_errors=True)
    _sync(old.parent)


def _renameat2_exchange(new: Path, old: Path) -> bool:
    """Exchange two folders atomically (Linux renameat2, flag RENAME_EXCHANGE = 2); False where that cannot be."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    current_folder = -100  # AT_FDCWD of <fcntl.h>
    return bool(renameat2(current_folder, os.fsencode(new), current_folder, os.fsencode(old), 2) == 0)


def _remove_leftovers(folder: Path) -> None:
    """Clear what a killed writer left; a half-done exchange (old one put aside, new one not yet there) is undone."""
    aside = folder.with_name(f".{folder.name}.old")
    if aside.exists() and not folder.exists():
        aside.rename(folder)
    shutil.rmtree(aside, ignore_errors=True)
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def _storage_error(error: OSError, folder: Path) -> StorageError:
    reason = {errno.ENOSPC: "a full disk", errno.EDQUOT: "a used-up quota", errno.EROFS: "a read-only disk"}
    found = reason.get(error.errno or 0, f"{type(error).__name__}: {error}")
    return StorageError(
        f"{found} while writing {folder}",
        expected="room and permission to write; what was there before is untouched",
        do="free space or mend the permission, then run the same command again",
    )


def install(new: Path, folder: Path) -> None:
    """Move a finished folder to its place, in exchange for what is there, in one step; then drop what was there."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        _exchange(new, folder)
        shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise _storage_error(error, folder) from error


def remove(folder: Path) -> None:
    """Delete an artefact, and what a killed writer of it left."""
    shutil.rmtree(folder, ignore_errors=True)
    _remove_leftovers(folder)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the file lock ``path`` for the block; the system frees it when the process ends, however it ends.

    Raises BusyError at once where another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            stream.seek(0)
            raise BusyError(
                f"{what} being run by process {stream.read().strip() or 'unknown'}",
                expected="one run of a stage and partition at a time",
                do="wait for it to end, or stop it, then run the same command again",
            ) from error
        stream.seek(0)
        stream.truncate()
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


def write_file(path: Path, content: str | bytes) -> None:
    """Replace one small file in one step (temporary file beside it, then rename)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        work.write_bytes(content.encode() if isinstance(content, str) else content)
        _sync(work)
        work.replace(path)
    except OSError as error:
        work.unlink(missing_ok=True)
        raise _storage_error(error, path) from error
