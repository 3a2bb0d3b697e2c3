"""The artefact of the stage audit: figures of the batches that M4 trained on (``audit.json``) and a plot."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from xc_core import artifacts
from xc_core.artifacts import Build

_FILE: Final = "audit.json"


@dataclass(frozen=True)
class Audit:
    """Figures of Theorem 1 on the final vectors, and the share of hard negatives that batches held."""

    kind: ClassVar[str] = "audit"
    figures: dict[str, Any]
    """Figures by name; None for one that is not a number."""

    @classmethod
    def open(cls, folder: Path) -> Audit:
        """Open and verify the artefact at ``folder``; raise MissingError, CorruptError."""
        artifacts.verify(folder, kind=cls.kind)
        return cls(json.loads((folder / _FILE).read_text("utf-8")))

    def write(self, build: Build) -> None:
        """Write the artefact that is being built in ``build``."""
        build.json(_FILE, self.figures)
        build.facts |= self.figures
