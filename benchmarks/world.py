"""The artefacts of a trained experiment as arrays.

Takes: a workspace, dataset, recipe.   Gives: World.
May import: xc_core.                   Never: trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import numpy as np

from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.shapes import F32, I64
from xc_core.stages import Workspace


@dataclass(frozen=True)
class World:
    """Where everything lies; arrays are loaded when first used."""

    workspace: Workspace
    dataset: str
    recipe: str

    def folder(self, stage: str) -> Path:
        """Return the folder of a stage's artefact; raise MissingError where it has not run."""
        return self.workspace.folder(stage, self.dataset, self.recipe)

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus."""
        return Corpus.open(self.workspace.folder("corpus", self.dataset))

    @cached_property
    def doc_ND(self) -> F32:
        """Vectors of all documents."""
        return np.load(self.folder("embeddings") / "documents.npy")

    @cached_property
    def label_LD(self) -> F32:
        """Vectors of all label texts."""
        return np.load(self.folder("embeddings") / "labels.npy")

    @cached_property
    def rows_LD(self) -> F32:
        """Classifier rows."""
        return np.load(self.folder("classifier") / "rows.npy")

    def split(self, name: str) -> tuple[I64, LabelMatrix]:
        """Return the rows of a split and their labels; test rows time the evaluator and never choose anything."""
        rows = self.corpus.rows(name)
        return rows, self.corpus.labels.rows(rows)

    def texts(self, count: int) -> list[str]:
        """Return the texts of the first ``count`` documents."""
        return list(islice(chain.from_iterable(self.corpus.texts("documents")), count))
