"""Build the sdist and the wheel, and check what they hold and that the wheel works without the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from supply.sbom import empty_environment, install, site_packages
from xc_core.errors import RefusedError

PACKAGES: Final = ("assets", "pipelines", "xc_core")
"""Folders of the wheel."""
_SHOWN: Final = 5
"""File names that a message lists."""


@dataclass(frozen=True)
class Built:
    """The two files of a release."""

    sdist: Path
    wheel: Path


def build(project: Path, folder: Path) -> Built:
    """Build the sdist of ``project`` and, from it, the wheel into ``folder``; raise RefusedError if that fails."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(project)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stdout + done.stderr
        reason = (re.findall(r"^[\w.]*Error: .*", said, re.MULTILINE) or said.strip().splitlines() or ["no reason"])[-1]
        raise RefusedError(
            f"that the build fails: {reason}", expected="an sdist and a wheel", do=f"try `{' '.join(command)}`"
        )
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(sdist, wheel)


def tracked(project: Path) -> set[str]:
    """Return the files of ``project`` that git knows."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=project, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split("\0") if name}


def in_wheel(path: Path) -> set[str]:
    """Return the files in a wheel."""
    with zipfile.ZipFile(path) as wheel:
        return {name for name in wheel.namelist() if not name.endswith("/")}


def in_sdist(path: Path) -> set[str]:
    """Return the files in an sdist, without the folder that all of them are in."""
    with tarfile.open(path) as sdist:
        return {one.name.partition("/")[2] for one in sdist.getmembers() if one.isfile()}


def wheel_refusals(held: set[str], known: set[str]) -> Iterator[RefusedError]:
    """Yield what a wheel lacks or has too much: it holds the tracked files of PACKAGES, and its own metadata."""
    wanted = {name for name in known if name.split("/")[0] in PACKAGES}
    own = {name for name in held if name.split("/")[0].endswith(".dist-info")}
    yield from _differences("wheel", wanted - held, held - own - wanted)
    if not [name for name in own if name.endswith("/licenses/LICENSE")]:
        yield _refusal("wheel", "no LICENSE", "the licence in the metadata", "name it in `license-files`")


def sdist_refusals(held: set[str], known: set[str]) -> Iterator[RefusedError]:
    """Yield what an sdist lacks or has too much: it holds what the wheel is built from, and nothing of a project."""
    wanted = {name for name in known if name.split("/")[0] in PACKAGES}
    wanted |= {"CHANGELOG.md", "LICENSE", "README.md", "constraints.txt", "pyproject.toml"}
    yield from _differences("sdist", wanted - held, held - wanted - {"PKG-INFO", ".gitignore"})


def _differences(kind: str, missing: set[str], surplus: set[str]) -> Iterator[RefusedError]:
    table = f"[tool.hatch.build.targets.{kind}] of pyproject.toml"
    if missing:
        yield _refusal(kind, f"no {listed(missing)}", "every tracked file of the packages", f"fix {table}")
    if surplus:
        do = f"git add the file, delete it, or exclude it in {table}"
        yield _refusal(kind, f"also {listed(surplus)}", "only tracked files of the packages", do)


def listed(names: Iterable[str]) -> str:
    """Return the first names in order, and how many others there are."""
    shown = sorted(names)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def run_refusals(wheel: Path, version: str, scratch: Path) -> Iterator[RefusedError]:
    """Install a wheel alone into an empty environment, run ``xc`` there, and yield what is not as it should be.

    Its dependencies are those of this environment, at the end of the path, so that nothing is downloaded.
    """
    python = empty_environment(scratch / "environment")
    install(python, str(wheel), "--no-deps", "--no-index")
    (site_packages(python) / "dependencies.pth").write_text(f"{site_packages(Path(sys.executable))}\n")
    place = _output(python, scratch, "-c", "import xc_core; print(xc_core.__file__)")
    if not place.startswith(str(scratch)):
        yield _refusal("wheel", f"xc_core in {place}", "that of the wheel", "look at the files of the wheel")
    for option, expected in {"--version": f"xc, version {version}", "--help": "xc ingest FOLDER"}.items():
        if expected not in (said := _output(python, scratch, str(python.with_name("xc")), option)):
            last = (said.strip().splitlines() or ["nothing"])[-1]
            yield _refusal("wheel", f"that `xc {option}` says {last!r}", repr(expected), "make them equal")


def _output(python: Path, folder: Path, *arguments: str) -> str:
    """Return what a program of an environment prints, errors too; it sees no code of the checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "XC_"))}
    done = subprocess.run([str(python), *arguments], cwd=folder, env=clean, capture_output=True, text=True)
    return done.stdout + done.stderr


def _refusal(where: str, found: str, expected: str, do: str) -> RefusedError:
    return RefusedError(found, expected=expected, do=do, where=where)
