"""The only writer of folders: an artefact appears whole, with a manifest of hashes, or not at all.

Takes: a path and a function that fills a folder.  Gives: Manifest.
May import: errors.                                Never: interprets what an artefact holds.

An artefact is a folder with ``manifest.json`` written last. A new one is built beside the old one and exchanged
with it in one system call, so a reader sees the old or the new, never a mixture and (on Linux) never neither.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

from xc_core.errors import BusyError, CorruptError, MissingError, storage_error, storage_reason

T = TypeVar("T")

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
"""Version of the manifest's own layout."""
_RETRY_SECONDS: Final = 0.05


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
        return canonical({"kind": self.kind, "format": self.format, "facts": self.facts, "files": self.files})


def canonical(content: object) -> str:
    """Return ``content`` as JSON, the same bytes for the same content; numbers that are not finite become null."""
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
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_manifest(folder: Path, kind: str = "") -> Manifest:
    """Return the manifest of the artefact at ``folder``, unverified; ``kind`` says in an error what was looked for.

    Raises MissingError where there is no artefact, CorruptError where its manifest cannot be read.
    """
    path, mend = folder / MANIFEST, _how_to_make(kind)
    if not path.is_file():
        raise MissingError(f"no artefact at {folder}", expected=f"a folder with {MANIFEST}", do=mend)
    try:
        content = json.loads(path.read_text("utf-8"))
        files = {name: {"bytes": f["bytes"], "sha256": f["sha256"]} for name, f in content["files"].items()}
        manifest = Manifest(content["kind"], dict(content["facts"]), files, content["format"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"an unreadable {path} ({type(error).__name__}: {error})"
        raise CorruptError(found, expected="JSON with kind, format, facts, files", do=mend) from error
    if manifest.format != FORMAT:
        raise CorruptError(f"format {manifest.format} in {path}", expected=f"format {FORMAT}", do=mend)
    return manifest


def _how_to_make(kind: str) -> str:
    stage = kind or "STAGE"
    return f"make it anew: xc run {stage} --force, with its --dataset (and --recipe); or `dvc pull` from a remote"


def steady(folder: Path, read: Callable[[], T]) -> T:
    """Return what ``read`` returns, all of one artefact: where ``folder`` is replaced meanwhile, it is read again.

    Errors that ``read`` raises over files of two artefacts are no errors of either, and are not raised.
    """
    while True:
        before = _identity(folder)
        try:
            found = read()
        except Exception:
            if _identity(folder) == before:
                raise
        else:
            if _identity(folder) == before:
                return found


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells one folder from the next at the same path; an inode number alone may be used again."""
    with contextlib.suppress(OSError):
        facts = folder.stat()
        return facts.st_ino, facts.st_ctime_ns
    return None


def verify(folder: Path, *, kind: str | None = None) -> Manifest:
    """Return the manifest after checking kind, presence, size and SHA-256 of every file.

    Raises MissingError, CorruptError.
    """
    return steady(folder, lambda: _verified(folder, kind))


def _verified(folder: Path, kind: str | None) -> Manifest:
    manifest = read_manifest(folder, kind or "")
    if kind is not None and manifest.kind != kind:
        raise CorruptError(
            f"an artefact of kind {manifest.kind!r} at {folder}",
            expected=f"kind {kind!r}",
            do="give the right folder",
        )
    check_sizes(folder, manifest)
    for name, facts in manifest.files.items():
        if sha256_file(folder / name) != facts["sha256"]:
            raise CorruptError(
                f"{folder / name} with another content than was written",
                expected=f"SHA-256 {facts['sha256'][:16]}..., as the manifest says",
                do=_how_to_make(manifest.kind),
            )
    return manifest


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise CorruptError where a file is missing or of another size: what can be seen without reading content."""
    for name, facts in manifest.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != facts["bytes"]:
            raise CorruptError(
                f"no file {path}" if size is None else f"{path} of {size} bytes",
                expected=f"{facts['bytes']} bytes, as the manifest says",
                do=_how_to_make(manifest.kind),
            )


@contextlib.contextmanager
def building(folder: Path, *, kind: str) -> Iterator[Build]:
    """Yield a Build whose ``path`` is an empty folder; at the end it becomes ``folder``, manifest last.

    Where the block raises, nothing changes. Raises StorageError where the disk is full or not writable.
    """
    work = _work(folder)
    with _writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        work.mkdir()
    build = Build(work)
    try:
        yield build
        _seal(work, kind, build.facts)
        _exchange(work, folder)
    except Exception as error:
        if reason := storage_reason(error, folder):
            raise storage_error(reason, folder) from error
        raise
    finally:
        _drop(work)


@dataclass
class Build:
    """An artefact in the making: write files under ``path``, put what is worth knowing into ``facts``."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def json(self, name: str, content: object) -> None:
        """Write ``content`` as canonical JSON."""
        (self.path / name).write_text(canonical(content), "utf-8")


def _seal(work: Path, kind: str, facts: Mapping[str, Any]) -> None:
    files = {}
    for path in sorted(work.rglob("*")):
        if path.is_file():
            files[path.relative_to(work).as_posix()] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        _sync(path)
    (work / MANIFEST).write_text(Manifest(kind, facts, files).to_json(), "utf-8")
    _sync(work / MANIFEST)
    _sync(work)


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
        _drop(aside)
    _sync(old.parent)


def _renameat2_exchange(new: Path, old: Path) -> bool:
    """Exchange two folders atomically (Linux renameat2, flag RENAME_EXCHANGE = 2); False where that cannot be."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    current_folder = -100  # AT_FDCWD of <fcntl.h>
    return bool(renameat2(current_folder, os.fsencode(new), current_folder, os.fsencode(old), 2) == 0)


def _work(path: Path) -> Path:
    """Return the name under which this process makes what becomes ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _remove_leftovers(path: Path) -> None:
    """Clear what a killed writer left; a half-done exchange (old one put aside, new one not yet there) is undone."""
    aside = path.with_name(f".{path.name}.old")
    if aside.exists() and not path.exists():
        aside.rename(path)
    _drop(aside)
    work = re.compile(rf"\.{re.escape(path.name)}\.\d+\.tmp")  # not a glob: "a" must not take the work of "a.b"
    for neighbour in path.parent.iterdir():
        if work.fullmatch(neighbour.name):
            _drop(neighbour)


def _drop(path: Path) -> None:
    """Delete a folder or file, if it is there and as far as it can be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn what the system refuses in the block into a StorageError."""
    try:
        yield
    except OSError as error:
        raise storage_error(storage_reason(error, path) or str(error), path) from error


def reserve(path: Path) -> None:
    """Claim the disk space of a file made large and empty, to be mapped.

    A write into a mapped hole on a full disk kills the process (SIGBUS); here it is an OSError before the first write.
    """
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)


def install(new: Path, folder: Path) -> None:
    """Move a finished folder, maybe of another disk, to its place in exchange for what is there, which is dropped."""
    work = _work(folder)
    try:
        with _writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(folder)
            shutil.move(new, work)
            _exchange(work, folder)
    finally:
        _drop(work)


def remove(folder: Path) -> None:
    """Delete an artefact, and what a killed writer of it left."""
    _drop(folder)
    if folder.parent.is_dir():
        _remove_leftovers(folder)


@contextlib.contextmanager
def locked(path: Path, what: str, *, patience: float = 0.0) -> Iterator[None]:
    """Hold the file lock ``path`` for the block; the system frees it when the process ends, however it ends.

    Raises BusyError where another process holds it, at once or after ``patience`` seconds of waiting.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+")
    with stream:
        _lock(stream, what, time.monotonic() + patience)
        stream.seek(0)
        stream.truncate()
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


def _lock(stream: TextIO, what: str, until: float) -> None:
    while True:
        try:
            return fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() >= until:
                stream.seek(0)
                raise BusyError(
                    f"{what} being run by process {stream.read().strip() or 'unknown'}",
                    expected="one run at a time",
                    do="wait for it to end, or stop it, then run the same command again",
                ) from error
            time.sleep(_RETRY_SECONDS)


def write_file(path: Path, content: str | bytes) -> None:
    """Replace one small file in one step (temporary file beside it, then rename)."""
    work = _work(path)
    try:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(path)
            work.write_bytes(content.encode() if isinstance(content, str) else content)
            _sync(work)
            work.replace(path)
    finally:
        _drop(work)
