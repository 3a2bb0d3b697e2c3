"""The artefact of the stage classifier: label tables, one for each fold.

Files: ``labels.parquet`` (uid of each label and a hash of its text), ``history.json``, ``tables.json`` (the folds, and
the labels whose rows are predicted), ``documents.npy`` (``data.learnt``), and a folder per fold with ``rows.npy``
(L x D) and, if negatives were drawn from a distribution, ``noise.safetensors``. The folder of the final fold also has
``batches.npy`` (the batch of each document in one epoch), if it was trained.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import polars as pl

from xc_core import artifacts
from xc_core.artifacts import Build
from xc_core.classifiers.storage import blocks
from xc_core.classifiers.table_head import TableHead
from xc_core.data.corpus import Corpus
from xc_core.data.folds import FINAL, Fold
from xc_core.data.history import read_history, write_history
from xc_core.data.learnt import Learnt
from xc_core.sampling import Noise, load_noise, save_noise
from xc_core.shapes import F32, I64

_ROWS: Final = "rows.npy"
_BATCHES: Final = "batches.npy"
_LABELS: Final = "labels.parquet"
_CONTENT: Final = "tables.json"


@dataclass(frozen=True)
class LabelTables:
    """Trained rows of every label, by fold."""

    kind: ClassVar[str] = "classifier"
    folder: Path
    folds: list[Fold]
    """The trainings, the final one last."""
    unit: bool
    """True if rows are unit vectors; otherwise products with them are logits."""
    biased: bool
    """True if the last column of the rows is a bias, which is added to products and is no part of the unit vector."""
    drawn: bool
    """True if negatives were drawn from a distribution; it is stored with the rows."""
    trained: bool
    """True if the stage trained; False if these are initial rows."""
    history: dict[str, Any]
    """Losses, epochs and refreshes of the final training."""
    foreseen: frozenset[int] = frozenset()
    """Labels, as positions, whose rows were not trained but predicted from their texts."""

    @classmethod
    def open(cls, folder: Path) -> LabelTables:
        """Open and verify the artefact at ``folder``; raise MissingError, CorruptError."""
        artifacts.verify(folder, kind=cls.kind)
        content = json.loads((folder / _CONTENT).read_text("utf-8"))
        history = read_history(folder) or {}
        folds = [Fold(**fold) for fold in content["folds"]]
        biased = content.get("biased", False)  # written only if true
        flags = (content["unit"], biased, content["drawn"], content["trained"])
        return cls(folder, folds, *flags, history, frozenset(content.get("foreseen", ())))

    def rows(self, fold: str = FINAL) -> F32:
        """Return the rows of a fold (L x D, or L x (D + 1) with a bias), memory-mapped copy-on-write."""
        return np.asarray(np.load(self.folder / fold / _ROWS, mmap_mode="c", allow_pickle=False))

    def noise(self, fold: str = FINAL) -> Noise | None:
        """Return the distribution that negatives were drawn from, if there is one."""
        return load_noise(self.folder / fold) if self.drawn else None

    def audited_batches(self) -> list[I64] | None:
        """Return the batches of one epoch of the final training, as positions among its documents.

        It is the first epoch, or the last if the order adapts. None if nothing was trained.
        """
        if not self.trained:
            return None
        batch_N = np.load(self.folder / FINAL / _BATCHES, allow_pickle=False)
        order = np.argsort(batch_N, kind="stable").astype(np.int64)
        return np.split(order, np.flatnonzero(np.diff(batch_N[order])) + 1)

    def learnt(self) -> Learnt:
        """Return which documents the rows learnt from; raise MissingError for rows from before this was recorded."""
        return Learnt.open(self.folder)

    def check_unseen(self, corpus: Corpus) -> None:
        """Raise MovedError if the rows, or their encoder, learnt from documents that are test, or held out, now.

        Raises MissingError if it is not known what they learnt from.
        """
        self.learnt().check(corpus, self.folds)

    def labels(self) -> pl.DataFrame:
        """Return the columns uid and text (a hash of the label's text), in the order of the rows."""
        return pl.read_parquet(self.folder / _LABELS, glob=False)


@dataclass
class TablesWriter:
    """Writes the artefact that is being built in ``build``."""

    build: Build
    drawn: bool = False
    trained: bool = False
    foreseen: list[int] = field(default_factory=list)
    """Labels, as positions, whose rows are predicted from their texts."""
    writes: bool = True
    """False in a process that only takes part in gathering the rows, for another one that writes them."""

    def batches(self, batches: list[I64], documents: int) -> None:
        """Write the ``batches`` of one epoch of the final training, which has ``documents`` documents.

        Positions from ``documents`` on are label texts and are left out. Call it after ``fold`` of the final fold.
        """
        batch_N = np.zeros(documents, np.int32)
        for number, positions in enumerate(batches):
            batch_N[positions[positions < documents]] = number
        np.save(self.build.path / FINAL / _BATCHES, batch_N)
        self.trained = True

    def fold(self, fold: Fold, rows: F32 | TableHead, noise: Noise | None) -> None:
        """Write the result of one training: rows (L x D) or the table that has them, block by block."""
        folder = self.build.path / fold.name
        folder.mkdir()
        count, finite = _write_rows(folder / _ROWS if self.writes else None, rows)
        if noise is not None:
            save_noise(noise, folder)
            self.drawn = True
        if fold.final:
            self.build.facts |= {"rows": count, "finite": finite}

    def finish(
        self,
        folds: list[Fold],
        labels: pl.DataFrame,
        learnt: Learnt,
        history: dict[str, Any],
        *,
        unit: bool,
        biased: bool = False,
    ) -> None:
        """Write the files that all folds share; call it last."""
        labels.write_parquet(self.build.path / _LABELS)
        learnt.save(self.build.path)
        write_history(self.build, history)
        content = {
            "folds": [asdict(fold) for fold in folds],
            "unit": unit,
            "drawn": self.drawn,
            "trained": self.trained,
        }
        optional = ({"biased": True} if biased else {}) | ({"foreseen": self.foreseen} if self.foreseen else {})
        self.build.json(_CONTENT, content | optional)
        self.build.facts["folds"] = len(folds)


def _write_rows(path: Path | None, rows: F32 | TableHead) -> tuple[int, bool]:
    """Write rows as ``path``, None for nowhere; return their number and whether all are finite."""
    if isinstance(rows, TableHead):
        parts = (part.cpu().numpy() for part in rows.released_blocks())
    else:
        parts = (rows[block] for block in blocks(*rows.shape))
    out_LD = None if path is None else artifacts.mapped_array(path, rows.shape, np.float32)
    start, finite = 0, True
    for part in parts:
        if out_LD is not None:
            out_LD[start : start + len(part)] = part
        start, finite = start + len(part), finite and bool(np.isfinite(part).all())
    if out_LD is not None:
        out_LD.flush()
    return start, finite
