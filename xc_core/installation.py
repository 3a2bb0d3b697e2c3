"""Compare the installation with the code: after ``git pull``, an editable installation is that of the old code."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from xc_core.errors import ConfigError
from xc_core.visible import listed

_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_NAME: Final = re.compile(r"[\w.-]+", re.ASCII)
_OURS: Final = "xc."
"""How the groups of entry points begin that are compared."""
_SHOWN: Final = 3


def outdated(checkout: Path = _CHECKOUT) -> ConfigError | None:
    """Return an error, for the caller to show or raise, if the installation is not that of the code in ``checkout``.

    Compared are the entry points; packages that are required now and were not then must be there. A wheel always has
    those of its code.
    """
    try:
        project: dict[str, Any] = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]
        installed = metadata.distribution(project["name"])
    except (OSError, ValueError, KeyError, metadata.PackageNotFoundError):
        return None
    declared = {
        (group, name, value)
        for group, entries in project.get("entry-points", {}).items()
        for name, value in entries.items()
        if group.startswith(_OURS)
    }
    entries = [entry for entry in installed.entry_points if entry.group.startswith(_OURS)]
    installed_entries = {(entry.group, entry.name, entry.value) for entry in entries}
    required = [line for line in installed.requires or () if "extra ==" not in line]
    differing = sorted({f"{group} {name}" for group, name, _ in declared ^ installed_entries})
    differing += [name for name in sorted(_names(project.get("dependencies", [])) - _names(required)) if _absent(name)]
    if not differing:
        return None
    return ConfigError(
        f"an installation of another version of this code; they differ in {listed(differing, _SHOWN)}",
        expected="the installation of this code; until then commands may fail, be missing or leave things out",
        do=f"in {checkout}, with the extras that you use: pip install -c constraints.txt -e '.[cpu,minilm,dev]'",
    )


def _names(requirements: list[str]) -> set[str]:
    """Return the names of packages, in the form in which they are compared."""
    return {re.sub(r"[-_.]+", "-", match[0]).lower() for line in requirements if (match := _NAME.match(line))}


def _absent(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return True
    return False
