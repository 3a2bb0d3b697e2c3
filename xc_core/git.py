"""The commit that a run's code comes from, and what differs from it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from xc_core.causes import storage_error, storage_reason
from xc_core.confidential import why_confidential
from xc_core.errors import first_line
from xc_core.leftovers import temporary_folder

_LARGEST: Final = 1_000_000
"""Largest new file, in bytes, that is part of a diff."""
_LONGEST: Final = 5000
"""Characters of a tag."""
_DIFF: Final = (
    *("diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)
"""The difference as `git apply` reads it, whatever the settings of git are."""
_GIT_VARIABLES: Final = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
)
"""Where git finds a repository. Git sets them for a hook; here it is the repository that a folder is in."""
_CHANGED: Final = ("diff", "HEAD", "--name-only", "--no-renames")
_NEW: Final = ("ls-files", "--others", "--exclude-standard")
_ADD: Final = (
    *("--literal-pathspecs", "add", "--intent-to-add"),
    *("--pathspec-from-file=-", "--pathspec-file-nul"),
)
"""Adds files whose names it reads: git takes ``:memory:`` for a pattern, and a command line has a limit."""


class _GitError(Exception):
    """What git said when a command of it failed."""


@dataclass(frozen=True)
class Checkout:
    """The state of a git checkout: its commit, and everything that differs from it."""

    commit: str
    """The commit, without any suffix; "none" outside git."""
    root: Path | None = None
    changed: tuple[str, ...] = ()
    """Files in ``diff``: those that differ from the commit, new ones included."""
    diff: str = ""
    """Their differences, as `git apply` reads them; bytes that are not UTF-8 are surrogates (``surrogateescape``)."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Files that differ and are not in ``diff``, and why: they are large, no files, or may hold a secret."""

    @property
    def changes(self) -> str:
        """The files that differ, in words, for a tag; first those that are not in ``diff``."""
        left_out = ", ".join(f"{name} ({reason})" for name, reason in self.left_out.items())
        parts = [f"not recorded: {left_out}" if left_out else "", ", ".join(self.changed)]
        return _storable("; ".join(filter(None, parts)))[:_LONGEST] or "nothing"


def _storable(text: str) -> str:
    """Return a text of git with U+FFFD for what is not UTF-8, which MLflow's database refuses."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def project_checkout(root: Path) -> Checkout:
    """Return the git checkout of the project; that of this library if the project is not in git."""
    project = checkout(root)
    return project if project.root else checkout(Path(__file__).parent)


def checkout(folder: Path) -> Checkout:
    """Return the checkout that ``folder`` is in. Nothing of it changes.

    Ignored files are not part of it. New files above 1 MB, links to folders, repositories in this one, and files that
    may hold a secret, are left out of the diff; so is everything, with the reason, if git fails. Raises StorageError if
    the disk of temporary files is full.
    """
    root, _, commit = _output_or_nothing(folder, "rev-parse", "--show-toplevel", "HEAD").strip().rpartition("\n")
    if not root:
        return Checkout("none")
    home = Path(root)
    with temporary_folder() as scratch:
        index = {"GIT_INDEX_FILE": str(scratch / "index")}
        with suppress(_GitError):  # as of a new file that was deleted meanwhile; the second time it is not listed
            return _checkout_at(home, commit, index)
        try:
            return _checkout_at(home, commit, index)
        except _GitError as error:
            if reason := storage_reason(error, scratch):
                raise storage_error(reason, scratch) from error
            return Checkout(commit, home, left_out={"all that differs from the commit": first_line(error)})


def _checkout_at(home: Path, commit: str, index: dict[str, str]) -> Checkout:
    """Return a checkout, compared with its commit in a new ``index``; raise _GitError if a command of git fails."""
    _output(home, "read-tree", "HEAD", **index)  # git takes an index that is missing for one of deleted files
    _output(home, "update-index", "-q", "--refresh", **index)  # so that the commands below read no file again
    names = _names(home, _CHANGED, index)
    left_out = {name: reason for name in names if (reason := _reason_changed(home, name, index))}
    new_names = (name for name in _names(home, _NEW, index) if os.path.lexists(home / name))
    added = {name: _reason_new(home / name, name) for name in new_names}
    if included := [name for name, reason in added.items() if not reason]:
        _output(home, *_ADD, names=included, **index)
        names = _names(home, _CHANGED, index)
    changed = tuple(name for name in names if name not in left_out)
    hidden = [f":(top,exclude,literal){name}" for name in left_out]
    diff = _output(home, *_DIFF, "--", ":/", *hidden, **index)
    left_out |= {name: reason for name, reason in added.items() if reason}
    return Checkout(commit, home, changed, diff, left_out)


def _names(home: Path, command: tuple[str, ...], index: dict[str, str]) -> list[str]:
    """Return the file names that a git command prints."""
    return [name for name in _output(home, *command, "-z", **index).split("\0") if name]


def _reason_changed(home: Path, name: str, index: dict[str, str]) -> str:
    """Return why the difference of a tracked file is left out: what it shows, lines around it included."""
    diff = os.fsencode(_output(home, *_DIFF, "--", f":(top,literal){name}", **index))
    is_binary = b"\nGIT binary patch\n" in diff and (home / name).is_file()
    return why_confidential(name, (home / name).read_bytes() if is_binary else diff)


def _reason_new(path: Path, name: str) -> str:
    """Return why a new file is left out, or what git lists as one."""
    if path.is_dir():
        return "a link to a folder" if path.is_symlink() else "a repository of its own"
    try:
        if path.stat().st_size > _LARGEST:
            return "larger than 1 MB"
        return why_confidential(name, path.read_bytes())
    except OSError:  # git could not read it either, or it is gone
        return "not readable"


def setting(folder: Path, name: str) -> str:
    """Return a setting of git, such as user.name, with U+FFFD for what is not UTF-8; empty if it is not set."""
    return _storable(_output_or_nothing(folder, "config", name).strip())


def tracked(folder: Path, paths: Collection[Path]) -> list[str]:
    """Return the files under ``paths`` that git tracks, relative to ``folder``; none outside git."""
    names = _output_or_nothing(folder, "ls-files", "-z", "--", *map(str, paths)) if paths else ""
    return [name for name in names.split("\0") if name]


def trouble(folder: Path) -> str:
    """Return why git names no commit of a folder; an empty string if it names one, or the folder is not in git."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return ""
    try:
        result = _run(folder, ("log", "-1", "--format=%H"), {})
    except FileNotFoundError:
        return "git is not installed"
    return "" if result.returncode == 0 else result.stderr.decode("utf-8", "replace").strip().partition("\n")[0]


def _output_or_nothing(folder: Path, *arguments: str, names: Iterable[str] = (), **environment: str) -> str:
    """Return the output of a git command that reads ``names``; nothing if it fails or git is not installed."""
    try:
        return _output(folder, *arguments, names=names, **environment)
    except (FileNotFoundError, _GitError):
        return ""


def _output(folder: Path, *arguments: str, names: Iterable[str] = (), **environment: str) -> str:
    """Return the output of a git command that reads ``names``; raise _GitError if it fails."""
    result = _run(folder, arguments, environment, b"\0".join(map(os.fsencode, names)))
    if result.returncode:
        raise _GitError(result.stderr.decode("utf-8", "replace"))
    return result.stdout.decode("utf-8", "surrogateescape")


def _run(
    folder: Path, arguments: tuple[str, ...], environment: dict[str, str], stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    variables = {**outside_hooks(), **environment}
    return subprocess.run(["git", *arguments], cwd=folder, env=variables, input=stdin, capture_output=True, check=False)


def outside_hooks() -> dict[str, str]:
    """Return the environment of git and of what calls it: without the repository of a hook that started this process.

    Git speaks English: its words become part of messages, and by them a full disk is known. LC_ALL would change the
    encoding of other programs too.
    """
    variables = {name: value for name, value in os.environ.items() if name not in _GIT_VARIABLES}
    return {**variables, "LANGUAGE": "en"}
