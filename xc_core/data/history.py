"""The history of a training, stored in its artefact: ``history.json`` with losses, epochs and figures of refreshes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from xc_core.artifacts import Build, read_manifest

_FILE: Final = "history.json"


def write_history(build: Build, history: dict[str, Any]) -> None:
    """Write ``history`` into the artefact that is being built."""
    build.json(_FILE, history)
    build.facts["steps"] = len(history["losses"])


def read_history(folder: Path) -> dict[str, Any] | None:
    """Return the history of the artefact at ``folder``; None if nothing was trained.

    Raises MissingError, CorruptError.
    """
    if _FILE not in read_manifest(folder).files:
        return None
    found: dict[str, Any] = json.loads((folder / _FILE).read_text("utf-8"))
    return found
