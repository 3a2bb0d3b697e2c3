"""Which installed packages the project needs: its requirements, those of its extras, and theirs in turn."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from xc_core.errors import MissingError


def needed(project: Path, extras: Iterable[str], place: Path | None = None) -> list[Distribution]:
    """Return the packages that ``project`` with ``extras`` needs, by name, without itself.

    ``project`` is a folder with a pyproject.toml, ``place`` a folder of installed packages; None is this environment.
    Raises MissingError if a package is not installed.
    """
    found = installed(place)
    visited: set[tuple[str, str]] = set()
    own, waiting = _of_project(project, extras)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        new = {(name, extra) for extra in ("", *requirement.extras)} - visited
        visited |= new
        if name == own:
            waiting += _of_project(project, requirement.extras)[1]
        elif name in found:
            waiting += [other for _, extra in new for other in _of(found[name], extra)]
    names = {name for name, _ in visited} - {own}
    if absent := sorted(names - found.keys()):
        raise MissingError(
            f"packages that are not installed: {', '.join(absent)}",
            expected=f"an environment with the extras {', '.join(extras)}",
            do=f"pip install -c constraints.txt -e '.[{','.join(extras)}]'",
        )
    return [found[name] for name in sorted(names)]


def installed(place: Path | None = None) -> dict[str, Distribution]:
    """Return the packages of a folder, or of this environment, by normalised name; the first of a name counts."""
    found: dict[str, Distribution] = {}
    for one in distributions(path=[str(place)]) if place else distributions():
        found.setdefault(canonicalize_name(one.name), one)
    return found


def _of_project(project: Path, extras: Iterable[str]) -> tuple[str, list[Requirement]]:
    """Return the normalised name of a project, and its requirements with those of ``extras``."""
    content = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    optional = content.get("optional-dependencies", {})
    if unknown := sorted(set(extras) - optional.keys()):
        raise MissingError(
            f"the extras {', '.join(unknown)}",
            expected=f"some of {', '.join(optional)}",
            do="fix the name",
            where=f"{project.name}/pyproject.toml",
        )
    texts = [*content.get("dependencies", []), *(text for extra in extras for text in optional[extra])]
    return canonicalize_name(content["name"]), [one for one in map(Requirement, texts) if _applies(one, "")]


def _of(distribution: Distribution, extra: str) -> Iterator[Requirement]:
    """Yield what an installed package requires with ``extra``, on this platform."""
    for text in distribution.requires or ():
        requirement = Requirement(text)
        if _applies(requirement, extra):
            yield requirement


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
