"""The commit that a run's code comes from, and what differs from it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LARGEST: Final = 1_000_000
"""Largest new file, in bytes, that is part of a diff."""
_LONGEST: Final = 5000
"""Characters of a tag."""


@dataclass(frozen=True)
class Checkout:
    """The state of a git checkout: its commit, and everything that differs from it."""

    commit: str
    """The commit, without any suffix; "none" outside git."""
    root: Path | None = None
    changed: tuple[str, ...] = ()
    """Files that differ from the commit, new ones included."""
    diff: str = ""
    """All differences, as `git apply` reads them."""

    @property
    def changes(self) -> str:
        """The files that differ, in words, for a tag."""
        return ", ".join(self.changed)[:_LONGEST] or "nothing"


def project_checkout(root: Path) -> Checkout:
    """Return the git checkout of the project; that of this library if the project is not in git."""
    own = checkout(root)
    return own if own.root else checkout(Path(__file__).parent)


def checkout(folder: Path) -> Checkout:
    """Return the checkout that ``folder`` is in. Nothing of it changes.

    Ignored files, and new files above 1 MB, are not part of the diff.
    """
    root, commit = _git(folder, "rev-parse", "--show-toplevel").strip(), _git(folder, "rev-parse", "HEAD").strip()
    if not root or not commit:
        return Checkout("none")
    home = Path(root)
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        _git(home, "read-tree", "HEAD", **index)
        new = _git(home, "ls-files", "--others", "--exclude-standard", "-z", **index).split("\0")
        small = [name for name in new if name and (home / name).is_file() and (home / name).stat().st_size <= _LARGEST]
        if small:
            _git(home, "add", "--intent-to-add", "--", *small, **index)
        diff = _git(home, "diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", **index)
        names = _git(home, "diff", "HEAD", "--name-only", "-z", **index).split("\0")
    return Checkout(commit, home, tuple(name for name in names if name), diff)


def setting(folder: Path, name: str) -> str:
    """Return a setting of git, such as user.name; an empty string if it is not set."""
    return _git(folder, "config", name).strip()


def _git(folder: Path, *arguments: str, **environment: str) -> str:
    """Return what a git command prints, nothing if it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, check=False, env={**os.environ, **environment}
    )
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else ""
