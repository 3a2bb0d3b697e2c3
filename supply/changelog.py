"""The sections of CHANGELOG.md, and the rules for the top one before a version is tagged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from xc_core.errors import RefusedError

_HEADING: Final = re.compile(r"(?P<name>\S+)(?: \((?P<day>[^)]*)\))?")
"""A version or `Unreleased`, and a date in brackets."""
_FILE: Final = "CHANGELOG.md"


@dataclass(frozen=True)
class Section:
    """A section of the changelog: "## 0.2.0 (2026-11-23)", and what follows."""

    heading: str
    text: str

    @property
    def version(self) -> Version | None:
        """The version in the heading; None if there is none, as in "Unreleased"."""
        try:
            return Version(self._parts()[0])
        except InvalidVersion:
            return None

    @property
    def day(self) -> date | None:
        """The date in the heading; None if there is none or it is not one."""
        try:
            return date.fromisoformat(self._parts()[1])
        except ValueError:
            return None

    def _parts(self) -> tuple[str, str]:
        match = _HEADING.fullmatch(self.heading)
        return (match["name"], match["day"] or "") if match else (self.heading, "")


def sections(path: Path) -> list[Section]:
    """Return the sections of a changelog, top first: what follows each heading of level 2."""
    parts = re.split(r"^## +(.+?) *$", path.read_text("utf-8"), flags=re.MULTILINE)
    return [Section(heading, text.strip()) for heading, text in zip(parts[1::2], parts[2::2], strict=True)]


def refusals(found: list[Section], version: str, today: date) -> Iterator[RefusedError]:
    """Yield what is wrong with the top section for a release of ``version``, and with the order of all sections."""
    if not found:
        yield _refusal("no section", f"the section {version!r}", "write what changed for users")
        return
    top = found[0]
    heading = f"## {version} ({today})"
    if str(top.version) != version:
        do = f"rename it to `{heading}`, or change the version in pyproject.toml and xc_core/__init__.py"
        if version in {str(one.version) for one in found}:
            do = f"{version} is in the changelog already: raise the version in pyproject.toml and xc_core/__init__.py"
        yield _refusal(f"{top.heading!r} at the top", f"the version of pyproject.toml, {version}", do)
    elif top.day is None or top.day > today:
        yield _refusal(f"{top.heading!r} at the top", "a date in the heading, not in the future", f"write `{heading}`")
    if not [line for line in top.text.splitlines() if line.strip() and not line.startswith("#")]:
        yield _refusal(f"nothing below {top.heading!r}", "what changed for users", "write it, or do not release")
    versions = [one.version for one in found if one.version is not None]
    for newer, older in pairwise(versions):
        if newer <= older:
            yield _refusal(f"{newer} above {older}", "each version once, newest first", "fix the headings")


def _refusal(found: str, expected: str, do: str) -> RefusedError:
    return RefusedError(found, expected=expected, do=do, where=_FILE)
