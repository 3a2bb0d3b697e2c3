"""What must hold before a version is tagged: version, changelog, git, the built files."""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Final

from supply import built, changelog
from xc_core.errors import RefusedError

_IMAGE: Final = re.compile(r"\bxc-platform:([\w.+-]*\w)")
"""The image with its tag, which is the version."""


def version_of(project: Path) -> str:
    """Return the version in the pyproject.toml of ``project``."""
    return str(tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def checks(project: Path, today: date) -> dict[str, Callable[[], Iterator[RefusedError]]]:
    """Return the checks of a release by name; each yields what does not hold."""
    version = version_of(project)
    return {
        f"version {version}": lambda: versions(project, version),
        "changelog": lambda: changelog.refusals(changelog.sections(project / "CHANGELOG.md"), version, today),
        "git": lambda: git(project, version),
        "sdist and wheel": lambda: files(project, version),
    }


def versions(project: Path, version: str) -> Iterator[RefusedError]:
    """Yield the places that name another version than pyproject.toml: the package, and the image in any tracked file.

    Lab notes and the changelog tell of the past, and tests make versions up.
    """
    said = re.search(r'^__version__ = "(.*)"$', (project / "xc_core/__init__.py").read_text("utf-8"), re.MULTILINE)
    if said is None or said[1] != version:
        yield _other_version("xc_core/__init__.py", said[1] if said else "no __version__", version)
    for name in sorted(built.tracked(project)):
        if name.startswith(("deploy/", "docs/", "Dockerfile")) and not name.startswith("docs/lab-notes/"):
            text = (project / name).read_text("utf-8", "replace") if (project / name).is_file() else ""
            for other in sorted(set(_IMAGE.findall(text)) - {version}):
                yield _other_version(name, f"xc-platform:{other}", version)


def git(project: Path, version: str) -> Iterator[RefusedError]:
    """Yield files that are not committed, and the tag of the version if it exists."""
    if changed := [line[3:] for line in _git(project, "status", "--porcelain").splitlines()]:
        yield RefusedError(
            f"differences from the commit in {built.listed(changed)}",
            expected="none",
            do="commit the files or remove them",
            where="git",
        )
    if tag := _git(project, "tag", "--list", f"v{version}").strip():
        do = "raise the version; a tag that others may have is never moved"
        yield RefusedError(f"the tag {tag}", expected="a version that was not released", do=do, where="git")


def files(project: Path, version: str) -> Iterator[RefusedError]:
    """Build the files of the release, and yield what is wrong with them."""
    known = built.tracked(project)
    with tempfile.TemporaryDirectory() as scratch:
        made = built.build(project, Path(scratch) / "dist")
        yield from built.sdist_refusals(built.in_sdist(made.sdist), known)
        yield from built.wheel_refusals(built.in_wheel(made.wheel), known)
        yield from built.run_refusals(made.wheel, version, Path(scratch))


def _other_version(where: str, found: str, version: str) -> RefusedError:
    do = f"write {version}, or change the version in pyproject.toml"
    return RefusedError(found, expected=f"the version of pyproject.toml, {version}", do=do, where=where)


def _git(project: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=project, capture_output=True, text=True, check=True).stdout
