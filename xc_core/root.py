"""The folder of the project that a process works in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from xc_core.causes import check_name, deleted_folder, resolved
from xc_core.errors import MissingError

FILE: Final = "params.yaml"
"""The file that makes a folder a project."""


def project_root(start: Path | None = None) -> Path | None:
    """Return the folder of XC_ROOT, or the nearest one with params.yaml from ``start`` upwards; None if there is none.

    ``start`` is the current folder by default. Raises MissingError if that was deleted, ConfigError for a name of the
    project's folder that libraries cannot open.
    """
    root: Path | None
    if given := os.environ.get("XC_ROOT"):
        root = resolved(Path(given))
    else:
        if start is None:
            check_current_folder()
        current = resolved(start or Path.cwd())
        root = next((folder for folder in (current, *current.parents) if (folder / FILE).is_file()), None)
    if root is not None:
        check_name(root)
    return root


def check_current_folder() -> None:
    """Raise MissingError if the current folder was deleted: the library of torch for products ends the process there.

    It is oneMKL, at the import of torch, with the exit code 2 and "Cannot load libtorch_cpu.so". Relative
    paths have no meaning there either.
    """
    if (error := deleted_folder()) is not None:
        raise error


def check_there(root: Path) -> None:
    """Raise MissingError if the project in ``root`` was moved or deleted since the command began.

    Whoever writes there, if only a lock, would make its folder again at the old place.
    """
    if not root.is_dir():
        raise MissingError(
            f"no folder {root} any more",
            expected="the project, which was moved or deleted since this command began",
            do="run the same command again where the project is now",
        )
