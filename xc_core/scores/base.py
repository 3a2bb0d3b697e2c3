"""The contract of a score: one number for a (document, label) pair.

A score is fitted on train documents, proposes candidates, scores candidates, and can be saved and opened. It must never
read the labels of the document that it scores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from xc_core.ann import IndexPart
from xc_core.data.beginning import MAX_CHARS
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError, DataError, MissingError, MovedError
from xc_core.plugins import Part, Table
from xc_core.sampling import Noise
from xc_core.shapes import F32, I32, I64

T = TypeVar("T")


def _absent(data: str) -> Callable[[], Any]:
    def refuse() -> Any:
        raise ConfigError(
            f"a score that is fitted on {data}, but there are none",
            expected=f"a training that has {data}",
            do="leave the score out of the recipe, or change the training",
        )

    return refuse


_NO_TEXTS, _NO_LABEL_TEXTS = _absent("texts"), _absent("label texts")
_NO_VECTORS, _NO_LABEL_VECTORS = _absent("vectors"), _absent("label vectors")
_NO_ROWS, _NO_NOISE = _absent("classifier rows"), _absent("noise distributions")


class _Cache:
    """Computes each value once."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value under ``key``, computed by the first caller."""
        if key not in self._values:
            self._values[key] = compute()
        value: T = self._values[key]
        return value


@dataclass(frozen=True)
class ScoreData:
    """The data that a score is fitted on: N documents with their labels, and all L labels. Callables read lazily."""

    truth: LabelMatrix
    """The labels of the documents (N x L)."""
    filters: LabelMatrix | None = None
    """Pairs that predictions leave out (N x L); neither positives nor negatives."""
    counts: Callable[[], I64] | None = None
    """Number of documents of each label (L) that ``label_counts`` returns; by default those of ``truth``."""
    texts: Callable[[], list[str]] = _NO_TEXTS
    """Texts of the documents."""
    text_stream: Callable[[], Iterable[str]] | None = None
    """The same texts one by one, for ``each_text``; by default those of ``texts``."""
    label_texts: Callable[[], list[str]] = _NO_LABEL_TEXTS
    """Texts of all labels; may be empty strings."""
    vectors: Callable[[], F32] = _NO_VECTORS
    """Unit vectors of the documents (N x D)."""
    label_vectors: Callable[[], F32] = _NO_LABEL_VECTORS
    """Unit vectors of the label texts (L x D)."""
    rows: Callable[[], F32] = _NO_ROWS
    """Rows of the label table (L x D), trained on these documents."""
    noise: Callable[[], Noise] = _NO_NOISE
    """The distribution from which the table's negatives were drawn."""
    cache: _Cache = field(default_factory=_Cache, compare=False)
    """Results that several scores share, for instance TF-IDF terms."""

    def label_counts(self) -> I64:
        """Return the number of train documents of each label (L), without what reveals held-out documents.

        A score must use these as a feature, not the frequencies of ``truth``.
        """
        return self.cache.once("label counts", self.truth.frequency_L if self.counts is None else self.counts)

    def each_text(self) -> Iterable[str]:
        """Return the texts of the documents one by one; the caller need not hold them all."""
        return self.texts() if self.text_stream is None else self.text_stream()


@dataclass(frozen=True)
class NewLabels:
    """Labels that come after a score was fitted, at the end of all L labels; no document has them yet."""

    before: int
    """Number of labels that the score was fitted for."""
    texts: Callable[[], list[str]]
    """Texts of the new labels."""
    label_vectors: F32
    """Unit vectors of the texts of all labels (L x D); those of earlier labels are unchanged."""
    rows: F32
    """Rows of the label table for all labels (L x D); those of new labels are predicted, the others unchanged."""
    foreseen: frozenset[int] = frozenset()
    """Labels, as positions, whose row in the label table was not trained but predicted, also by an earlier addition."""

    def __len__(self) -> int:
        return len(self.label_vectors) - self.before


class Query:
    """A batch of N documents: vectors, texts, and a cache of lookups that several scores share."""

    def __init__(self, doc_ND: F32, texts: list[str] | Callable[[], list[str]] | None = None) -> None:
        self.doc_ND = doc_ND
        self.cache = _Cache()
        self._texts = texts

    def __len__(self) -> int:
        return len(self.doc_ND)

    @cached_property
    def texts(self) -> list[str]:
        """The text of each document; raises ValueError if there are fewer or more.

        Of a long text the first ``MAX_CHARS`` characters: an evaluation reads no more than a service, which bounds it.
        """
        texts = self._texts() if callable(self._texts) else self._texts
        if texts is None or len(texts) != len(self.doc_ND):
            raise ValueError(f"{len(texts or [])} texts for {len(self.doc_ND)} documents")
        return [text[:MAX_CHARS] for text in texts]


class FittedScore(Protocol):
    """A fitted score: proposes labels and scores candidates. A subclass may leave out methods that have a default."""

    @property
    def num_labels(self) -> int:
        """Number of labels, L."""

    def candidates(self, query: Query, k: int) -> I32 | None:
        """Return about ``k`` labels of each document, those with the highest scores (N x K, holes last).

        None for a score that cannot search, which is the default.
        """
        return None

    def alone(self, query: Query, k: int) -> I32 | None:
        """Return the candidates of a model that has this score alone, by default its own candidates.

        A score whose search also depends on another score, or is switched off, searches by its own values here.
        """
        return self.candidates(query, k)

    def values(self, query: Query, ids_NK: I32) -> F32:
        """Return the score of each candidate (N x K); any number for a hole. Higher is better."""

    def save(self, folder: Path) -> None:
        """Write the score into an existing empty folder; ``Score.open`` reads it."""

    def figures(self, query: Query) -> dict[str, float]:
        """Return quality figures measured on the documents of ``query``, for instance a recall; by default none."""
        return {}


SCORES: Table[type[Score]] = Table("score")


@dataclass(frozen=True)
class Size:
    """What a fitted score's memory, files and search depend on."""

    documents: int
    """Documents that the score is fitted on."""
    labels: int
    pairs: float
    """Pairs of a document and one of its labels."""
    width: int
    """Width of the vectors."""
    document_chars: float = 0.0
    """Mean characters of a document."""
    label_chars: float = 0.0
    """Mean characters of a label's text."""


@dataclass(frozen=True)
class Footprint:
    """What a fitted score takes, as ``xc plan`` counts it; an index over labels (``HasIndex``) is counted apart."""

    held: float = 0.0
    """Bytes in memory."""
    written: float = 0.0
    """Bytes of its files."""
    compared: int = 0
    """Vectors of documents that a query is compared with."""
    kept: float = 0.0
    """Bytes that a fit leaves for the fits of other scores on the same documents, in ``ScoreData.cache``."""
    fit: float = 0.0
    """Bytes that a fit holds beside that; the scores of a recipe are fitted one after another."""
    text: float = 0.0
    """Bytes that a search for one of many texts takes while it lasts; scores search one after another."""
    most: float = 0.0
    """The same for all texts that are searched at once, at most."""
    cells: tuple[int, ...] = ()
    """Cells that each k-means of a fit divides vectors of documents into; its cost grows with their square."""

    def searching(self, texts: int) -> float:
        """Return the bytes that a search for so many texts takes."""
        return min(self.text * texts, self.most)

    def __add__(self, other: Footprint) -> Footprint:
        """Return both together."""
        return Footprint(
            self.held + other.held,
            self.written + other.written,
            self.compared + other.compared,
            self.kept + other.kept,
            max(self.fit, other.fit),
            max(self.text, other.text),
            max(self.most, other.most),
            self.cells + other.cells,
        )


@runtime_checkable
class HasIndex(Protocol):
    """Settings of a score that searches in an index: held-out folds use ``for_batches``, ``xc plan`` counts it."""

    index: IndexPart


class Score(Part):
    """Settings of a score; ``fit`` returns the fitted score.

    To add a score, add a module to the folder ``scores``, or name a module of another package in an entry point.
    """

    table = SCORES
    per_fold: ClassVar[bool] = True
    """False for a score that is not fitted on documents, so it is the same for every fold."""
    summed: ClassVar[bool] = True
    """True for a score that ranks labels by itself; a plain sum of scores leaves others out."""
    offset: ClassVar[bool] = False
    """True for a score that is the same for every document; the ablation also adds it to each other score alone."""
    probability: ClassVar[bool] = False
    """True for a score whose values are probabilities, of which most are near 0."""
    learns: ClassVar[bool] = False
    """True for a score that learns to rank labels by itself, from texts instead of vectors or rows."""
    counts: ClassVar[bool] = False
    """True for a score that is the number of a label's train documents."""
    needs_noise: ClassVar[bool] = False
    """True for a score that is fitted on the distribution from which negatives were drawn."""

    @property
    def searches(self) -> bool:
        """False for a score that never proposes candidates."""
        return True

    def fit(self, data: ScoreData) -> FittedScore:
        """Return the score fitted on ``data``."""
        raise NotImplementedError

    def open(self, folder: Path) -> FittedScore:
        """Return the score that ``FittedScore.save`` wrote into ``folder``.

        Raises CorruptError for files that do not fit together.
        """
        raise NotImplementedError

    def extended(self, fitted: FittedScore, new: NewLabels) -> FittedScore:
        """Return ``fitted`` with the new labels at the end; nothing is trained, and other labels keep their values.

        Raises MovedError, which is the default, for a score that has to be fitted again.
        """
        raise self._has_to_be_fitted()

    def check_extended(self) -> None:
        """Raise MovedError if the score cannot be extended."""
        if type(self).extended is Score.extended:
            raise self._has_to_be_fitted()

    def _has_to_be_fitted(self) -> MovedError:
        return MovedError(
            f"the score {self.kind!r}, which has to be fitted again for new labels",
            expected="scores that can be extended",
            do="add the labels with xc update, then train",
        )

    def check(self) -> None:
        """Raise MissingError if a package that the score needs is not installed; called before training starts."""

    def cost(self, sample: Sample) -> float:
        """Return the estimated seconds of all fits that ``sample`` stands for; 0 for a score that fits quickly."""
        return 0.0

    def footprint(self, size: Size) -> Footprint:
        """Return what the fitted score takes in memory, on disk and in a search; nothing for a small one."""
        return Footprint()


@dataclass(frozen=True)
class Sample:
    """A sample of documents for timing a fit. It has texts and labels only: nothing is encoded or trained yet."""

    data: ScoreData
    few: ScoreData
    """A small part of the sample, fitted before the clock starts because first calls import and allocate."""
    sizes: tuple[int, ...]
    """Number of documents of each fit that is estimated."""

    def seconds(self, fit: Callable[[ScoreData], object], *, growth: float = 1.0) -> float:
        """Return the seconds of all fits, if fitting N documents takes time proportional to N^growth.

        0 if the sample has nothing to learn from or a package is missing; the stage reports that later.
        """
        with suppress(DataError, MissingError):
            fit(self.few)
        started = time.perf_counter()
        try:
            fit(self.data)
        except (DataError, MissingError):
            return 0.0
        seconds = time.perf_counter() - started
        return seconds * float(sum((size / len(self.data.truth)) ** growth for size in self.sizes))
