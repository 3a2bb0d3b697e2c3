"""Pairs that are removed from predictions: read from a file or derived from uids. They never change the true labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
import polars as pl

from xc_core.data.formats import ReadOptions
from xc_core.data.formats.lines import blocks
from xc_core.data.splits import TEST
from xc_core.errors import DataError, preview
from xc_core.shapes import I64

_PAIR: Final = re.compile(rb"^\d{1,18}[ \t]+\d{1,18}[^\S\n]*$", re.MULTILINE)


def given_pairs(path: Path, *, first_row: int, rows: int, labels: int, options: ReadOptions) -> I64:
    """Return the pairs of a filter file (P x 2, int64), with ``first_row`` added to the document.

    Each line is "document label"; there is no header. Raises DataError if a line is not a pair or points outside
    ``rows`` x ``labels``.
    """
    parts = [np.zeros((0, 2), np.int64)]
    for number, block in blocks(path, options):
        if len(_PAIR.findall(block)) < block.count(b"\n"):
            _refuse_line(block, path, number)
        pairs = np.fromstring(block, np.int64, sep=" ").reshape(-1, 2)
        for column, limit, side in ((0, rows, "document"), (1, labels, "label")):
            outside = np.flatnonzero(pairs[:, column] >= limit)
            if len(outside):
                found = f"the {side} {pairs[outside[0], column]}"
                expected = f"{side}s from 0 to {limit - 1}: the dataset has {limit}"
                _refuse(found, expected, path, number + int(outside[0]))
        parts.append(pairs)
    pairs = np.concatenate(parts)
    codes = np.unique(pairs[:, 0] * labels + pairs[:, 1])
    return np.stack([first_row + codes // max(labels, 1), codes % max(labels, 1)], axis=1)


def _refuse_line(block: bytes, path: Path, number: int) -> NoReturn:
    """Raise DataError for the first line of a block that is not a pair."""
    lines = block.split(b"\n")[:-1]
    offset = next(i for i, line in enumerate(lines) if _PAIR.fullmatch(line) is None)
    line = lines[offset].decode().removesuffix("\r")
    found = f"the line {preview(line)}" if line else "an empty line"
    _refuse(found, "'document label': two numbers from 0", path, number + offset)


def _refuse(found: str, expected: str, path: Path, line: int) -> NoReturn:
    raise DataError(
        found,
        expected=expected,
        do="download or write the file again; an empty or missing file means no filter",
        where=f"{path.name}, line {line}",
    )


def generated_pairs(folder: Path) -> I64:
    """Return the pairs that item-to-item datasets leave out (P x 2, int64), derived from the uids of a corpus.

    They are every document with the label of its own uid and, for a document with uid B, the label A if another
    document with uid A of the train file has the label B (the mirror image of a train pair). The labels of test
    documents are not read. ``folder`` has the tables of the corpus.
    """
    documents = pl.scan_parquet(folder / "documents.parquet", glob=False).select("uid", "split").with_row_index("doc")
    labels = (
        pl.scan_parquet(folder / "labels.parquet", glob=False)
        .select(pl.col("uid").alias("label_uid"))
        .with_row_index("label")
    )
    same_uid = documents.join(labels, left_on="uid", right_on="label_uid").select("doc", "label")
    mirrored = (
        pl.scan_parquet(folder / "pairs.parquet", glob=False)
        .rename({"doc": "seen_doc", "label": "seen_label"})
        .with_columns(pl.col("seen_doc").cast(pl.UInt32), pl.col("seen_label").cast(pl.UInt32))
        .join(documents.filter(pl.col("split") != TEST), left_on="seen_doc", right_on="doc")
        .join(labels.rename({"label_uid": "seen_uid"}), left_on="seen_label", right_on="label")
        .join(documents.select("doc", "uid"), left_on="seen_uid", right_on="uid")
        .join(labels, left_on="uid", right_on="label_uid")
        .select("doc", "label")
    )
    pairs = pl.concat([same_uid, mirrored]).unique().sort("doc", "label").collect()
    return pairs.cast(pl.Int64).to_numpy().reshape(-1, 2)
