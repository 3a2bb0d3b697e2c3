"""The model that is served: which version it is, and where its files are. Who knows it is a source of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from xc_core.artifacts import read_manifest


@dataclass(frozen=True)
class Champion:
    """A version of a dataset's model; its files are fetched when they are needed."""

    version: str
    """Name of the version; another version has another name."""
    digest: str
    """Digest of the packed model's content that this version was registered with; empty if unknown."""
    fetch: Callable[[], Path]
    """Returns a local folder with the packed model. Raises MissingError if its files are gone."""


Source: TypeAlias = Callable[[], Champion]
"""Returns the champion of now. Raises MissingError if there is none, UnavailableError if nobody can tell."""


def in_folder(folder: Path) -> Champion:
    """Return the packed model in ``folder`` as a version that is named by its content.

    Raises MissingError, CorruptError.
    """
    digest = read_manifest(folder, "model").digest()
    return Champion(digest[:12], digest, lambda: folder)
