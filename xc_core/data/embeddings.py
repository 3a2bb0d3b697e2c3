"""The artefact of the stage embeddings: unit vectors of all documents and all labels.

Files: ``documents.npy`` and ``labels.npy`` (float32, N x D and L x D), ``embeddings.json`` (number of heads), and with
two heads ``starts.npy`` (L x D).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.errors import CorruptError
from xc_core.linked import link_files
from xc_core.shapes import F32

_CONTENT: Final = "embeddings.json"
_STARTS: Final = "starts.npy"


@dataclass(frozen=True)
class Embeddings:
    """Vectors of all documents (N x D) and labels (L x D), memory-mapped copy-on-write.

    The files never change, and torch accepts the arrays without a copy.
    """

    kind: ClassVar[str] = "embeddings"
    documents_ND: F32
    labels_LD: F32
    starts_LD: F32
    """Initial rows of the label table (L x D): the labels' vectors; with two heads, those for the table's head."""
    heads: int
    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Embeddings:
        """Open and verify the artefact at ``folder``; raise MissingError, CorruptError."""
        artifacts.verify(folder, kind=cls.kind)
        heads = int(json.loads((folder / _CONTENT).read_text("utf-8"))["heads"])
        documents, labels = (_mapped(folder / f"{side}.npy") for side in ("documents", "labels"))
        return cls(documents, labels, _mapped(folder / _STARTS) if heads > 1 else labels, heads, folder)

    @property
    def width(self) -> int:
        """D."""
        return int(self.labels_LD.shape[1])


def _mapped(path: Path) -> F32:
    vectors = np.load(path, mmap_mode="c", allow_pickle=False)
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise CorruptError(
            f"{vectors.dtype} of shape {vectors.shape} in {path}",
            expected="float32 of shape (N, D)",
            do="rebuild it: xc run embeddings --force, with its --dataset and --recipe",
        )
    return np.asarray(vectors)


@dataclass(frozen=True)
class EmbeddingsWriter:
    """Writes the artefact that is being built in ``build``."""

    build: Build
    writes: bool = True
    """False for a process that only computes along with the one that writes."""

    def allocate(self, side: str, rows: int, width: int) -> F32:
        """Return a memory-mapped matrix (rows x width, float32) of a new file, for "documents" or "labels".

        Without ``writes`` it has no rows.
        """
        if not self.writes:
            return np.empty((0, width), np.float32)
        out = artifacts.mapped_array(self.build.path / f"{side}.npy", (rows, width), np.float32)
        self.build.facts[side] = {"rows": rows, "width": width}
        return out

    def same_documents(self, old: Embeddings) -> None:
        """Take over the vectors of all documents: the file is linked."""
        link_files(old.folder, self.build.path, ["documents.npy"])
        self.build.facts["documents"] = {"rows": len(old.documents_ND), "width": old.width}

    def starts(self, starts_LD: F32) -> None:
        """Write the initial rows of the label table (L x D); for encoders with two heads."""
        np.save(self.build.path / _STARTS, starts_LD)

    def finish(self, heads: int) -> None:
        """Write the number of heads; call it last."""
        self.build.facts["heads"] = heads
        self.build.json(_CONTENT, {"heads": heads})
