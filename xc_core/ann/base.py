"""The contract of an index: build over L vectors, search queries by inner product, save, load.

Takes: vectors_LD, queries_BD.                Gives: Shortlist (best first, by inner product).
May import: errors, params, plugins, shapes.  Never: returns distances, or clamps a parameter silently.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from xc_core.errors import ConfigError, CorruptError, MissingError
from xc_core.params import at_least
from xc_core.plugins import Table
from xc_core.shapes import F32, Shortlist

EXACT_UP_TO: Final = 400_000
"""Labels up to which ``auto`` searches exactly: measured crossover of blocked products and HNSW for batches of queries
(docs/decisions.md)."""


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """Which index, and its settings."""

    kind: str = "auto"
    """"exact", "hnsw", "ivf", or "auto": exact up to 400,000 labels, then hnsw."""
    k: int = 100
    """Labels of a shortlist."""
    links: int = 32
    """hnsw: links of a node (M)."""
    build_effort: int = 200
    """hnsw: candidates kept while building (efConstruction)."""
    search_effort: int = 200
    """hnsw: candidates kept while searching (efSearch)."""
    lists: int = 0
    """ivf: cells; 0 for 4 sqrt(L)."""
    probes: int = 32
    """ivf: cells visited by a query."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        if self.kind != "auto":
            INDEXES[self.kind]
        at_least(self, k=1, links=1, build_effort=1, search_effort=1, lists=0, probes=1)

    def resolve(self, num_labels: int) -> str:
        """Return the kind, "auto" decided."""
        return self.kind if self.kind != "auto" else ("exact" if num_labels <= EXACT_UP_TO else "hnsw")


class Index(Protocol):
    """A built index over L vectors of width D."""

    size: int
    width: int

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the ``k`` labels with the largest inner products, best first; fewer than k labels end in PAD_ID."""

    def save(self, folder: Path) -> None:
        """Write the index into ``folder``."""


class IndexFamily(Protocol):
    """How one kind of index is made."""

    @staticmethod
    def build(vectors_LD: F32, config: IndexConfig) -> Index:
        """Build over ``vectors_LD``, row number = label id."""

    @staticmethod
    def load(folder: Path, config: IndexConfig, width: int) -> Index:
        """Load what ``save`` wrote; queries have ``width`` coordinates."""


INDEXES: Table[IndexFamily] = Table("index")


def build_index(vectors_LD: F32, config: IndexConfig) -> Index:
    """Build the index that ``config`` names over ``vectors_LD`` (float32).

    Raises ConfigError for vectors that are not finite or not of two dimensions.
    """
    if vectors_LD.ndim != 2 or not len(vectors_LD):
        raise ConfigError(f"vectors of shape {vectors_LD.shape}", expected="L x D with L > 0", do="check the table")
    if not np.isfinite(vectors_LD).all():
        raise ConfigError("vectors that are not finite", expected="finite numbers", do="check the training run")
    return INDEXES[config.resolve(len(vectors_LD))].build(np.ascontiguousarray(vectors_LD, np.float32), config)


def checked(queries_BD: F32, width: int, k: int) -> F32:
    """Return the queries as contiguous float32.

    Raises ConfigError for a k below 1, and for queries that are not B x ``width`` or not finite.
    """
    if queries_BD.ndim != 2 or queries_BD.shape[1] != width:
        raise ConfigError(f"queries of shape {queries_BD.shape}", expected=f"B x {width}", do="use one encoder")
    if k < 1:
        raise ConfigError(f"k {k}", expected="at least 1", do="raise it")
    if not np.isfinite(queries_BD).all():
        raise ConfigError("queries that are not finite", expected="finite numbers", do="check the encoder")
    return np.ascontiguousarray(queries_BD, np.float32)


def save_index(index: Index, config: IndexConfig, folder: Path) -> None:
    """Write ``index`` and what is needed to load it into ``folder``."""
    facts = {
        "kind": config.resolve(index.size),
        "config": asdict(config),
        "size": index.size,
        "width": index.width,
    }
    (folder / "index.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", "utf-8")
    index.save(folder)


def load_index(folder: Path) -> Index:
    """Load the index in ``folder``.

    Raises MissingError, CorruptError.
    """
    path = folder / "index.json"
    if not path.is_file():
        raise MissingError(f"no {path}", expected="a saved index", do="run the stage index")
    try:
        facts: dict[str, Any] = json.loads(path.read_text("utf-8"))
        index = INDEXES[facts["kind"]].load(folder, IndexConfig(**facts["config"]), facts["width"])
        found, expected = (index.size, index.width), (facts["size"], facts["width"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError) as error:  # faiss: RuntimeError
        raise CorruptError(
            f"no index that can be read in {folder}: {error}",
            expected="what save_index wrote",
            do="run the stage index again",
        ) from error
    if found != expected:
        raise CorruptError(
            f"an index of {found[0]} vectors of width {found[1]} in {folder}",
            expected=f"{expected[0]} of width {expected[1]}",
            do="run the stage index again",
        )
    return index
