"""The SBOM of a release: a CycloneDX document that lists every package of its environment.

The environment is made for it: the wheel with the extras of a release and the pinned versions, and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, Final

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from supply.installed import installed
from supply.licences import licence
from supply.rules import Rules
from xc_core.errors import DataError, MissingError, UnavailableError

VERSION: Final = "1.6"
"""Of CycloneDX."""


def empty_environment(folder: Path) -> Path:
    """Make an environment without any package, not even pip; return its Python."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    return folder / "bin" / "python"


def install(python: Path, requirement: str, *options: str) -> None:
    """Install ``requirement`` into the environment of ``python``; raise UnavailableError if pip fails."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(
            f"that pip cannot install {requirement}: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}",
            expected="a package index that has every pinned version",
            do=f"try `{' '.join(command)}` by hand",
        )


def site_packages(python: Path) -> Path:
    """Return the folder of an environment that packages are installed into."""
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def described(python: Path, project: Path, seconds: int, rules: Rules) -> str:
    """Return the SBOM of the environment of ``python``, the same text for the same packages.

    ``project`` is the folder of the pyproject.toml that describes the release, ``seconds`` the time of the SBOM since
    1970. Raise DataError if the SBOM is not valid, or names a folder of this machine.
    """
    text = _with_licences(_described(python, project, seconds), installed(site_packages(python)), rules)
    check(text, (python.parent.parent, project, Path.home()))
    return text


def _described(python: Path, project: Path, seconds: int) -> str:
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(project / "pyproject.toml")]
    command += [
        "--no-validate",
        "--output-reproducible",
        "--spec-version",
        VERSION,
        "--output-format",
        "JSON",
        str(python),
    ]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise MissingError(
            f"that cyclonedx-py fails: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}",
            expected="an SBOM",
            do=f"try `{' '.join(command)}` by hand",
        )
    return done.stdout


def _with_licences(text: str, packages: Mapping[str, Distribution], rules: Rules) -> str:
    """Return an SBOM in which packages that state no licence in a standard way have the one that we concluded."""
    content = json.loads(text)
    for component in content.get("components", ()):
        concluded = licence(packages[canonicalize_name(component["name"])], rules)
        if concluded and not component.get("licenses"):
            component["licenses"] = [{"expression": concluded, "acknowledgement": "concluded"}]
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def check(text: str, folders: Iterable[Path]) -> None:
    """Raise DataError if an SBOM does not follow the schema, or names one of ``folders`` or another local file."""
    error = JsonStrictValidator(SchemaVersion.from_version(VERSION)).validate_str(text)
    if error is not None:
        raise DataError(
            f"an SBOM that does not follow the schema: {str(error)[:300]}",
            expected=f"CycloneDX {VERSION}",
            do="update cyclonedx-bom",
        )
    roots = (*(str(folder) for folder in folders), "file:")
    if local := sorted({one for one in _texts(json.loads(text)) if any(root in one for root in roots)}):
        raise DataError(
            f"an SBOM that names files of this machine: {', '.join(local[:3])}",
            expected="packages from an index",
            do="install these packages from an index instead of a folder",
        )


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)
