"""Which train documents are held out for validation: by uid, ``group``, near-duplicates of text, or ``time``.

A family (a group, or near-duplicates) is held out whole. Its name, that of the group or the uid of its first document,
decides by its hash. So a family stays in its split as long as it keeps its name. If the files name families of
near-duplicates, as those of an update do, they are not searched again: another order of rows may give other names. By
time the last documents are held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from xc_core.data.families import NearDuplicates
from xc_core.data.formats import Block
from xc_core.data.splits import TEST, TRAIN, VALIDATION, digests, is_validation
from xc_core.data.timeline import Timeline
from xc_core.errors import DataError
from xc_core.shapes import Array, Bool

BY: Final = ("uid", "group", "family", "time")
"""What is held out as a whole: a document, a group, or near-duplicates of text; or the last documents."""
FAMILIES: Final = "families.parquet"
GROUP: Final = "group "
"""What the names of the families of groups begin with."""
SCHEMA: Final = pa.schema([("doc", pa.int64()), ("family", pa.string())])
"""Documents with siblings, or with a group, and the name of their family, by document."""


class Cut:
    """Assigns splits block by block; ``finish`` moves near-duplicates and the last documents, known at the end only.

    With a validation file (``given``), no train document is held out. Families then only keep the two halves of the
    validation documents apart. ``accepted`` is the share of documents, by hash, that are for the acceptance set.
    """

    def __init__(self, folder: Path, by: str, fraction: float, *, given: bool, accepted: float = 0.0) -> None:
        self._folder, self.by, self._fraction, self._given = folder, by, fraction, given
        self._near_duplicates = NearDuplicates(folder / "near-duplicates") if by == "family" else None
        self._groups = pq.ParquetWriter(folder / FAMILIES, SCHEMA, compression="zstd") if by == "group" else None
        self._held_out: list[Bool] = [np.zeros(0, bool)]
        self._family_names: list[str] = []
        self._timeline, self._accepted = Timeline(decides=by == "time" and not given), accepted
        self._documents = 0
        self.grouped = 0
        """Train and validation documents that have a group."""
        self._names_unused = False

    def splits(self, block: Block, split: str, digest_N: Array) -> Array:
        """Return the split of each document of a block of the file ``split`` (train, validation, test).

        ``digest_N`` are the digests of the block's uids.
        """
        self._timeline.add(block, split, digest_N)
        if split == TEST:
            return np.full(len(block), TEST)
        groups = block.groups or [""] * len(block)
        self.grouped += len(groups) - groups.count("")
        if self._groups:
            self._write_groups(groups)
            names = [group_family(group) if group else uid for group, uid in zip(groups, block.uids, strict=True)]
            digest_N = digests(names)
        fraction = 0.0 if self._given else self._fraction
        held_N = is_validation(digest_N, fraction) if split == TRAIN else np.ones(len(block), bool)
        if self._near_duplicates:
            texts = zip(block.titles, block.contents, strict=True)
            self._near_duplicates.add([f"{title} {content}" for title, content in texts])
            self._held_out.append(held_N)
            self._family_names += block.families or [""] * len(block)
        elif block.families:
            self._names_unused = True
        self._documents += len(block)
        return np.where(held_N, VALIDATION, TRAIN)

    def _write_groups(self, groups: list[str]) -> None:
        rows = [row for row, group in enumerate(groups) if group]
        docs = pa.array(self._documents + np.array(rows, np.int64))
        families = pa.array([group_family(groups[row]) for row in rows], pa.string())
        assert self._groups is not None
        self._groups.write_batch(pa.record_batch([docs, families], schema=SCHEMA))

    def finish(self) -> Array | None:
        """Write ``families.parquet``; return the splits of train and validation documents if ``splits`` gave others."""
        if self._groups:
            self._groups.close()
        if self._timeline.decides:
            return np.where(self._timeline.last(self._fraction, self._accepted), VALIDATION, TRAIN)
        if not self._near_duplicates:
            return None
        held_N, uids = np.concatenate(self._held_out), self._uids()
        if any(self._family_names):
            self._near_duplicates.discard()
            named = [name or uid for name, uid in zip(self._family_names, uids, strict=True)]
            names = pl.Series(named, dtype=pl.String)
            moved_N = is_validation(digests(names.to_list()), self._fraction)
        else:
            first_N = self._near_duplicates.families()
            names, moved_N = uids.gather(first_N), held_N[first_N]
        self._write_near_duplicates(names, uids)
        return None if self._given or np.array_equal(moved_N, held_N) else np.where(moved_N, VALIDATION, TRAIN)

    def check_groups(self) -> None:
        """Raise DataError for a split by group if no document has a group."""
        if self._groups and self._documents and not self.grouped:
            raise DataError(
                "no group in the train file, but the split is by group",
                expected="a column group (Parquet, CSV) or a field group (xc-json)",
                do="add it, or choose --split family or --split uid",
            )

    def _uids(self) -> pl.Series:
        """Return the uids of train and validation documents, which come before those of test."""
        return pl.read_parquet(self._folder / "documents.parquet", columns=["uid"], glob=False)["uid"].head(
            self._documents
        )

    def _write_near_duplicates(self, names: pl.Series, uids: pl.Series) -> None:
        """Write the families that have at least two documents, or another name than their document."""
        doc = np.flatnonzero((names.is_duplicated() | (names != uids)).to_numpy())
        table = pa.table([pa.array(doc), names.gather(doc).to_arrow().cast(pa.string())], schema=SCHEMA)
        pq.write_table(table, self._folder / FAMILIES, compression="zstd")

    def facts(self) -> dict[str, Any]:
        """Return the number of families with at least two documents, of their documents, and of the largest one.

        ``families_named`` is there if the files name families, which this split does not use. Those of the times are
        those of ``Timeline``.
        """
        facts: dict[str, Any] = {"grouped": self.grouped, "given": self._given, **self._timeline.facts()}
        if self._names_unused:
            facts["families_named"] = True
        if (self._folder / FAMILIES).is_file():
            sizes = pl.read_parquet(self._folder / FAMILIES, glob=False)["family"].value_counts()["count"].to_numpy()
            several = sizes[sizes > 1]
            facts |= {"families": len(several), "documents": int(several.sum()), "largest": int(sizes.max(initial=0))}
        return facts


def group_family(name: str) -> str:
    """Return the name of a group's family, which no uid of a document without a group should have."""
    return f"{GROUP}{name}"


def write_splits(
    folder: Path, split_N: Array, splits: Sequence[str] = (VALIDATION, TRAIN)
) -> tuple[dict[str, int], dict[str, int]]:
    """Write the column ``split`` of the first documents again, as many as ``split_N`` has.

    Returns the number of these documents, and of their pairs, in each of ``splits``.
    """
    file, work, first_row = pq.ParquetFile(folder / "documents.parquet"), folder / "documents.moved", 0
    with pq.ParquetWriter(work, file.schema_arrow, compression="zstd") as writer:
        for batch in file.iter_batches(16_384):
            names = np.array(batch["split"].to_pylist(), dtype=object)
            new_splits = split_N[first_row : first_row + len(batch)]
            names[: len(new_splits)] = new_splits
            column = batch.schema.get_field_index("split")
            writer.write_batch(batch.set_column(column, batch.schema.field(column), pa.array(names, pa.string())))
            first_row += len(batch)
    work.replace(folder / "documents.parquet")
    pairs_N = np.zeros(len(split_N), np.int64)
    for batch in pq.ParquetFile(folder / "pairs.parquet").iter_batches(columns=["doc"]):
        docs = batch["doc"].to_numpy()
        np.add.at(pairs_N, docs[docs < len(split_N)], 1)
    inside = {split: split_N == split for split in splits}
    sizes = {split: int(inside_N.sum()) for split, inside_N in inside.items()}
    return sizes, {split: int(pairs_N[inside_N].sum()) for split, inside_N in inside.items()}
