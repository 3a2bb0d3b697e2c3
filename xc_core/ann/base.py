"""The contract of an index: build over L vectors, search queries by inner product, save, load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np

from xc_core.devices import Device
from xc_core.errors import ConfigError, CorruptError, MissingError
from xc_core.params import KIND, changed, plain
from xc_core.plugins import Part, Table
from xc_core.shapes import F32, Computed, Shortlist, Vectors, spans

EXACT_UP_TO: Final = 20_000
"""Largest number of labels that are served by exact search alone. Above it a graph is built too, which is used for as
many queries at once as it is faster for, by measurement."""
BATCHES_EXACT_UP_TO: Final = 400_000
"""Largest number of labels for which batches alone are searched exactly: the measured crossover of blocked products and
HNSW (docs/decisions.md)."""
_FILE: Final = "index.json"
_ROWS_AT_ONCE: Final = 4096
"""Rows checked at a time: 4,096 x 768 bytes of answers are 3 MB."""


class Search(Protocol):
    """What can be asked for the labels nearest to a query."""

    size: int
    width: int

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the ``k`` labels with the largest inner products, best first; rows of fewer labels end in PAD_ID."""


class Index(Search, Protocol):
    """A built index over L vectors of width D, which can be saved."""

    @property
    def part(self) -> IndexPart:
        """Settings with which ``IndexPart.load`` opens what ``save`` wrote."""

    @property
    def vectors_LD(self) -> Vectors | None:
        """The vectors that the index compares queries with, or None if it keeps them in a form of its own."""

    def save(self, folder: Path) -> None:
        """Write the index into ``folder``."""


@runtime_checkable
class HasExtended(Protocol):
    """An index that takes more labels; any other is built again for them."""

    def extended(self, vectors_ND: F32) -> Index | None:
        """Return a copy with the labels of ``vectors_ND`` at the end; None if it cannot take these vectors."""


@runtime_checkable
class HasExactly(Protocol):
    """An index that can be searched exactly; the recall of any other is not measured if only it has its vectors."""

    def exactly(self, queries_BD: F32, k: int) -> Shortlist:
        """Return what exact search over the vectors in the index finds, as ``search`` returns it."""


@runtime_checkable
class HasAlwaysExact(Protocol):
    """An index whose search may turn out to be exact."""

    @property
    def always_exact(self) -> bool:
        """True if every search is exact; the recall is then 1 without a measurement."""


def with_more(index: Index, vectors_ND: F32) -> Index | None:
    """Return a copy of ``index`` with more labels at the end; None if it has to be built again.

    Raises ConfigError for vectors of another width than those in the index, or that are not finite.
    """
    _check(vectors_ND, f"N x {index.width}", vectors_ND.shape[1:] == (index.width,))
    return index.extended(vectors_ND) if isinstance(index, HasExtended) else None


def exact_search(index: Index, queries_BD: F32, k: int) -> Shortlist | None:
    """Return what exact search over the vectors in ``index`` finds; None if it cannot be searched exactly."""
    return index.exactly(queries_BD, k) if isinstance(index, HasExactly) else None


INDEXES: Table[type[IndexPart]] = Table("index")


class IndexPart(Part):
    """Settings of an index; ``build`` returns the index itself."""

    table = INDEXES
    in_parts: ClassVar[bool] = False
    """True for an index over vectors that are computed when they are read; for another one they are copied."""

    def build(self, vectors_LD: Vectors) -> Index:
        """Build over ``vectors_LD`` (float32); row number = label id.

        Raises ConfigError for vectors that are not finite or not of two dimensions.
        """
        _check(vectors_LD, "L x D with L > 0", vectors_LD.ndim == 2 and len(vectors_LD) > 0)
        if not (self.in_parts and isinstance(vectors_LD, Computed)):
            vectors_LD = np.ascontiguousarray(vectors_LD, np.float32)
        return self._built(vectors_LD)

    def _built(self, vectors_LD: Any) -> Index:
        raise NotImplementedError

    def for_batches(self) -> IndexPart:
        """Return settings of an index that is only asked many queries at once; by default these."""
        return self

    def load(self, folder: Path, width: int) -> Index:
        """Load what ``Index.save`` wrote; queries have ``width`` coordinates."""
        raise NotImplementedError


@INDEXES.register("auto")
@dataclass(frozen=True, kw_only=True)
class Auto(IndexPart):
    """Exact search up to 20,000 labels; above, a graph for a few queries at once and exact search for many."""

    in_parts = True

    def _built(self, vectors_LD: Vectors) -> Index:
        return INDEXES["exact" if len(vectors_LD) <= EXACT_UP_TO else "both"]().build(vectors_LD)

    def for_batches(self) -> IndexPart:
        """Return settings of an index that is only asked many queries at once."""
        return _Batches()


@dataclass(frozen=True, kw_only=True)
class _Batches(Auto):
    """Exact search up to 400,000 labels, a graph above."""

    def _built(self, vectors_LD: Vectors) -> Index:
        return INDEXES["exact" if len(vectors_LD) <= BATCHES_EXACT_UP_TO else "hnsw"]().build(vectors_LD)


def _check(vectors_LD: Vectors, shape: str, fits: bool) -> None:
    """Raise ConfigError for label vectors that do not have the shape, or are not finite."""
    if not fits:
        raise ConfigError(f"vectors of shape {vectors_LD.shape}", expected=shape, do="check the table")
    if not finite(vectors_LD):
        raise ConfigError("vectors that are not finite", expected="finite numbers", do="check the training run")


def finite(vectors_ND: Vectors) -> bool:
    """Return True if all numbers are finite; needs memory for one block of rows, not for N x D answers."""
    if len(vectors_ND) <= _ROWS_AT_ONCE:
        return bool(np.isfinite(vectors_ND[:]).all())
    return all(bool(np.isfinite(vectors_ND[rows]).all()) for rows in spans(len(vectors_ND), _ROWS_AT_ONCE))


def mining_index(vectors_LD: Vectors) -> Index:
    """Return an index for a search that is used once and not saved: exact on a card; else ``auto`` for batches."""
    return mining_part(Auto().for_batches()).build(vectors_LD)


def mining_part(part: IndexPart) -> IndexPart:
    """Return the settings of an index that is used once and not saved: ``part``, but exact for ``auto`` on a card.

    A card compares with a million labels faster than a graph of them can be built.
    """
    on_card = not Device.chosen().is_cpu
    return INDEXES["exact"]() if on_card and isinstance(part, Auto) else part


def checked(queries_BD: F32, width: int, k: int) -> F32:
    """Return the queries as contiguous float32.

    Raises ConfigError for a k below 1, and for queries that are not B x ``width`` or not finite.
    """
    if queries_BD.ndim != 2 or queries_BD.shape[1] != width:
        raise ConfigError(
            f"queries of shape {queries_BD.shape}",
            expected=f"B x {width}",
            do="encode queries and labels with one encoder",
        )
    if k < 1:
        raise ConfigError(f"k {k}", expected="at least 1", do="raise k")
    if not finite(queries_BD):
        raise ConfigError("queries that are not finite", expected="finite numbers", do="check the encoder")
    return np.ascontiguousarray(queries_BD, np.float32)


def save_index(index: Index, folder: Path) -> None:
    """Write ``index`` and its settings into ``folder``."""
    facts = {"part": plain(index.part), "size": index.size, "width": index.width}
    (folder / _FILE).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", "utf-8")
    index.save(folder)


def load_index(folder: Path) -> Index:
    """Load the index in ``folder``.

    Raises MissingError, CorruptError, or ConfigError for a kind of index that is not installed.
    """
    path = folder / _FILE
    if not path.is_file():
        raise MissingError(f"no {path}", expected="a saved index", do="rebuild it: run its stage again")
    try:
        facts: dict[str, Any] = json.loads(path.read_text("utf-8"))
        part = changed(INDEXES[facts["part"][KIND]](), facts["part"], str(path))
        index = part.load(folder, facts["width"])
        found, expected = (index.size, index.width), (facts["size"], facts["width"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError) as error:  # faiss: RuntimeError
        raise CorruptError(
            f"an index in {folder} that cannot be read: {error}",
            expected="files that save_index wrote together",
            do="rebuild it: run its stage again",
        ) from error
    if found != expected:
        raise CorruptError(
            f"an index of {found[0]} vectors of width {found[1]} in {folder}",
            expected=f"{expected[0]} of width {expected[1]}",
            do="rebuild it: run its stage again",
        )
    return index
