"""The folder of the project that a process works in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FILE: Final = "params.yaml"
"""The file that makes a folder a project."""


def project_root(start: Path | None = None) -> Path | None:
    """Return the folder of XC_ROOT, or the nearest one with params.yaml from ``start`` upwards; None if there is none.

    ``start`` is the current folder by default.
    """
    if root := os.environ.get("XC_ROOT"):
        return Path(root).resolve()
    here = (start or Path.cwd()).resolve()
    return next((folder for folder in (here, *here.parents) if (folder / FILE).is_file()), None)
