"""Readers of the columns of a table, checked row by row: texts, uids, groups, times, labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from xc_core.data.formats.base import Block, ReadOptions, in_json
from xc_core.data.formats.csv_rows import LONGEST
from xc_core.data.formats.json_rows import json_batches
from xc_core.data.formats.tables import Batch, column_names, column_type, is_lines
from xc_core.data.formats.times import written
from xc_core.errors import DataError, bare, preview
from xc_core.progress import report

_LIST = re.compile(r"""\[.*\]|\[?(['"]).*\1\]?""")
"""A list as Python or JSON writes it, or one item of it after a cut at the commas."""
_REPEATED = 1.5
"""Names in which a part between commas is, on average, if commas separate labels. In the titles of real datasets it is
1.0 to 1.3; the limit is a guess."""


def names(batch: Batch) -> list[str]:
    """Return the names of the columns of a batch."""
    return list(batch if isinstance(batch, dict) else batch.schema.names)


def size(batch: Batch) -> int:
    """Return the number of rows of a batch."""
    return len(next(iter(batch.values()))) if isinstance(batch, dict) else batch.num_rows


def _values(batch: Batch, column: str, block: Block) -> list[Any]:
    """Return a column as Python's values; raise DataError for one that Python has no value for."""
    if isinstance(batch, dict):
        return batch[column]
    try:
        values: list[Any] = batch[column].to_pylist()
    except (pa.ArrowException, ValueError, OverflowError, TypeError, KeyError) as error:
        raise DataError(
            f"the column {bare(column)} of {bare(str(batch.schema.field(column).type))} ({bare(str(error), 120)})",
            expected="texts, whole numbers or lists of them",
            do="write the column in one of these types",
            where=f"{block.where(0)} or later",
        ) from error
    return values


def numbered_as(labels: pl.DataFrame, before: Path) -> tuple[pl.DataFrame, str | None]:
    """Return a table of labels with uids that are whole numbers if those of the table ``before`` are, and all can be.

    As texts they would be taken for row numbers, or for either (``are_rows``). If one cannot be a number beside others
    that are, it is returned too.
    """
    if not pa.types.is_integer(column_type(before, "uid")):
        return labels, None
    parquet = before.suffix == ".parquet"
    present_types = [pl.scan_parquet(before, glob=False).collect_schema()["uid"]] if parquet else []
    for dtype in (*present_types, pl.Int64()):
        numbers = labels["uid"].cast(dtype, strict=False)
        if numbers.cast(pl.String).equals(labels["uid"]):
            return labels.with_columns(uid=numbers), None
    return labels, str(labels["uid"].filter(~numbers.cast(pl.String).eq_missing(labels["uid"]))[0])


def are_rows(labels: Path, ids: dict[str, int]) -> bool:
    """Return True if whole numbers in the column labels are row numbers of a labels table, False if they are uids.

    They are uids if the table has a column uid of whole numbers. Raises DataError if its uids are texts of digits that
    are not their row numbers, or partly texts and partly whole numbers, because nobody can know what is meant.
    """
    if len(_uid_kinds(labels)) > 1:
        found = "some uids of labels that are texts, and some that are whole numbers"
        raise _ambiguous(found, "write all of them in one form", labels)
    if "uid" in column_names(labels) and pa.types.is_integer(column_type(labels, "uid")):
        return False
    if all(name.isdecimal() for name in ids) and any(name != str(row) for name, row in ids.items()):
        found = f"uids of labels that are numbers, and another row's numbers (the first: {next(iter(ids))})"
        do = "write the column uid as whole numbers to mean uids, or the column labels as texts"
        raise _ambiguous(found, do, labels)
    return True


def _ambiguous(found: str, do: str, labels: Path) -> DataError:
    expected = "numbers in the column labels that can be read in one way"
    return DataError(found, expected=expected, do=do, where=labels.name)


def _uid_kinds(labels: Path) -> set[type]:
    """Return the types of the uids of a table in JSON lines; none for another table, which has one type per column."""
    if not is_lines(labels):
        return set()
    batches = json_batches(labels, ReadOptions(max_line_bytes=LONGEST), ("uid",))
    return {type(uid) for batch in batches for uid in batch.get("uid", ())}


def are_names(table: Path) -> bool:
    """Return True if the column labels of a table of documents has texts only; False if it may have numbers."""
    kind = column_type(table, "labels")
    kind = kind.value_type if isinstance(kind, pa.ListType | pa.LargeListType) else kind
    return not is_lines(table) and bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def are_cut(table: Path) -> bool:
    """Return False if the column labels of a table of documents has lists, which are never cut at a separator."""
    return not pa.types.is_nested(column_type(table, "labels"))


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _with_type(value: object, batch: Batch, column: str) -> str:
    """Return a value of a column and its type in Arrow: shown alone, a date would look like a string."""
    if value is None or isinstance(batch, dict):
        return in_json(value)
    return f"{in_json(value)} ({bare(str(batch.schema.field(column).type), 60)})"


def _checked(batch: Batch, column: str, block: Block, types: Any, found: str, expected: str, do: str) -> list[Any]:
    """Return a column as Python's values; raise DataError, which begins with ``found``, for one of another type."""
    values = _values(batch, column, block)
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, types):
            raise DataError(
                f"{found} {_with_type(value, batch, column)}",
                expected=expected,
                do=f"fill in {found}" if value is None else do,
                where=block.where(row),
            )
    return values


def texts(batch: Batch, column: str, block: Block) -> list[str]:
    """Return a column of texts; nothing is an empty text. Raises DataError for another type."""
    values = _checked(batch, column, block, str | None, column, "text", "write the column as strings")
    return [value or "" for value in values]


def uids(batch: Batch, column: str, block: Block) -> list[str]:
    """Return a column of uids as strings. Raises DataError for another type or an empty cell."""
    expected, do = "a string or a whole number in every row", "write the column as strings or whole numbers"
    return [str(value) for value in _checked(batch, column, block, str | int, "the uid", expected, do)]


def groups(batch: Batch, block: Block) -> list[str]:
    """Return the column ``group`` as strings; nothing is "". Raises DataError for another type."""
    expected, do = "a string, a whole number, or nothing", "write the column in one of these forms"
    values = _checked(batch, "group", block, str | int | None, "the group", expected, do)
    return ["" if value is None else str(value) for value in values]


def times(batch: Batch) -> list[str]:
    """Return the column ``time`` as strings, dates in ISO 8601; nothing is "".

    What is not a time is returned as it is written: it is an error only where times decide.
    """
    if isinstance(batch, dict):
        return list(map(written, batch["time"]))
    try:
        texts = batch["time"].cast(pa.string()).to_pylist()
    except pa.ArrowException:
        texts = [str(batch["time"].type)] * size(batch)
    return list(map(written, texts))


def cells(batch: Batch, block: Block, options: ReadOptions) -> list[list[Any]]:
    """Return the labels of each row: names or numbers. Raises DataError for another type, or for zeros and ones."""
    cells: list[list[Any]] = []
    for row, cell in enumerate(_values(batch, "labels", block)):
        if isinstance(cell, str):
            block.label_separator = options.label_separator
            cells.append([name.strip() for name in cell.split(options.label_separator) if name.strip()])
        elif isinstance(cell, list) and all(isinstance(n, str) or _is_index(n) for n in cell):
            cells.append(cell)
        elif cell is None:
            cells.append([])
        else:
            raise DataError(
                f"the labels {_with_type(cell, batch, 'labels')}",
                expected=f"names or 64-bit whole numbers in a list, or text with {options.label_separator!r} between",
                do="write the column in one of these forms",
                where=block.where(row),
            )
    if _are_indicators(cells):
        raise DataError(
            f"the labels of each row as {len(cells[0])} zeros and ones",
            expected="the names or numbers of its labels alone",
            do="write the positions of the ones: [i for i, value in enumerate(row) if value]",
            where=block.file,
        )
    return cells


def _are_indicators(cells: list[list[Any]]) -> bool:
    """Return True if each row has a 0 or a 1 per label; three numbers of these would repeat one anyway."""
    width = len(cells[0]) if cells else 0
    return width > 2 and all(len(cell) == width and {0, 1}.issuperset(cell) for cell in cells)


def report_separator(names: list[str], options: ReadOptions, *, cut: bool) -> None:
    """Report if most label names look like several labels: a list that was written as text, or another separator.

    ``cut`` is False if the names come from lists: no separator divides them.
    """

    def is_majority(matching: list[str]) -> bool:
        return 2 * len(matching) > len(names)

    lists = [name for name in names if _LIST.fullmatch(name)]
    if is_majority(lists):
        report(
            f"most labels look like lists that were written as text, for instance {preview(lists[0])}; if they are, "
            f"write the labels of a cell with {options.label_separator!r} between, or the table as Parquet with lists"
        )
        return
    for separator in ("|", ";", "\t", ",") if cut else ():
        matching = [name for name in names if separator in name]
        if separator != options.label_separator and is_majority(matching) and _divides(separator, names):
            report(
                f"most labels contain {separator!r}, for instance {preview(matching[0])}; "
                f"if it separates labels, ingest again with --label-separator {separator!r} --replace --allow-loss 1"
            )
            return


def _divides(separator: str, names: list[str]) -> bool:
    """Return False for commas that are parts of names: what they divide hardly repeats, as labels would.

    A single label can only be several.
    """
    parts = [part for name in names for piece in name.split(separator) if (part := piece.strip())]
    return separator != "," or len(names) == 1 or len(parts) >= _REPEATED * len(set(parts))
