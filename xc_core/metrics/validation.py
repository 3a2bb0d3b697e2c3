"""Figures of validation documents that no score of a model had seen, in the artefact of the stage fusion.

They compare models before anything is measured on test documents, so a choice does not touch these.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.metrics.ranking import PerDocument
from xc_core.metrics.stored import StoredFigures
from xc_core.shapes import I64

_FILE: Final = "validation.npz"


def write_validation(build: Build, rows: I64, figures: dict[str, PerDocument]) -> None:
    """Write the figures of each ranking for the documents ``rows`` of the corpus."""
    StoredFigures(build.path / _FILE).write(figures, rows=rows)


def copy_validation(old: Path, new: Path) -> None:
    """Copy the figures to another folder, if there are any."""
    if (old / _FILE).is_file():
        shutil.copyfile(old / _FILE, new / _FILE)


def open_validation(folder: Path) -> StoredFigures | None:
    """Return the figures in the fusion at ``folder`` after verifying it, None if it has none.

    It has none if there were no documents, or if 0.2.0 made it. Raises MissingError, CorruptError.
    """
    artifacts.verify(folder, kind="fusion")
    return StoredFigures(folder / _FILE) if (folder / _FILE).is_file() else None
