"""The artefacts of a trained experiment as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import TypeVar

from xc_core.chain import Workspace
from xc_core.chain.context import Artefact
from xc_core.classifiers import LabelTables
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.labels import LabelMatrix
from xc_core.shapes import F32, I64

A = TypeVar("A", bound=Artefact)


@dataclass(frozen=True)
class World:
    """An experiment; artefacts are opened when first used."""

    workspace: Workspace
    dataset: str
    recipe: str

    def read(self, artefact: type[A]) -> A:
        """Open an artefact; raise MissingError if its stage has not run."""
        return artefact.open(self.workspace.folder(artefact.kind, self.dataset, self.recipe))

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus."""
        return self.read(Corpus)

    @cached_property
    def embeddings(self) -> Embeddings:
        """Vectors of documents and labels."""
        return self.read(Embeddings)

    @property
    def doc_ND(self) -> F32:
        """Vectors of all documents."""
        return self.embeddings.documents_ND

    @property
    def label_LD(self) -> F32:
        """Vectors of all label texts."""
        return self.embeddings.labels_LD

    @cached_property
    def rows_LD(self) -> F32:
        """Classifier rows."""
        return self.read(LabelTables).rows()

    def split(self, name: str) -> tuple[I64, LabelMatrix]:
        """Return the rows of a split and their labels. Test rows only time the evaluator, they choose nothing."""
        rows = self.corpus.rows(name)
        return rows, self.corpus.labels.rows(rows)

    def texts(self, count: int) -> list[str]:
        """Return the texts of the first ``count`` documents."""
        return list(islice(chain.from_iterable(self.corpus.texts("documents")), count))
