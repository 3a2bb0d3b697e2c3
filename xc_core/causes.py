"""The cause of an error that the system, or a library, raises: a full disk, no permission, too little memory."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

from xc_core.errors import ConfigError, MissingError, ShortageError, StorageError, XCError, bare, first_line

_REFUSALS: Final = {
    errno.ENOSPC: "a full disk",
    errno.EDQUOT: "an exhausted quota",
    errno.EROFS: "a read-only disk",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EIO: "a failing disk",
    errno.EFBIG: "a limit on the size of files",
    errno.ENOTDIR: "a file where a folder should be",
    errno.EEXIST: "a file that exists",
    errno.EISDIR: "a folder where a file should be",
    errno.ENAMETOOLONG: "a name that is too long",
    errno.ELOOP: "a symbolic link that leads to itself",
}
_WRITE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EEXIST)
"""Error numbers that reading never has."""
_IN_THE_WAY: Final = tuple(_REFUSALS[number] for number in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP))
"""Refusals that neither space nor permission would end."""
_NO_FILES: Final = "a folder that takes no files"
"""/proc, for one: it has no free space either, but says of a new file that there is no such file."""
_REMEDIES: Final = {errno.EFBIG: "raise the limit (ulimit -f)", errno.ENAMETOOLONG: "use a shorter name or path"}
LINK_LOOP: Final = "Symlink loop from"
"""What Path.resolve writes in a RuntimeError, up to Python 3.12."""
_ERRNO_OF_MESSAGE: Final = {
    # the C library, whose words other libraries repeat
    **{os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)},
    # sqlite
    "database or disk is full": errno.ENOSPC,
    "attempt to write a readonly database": errno.EACCES,
    "disk I/O error": errno.EIO,
    "unable to open database file": 0,
    # git
    "Out of diskspace": errno.ENOSPC,
    # Python
    "No usable temporary directory found": 0,
    LINK_LOOP: errno.ELOOP,
}
"""What is written instead of an error number; 0 if it need not be the disk."""
_LOCKED: Final = "database is locked"
"""What sqlite says if another process has kept a file locked for some seconds, or if its disk gives no locks."""
_PANIC: Final = "PanicException"
"""Name of the class of a panic in the Rust code of a library, which no module exports; it is no Exception."""
_LIMIT_MESSAGES: Final = ("can't start new thread", os.strerror(errno.EAGAIN), os.strerror(errno.EMFILE))
"""What Python and the C library say of one thread, process or file too many; a panic has no error number."""
_LOADER_MESSAGE: Final = "failed to map segment from shared object"
"""What the loader says of a library for want of memory, and on a disk that is mounted noexec."""
_MEMORY_MESSAGES: Final = ("allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What errors that are no MemoryError say: the C library ("Cannot allocate memory"), torch on a CPU ("can't
allocate memory"), and torch if a GPU has no memory left for what is no tensor, such as its context."""
_NO_CARD_MEMORY: Final = "OutOfMemoryError"
"""Name of torch's class of an allocation that a GPU refuses; torch is not imported here."""
UNTOUCHED: Final = "; existing files are untouched"
"""What a StorageError promises; a caller that changes several things one after the other has to take it back."""
_FULL_BYTES: Final = 1 << 16
"""A disk with fewer free bytes counts as full: some libraries fail on a full disk without giving the reason."""


def storage_reason(error: Exception, path: Path) -> str:
    """Return why the disk of ``path`` refused a write, or an empty string if ``error`` has another cause.

    Not all writers raise an OSError with an error number: safetensors, polars, tokenizers, numpy, faiss and sqlite each
    report a full disk in their own way.
    """
    error = _first_error(error)
    number = error.errno or 0 if isinstance(error, OSError) else 0
    if number in _REFUSALS:
        return f"{_REFUSALS[number]} ({error})"
    if isinstance(error, XCError):
        return ""
    matches = ((phrase, value) for phrase, value in _ERRNO_OF_MESSAGE.items() if phrase in str(error))
    existing, other_number = _existing_part(path), number
    phrase, number = next(matches, ("", 0))
    if other_number and not phrase:
        return f"{_NO_FILES} ({error})" if other_number == errno.ENOENT and _takes_no_file(existing) else ""
    line = next((line for line in str(error).splitlines() if phrase in line), "")
    if phrase and number in (0, errno.EACCES, errno.EIO):
        number = _refusal_number(existing if existing.is_dir() else existing.parent, number)
    if number in (0, errno.EIO) and shutil.disk_usage(existing).free < _FULL_BYTES:
        number = errno.ENOSPC
    return f"{_REFUSALS[number]} ({line or 'no reason given'})" if number else ""


def is_locked(error: Exception) -> bool:
    """Return True if sqlite, or what uses it, says that a database is locked."""
    return _LOCKED in str(error)


def is_panic(error: BaseException) -> bool:
    """Return True for a panic in the Rust code of a library."""
    return type(error).__name__ == _PANIC


def _first_error(error: Exception) -> Exception:
    """Return the first error of a folder that was copied: shutil lists them all, as texts without error numbers."""
    if not isinstance(error, shutil.Error) or not isinstance(error.args[0], list):
        return error
    source, target, message = error.args[0][0]
    number = re.match(r"\[Errno (\d+)\] ([^:]+)", message)
    name = source if message.endswith(f": {source!r}") else target
    return OSError(int(number[1]), number[2], name) if number else error


def _existing_part(path: Path) -> Path:
    """Return ``path``, or the innermost folder of it that is there and can be reached."""
    return next(folder for folder in (path, *path.absolute().parents) if os.access(folder, os.F_OK))


def _refusal_number(folder: Path, number: int) -> int:
    """Return the error number with which ``folder`` refuses a new file; ``number`` if it takes one. sqlite has none."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.errno if error.errno in _REFUSALS else number
    return number


def _takes_no_file(folder: Path) -> bool:
    """Return True if ``folder`` says of a new file that it does not exist."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except FileNotFoundError:
        return folder.is_dir()
    except OSError:
        return False
    return False


def shortage(error: BaseException) -> ShortageError | None:
    """Return the error of an allocation, or of a limit on files or threads; None if ``error`` has another cause.

    torch raises a RuntimeError on a CPU and an OutOfMemoryError on a GPU, numpy and Python raise a MemoryError.
    """
    if isinstance(error, XCError):
        return None
    if any(words in str(error) for words in _LIMIT_MESSAGES):
        return ShortageError(
            f"a limit of the system ({first_line(error)})",
            expected="enough open files, processes and threads for this user",
            do="raise the limit (ulimit -n, ulimit -u), or end other processes, then run the same command again",
        )
    if line := next((line for line in str(error).splitlines() if _LOADER_MESSAGE in line), ""):
        return ShortageError(
            f"a library that cannot be loaded ({bare(line.strip(), 200)})",
            expected="memory for it, and a disk that is not mounted noexec",
            do="raise the limit (ulimit -v), use a machine with more memory, or put the installation on another disk",
        )
    memory = isinstance(error, MemoryError) or type(error).__name__ == _NO_CARD_MEMORY
    if not memory and not any(words in str(error).partition("\n")[0] for words in _MEMORY_MESSAGES):
        return None
    gpu_advice = ", or end other work on the GPU (nvidia-smi lists it)" if "CUDA" in str(error) else ""
    return ShortageError(
        f"too little memory ({first_line(error)})",
        expected="memory for the sizes in the settings and the data",
        do="lower batch_size, tokens_per_pass, width or max_length; in the stage encoder set cache to true, and "
        f"scorer.cache if there is one; or use a machine with more memory{gpu_advice}",
    )


def storage_error(reason: str, path: Path, error: Exception | None = None) -> StorageError:
    """Return the error for a write to ``path`` that failed for ``reason``.

    If ``error`` happened while ``path`` was built, it may be one of reading: it names another file, or none for a
    failing disk.
    """
    error = error and _first_error(error)
    if reason.startswith(_IN_THE_WAY):
        return StorageError(
            f"{reason} while writing {path}",
            expected=f"a path without a file or link in the way{UNTOUCHED}",
            do="move the file or link away, or fix the link, then run the same command again",
        )
    if reason.startswith(_NO_FILES):
        return StorageError(
            f"{reason} while writing {path}", expected=f"a folder of a disk{UNTOUCHED}", do="choose another folder"
        )
    other_file = _names_another(error, path)
    if other_file or (isinstance(error, OSError) and error.errno == errno.EIO and error.filename is None):
        return StorageError(
            reason if other_file else f"{reason} while building {path}",
            expected=f"files that can be read, and permission to do so{UNTOUCHED}",
            do="fix the permission or the disk, then run the same command again",
        )
    remedy = next((words for number, words in _REMEDIES.items() if reason.startswith(_REFUSALS[number])), "")
    denied = reason.startswith(_REFUSALS[errno.EACCES])
    fix = f"{_permission_advice(path)} ({owners(path)})" if denied else remedy or "free space or fix the permission"
    needs = "a file that can be written" if remedy else "free space and permission to write"
    return StorageError(
        f"{reason} while writing {path}",
        expected=f"{needs}{UNTOUCHED}",
        do=f"{fix}, then run the same command again",
    )


def resolved(path: Path) -> Path:
    """Return ``path.resolve()``; raise RuntimeError (to Python 3.12) or OSError for a link that leads to itself.

    Later versions of Python return the link.
    """
    found = path.resolve()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        found.stat()
    return found


def check_name(path: Path) -> None:
    """Raise ConfigError for a path that libraries would not find: they ask the system for its name in UTF-8.

    The name is not UTF-8, or the locale is not and the process has read it as other characters.
    """
    with contextlib.suppress(UnicodeEncodeError):
        if str(path).encode() == os.fsencode(path):
            return
    raise name_error(str(path))


def name_error(name: str) -> ConfigError:
    """Return the error for a name that the process cannot give to the system or to a library (``check_name``)."""
    encoding, raw = sys.getfilesystemencoding(), name.encode("utf-8", "surrogateescape")
    with contextlib.suppress(UnicodeEncodeError):  # one that comes from a file, not from the system
        raw = os.fsencode(name)
    shown = raw.decode("utf-8", "backslashreplace")
    if shown.encode() != raw:
        return ConfigError(
            f"{shown}, a name that is not UTF-8",
            expected="names in UTF-8: the libraries that read and write files take no others",
            do="rename that file or folder",
        )
    return ConfigError(
        f"{shown} in a process that reads names as {encoding}, because of its locale",
        expected="a locale with UTF-8: the libraries that read and write files take names in UTF-8",
        do="set LC_ALL=C.UTF-8 and unset PYTHONUTF8, or use a path without such characters",
    )


def _is_of_a_name(error: UnicodeEncodeError) -> bool:
    """Return True for characters that the locale lacks, or that stand for bytes of a name that is not UTF-8."""
    escaped = any("\udc80" <= character <= "\udcff" for character in error.object[error.start : error.end])
    return escaped or "utf-8" not in (error.encoding, sys.getfilesystemencoding())


def _permission_advice(path: Path) -> str:
    """Return who can give the permission to write a path: this user, or its owner."""
    owner = _existing_part(path).stat().st_uid
    return "fix the permission" if os.geteuid() in (0, owner) else "ask the owner to let you write"


def explanation(error: BaseException) -> XCError | None:
    """Return the error for one that no code expected, if its cause is memory, a limit, a disk, a permission or a name.

    None for a fault of software.
    """
    if (short := shortage(error)) is not None:
        return short
    if isinstance(error, UnicodeEncodeError):
        return name_error(error.object) if _is_of_a_name(error) else None
    if isinstance(error, FileNotFoundError) and (gone := _in_deleted_folder(error)) is not None:
        return gone
    if not isinstance(error, OSError) and not (isinstance(error, RuntimeError) and LINK_LOOP in str(error)):
        return None
    if not (reason := storage_reason(error, _current_folder())):
        return None
    name = error.filename if isinstance(error, PermissionError) else None
    whose = f" ({owners(Path(os.fsdecode(name)))})" if isinstance(name, str | bytes) else ""
    return StorageError(
        reason,
        expected="free space, and permission to read and write",
        do=f"free space, or fix the permission{whose} or the link, then try again",
    )


def deleted_folder() -> MissingError | None:
    """Return the error of a current folder that was deleted; None if it is there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        found = "a current folder that was deleted"
        return MissingError(found, expected="a folder", do="change into the project's folder")
    return None


def _in_deleted_folder(error: FileNotFoundError) -> MissingError | None:
    """Return the same for an error that names no file, or one by a relative path; None for any other cause."""
    names_place = isinstance(error.filename, str) and Path(error.filename).is_absolute()
    return None if names_place else deleted_folder()


def _current_folder() -> Path:
    """Return the current folder, or the root if that was deleted."""
    with contextlib.suppress(OSError):
        return Path.cwd()
    return Path("/")


def owners(path: Path) -> str:
    """Return owner, group and mode of a path, or of its innermost folder that is there, and of the folder above."""
    rows = []
    for folder in (existing := _existing_part(path), existing.absolute().parent):
        with contextlib.suppress(OSError):
            status = folder.stat()
            owner, group = str(status.st_uid), str(status.st_gid)
            with contextlib.suppress(KeyError):  # of another machine, or of a container
                owner, group = folder.owner(), folder.group()
            rows.append(f"{folder} belongs to {owner}:{group}, mode {stat.filemode(status.st_mode)}")
    return "; ".join(rows)


def _names_another(error: Exception | None, path: Path) -> bool:
    """Return True if an error that reading may have names a file that is neither ``path``, nor in it, nor above it.

    A temporary name of ``path`` is in it (``leftovers.work``).
    """
    if not isinstance(error, OSError) or error.errno in _WRITE_ERRORS or not isinstance(error.filename, str | bytes):
        return False
    named, target = Path(os.fsdecode(error.filename)).absolute(), path.absolute()
    temporary = str(named).startswith(str(target.with_name(f".{target.name}.")))
    return not (temporary or named.is_relative_to(target) or target.is_relative_to(named))
