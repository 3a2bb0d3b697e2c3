"""A table in a file, read in parts: Parquet, CSV, TSV or JSON lines; the ending of its name says which."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from xc_core.data.formats.base import ReadOptions
from xc_core.data.formats.csv_rows import LONGEST, csv_batches, csv_names
from xc_core.data.formats.json_rows import json_batches, json_names
from xc_core.data.formats.lines import blocks, open_bytes
from xc_core.errors import DataError, first_line

Batch: TypeAlias = pa.RecordBatch | dict[str, list[Any]]
"""Rows of a table: of JSON lines the values of each field, which need not have one type."""
KNOWN: Final[tuple[str, ...]] = ("uid", "title", "text", "content", "labels", "group", "time")
"""Columns that are read."""
_SEPARATORS: Final = {".csv": ",", ".tsv": "\t"}
LINES: Final = (".jsonl", ".ndjson", ".json")
ENDINGS: Final = (".parquet", *(f"{end}{more}" for end in (*_SEPARATORS, *LINES) for more in ("", ".gz")))
"""Endings of the name of a table."""
_ROWS = 8192
"""Rows that are read at a time."""
_BUFFER = 1 << 20
"""Bytes of a Parquet column that are read at a time, instead of a whole row group."""
_WHOLE = 32 << 20
"""Bytes of a Parquet file that is read whole: a buffer gets as large as a page says it is, up to 2 GB."""


def has_ending(path: Path, endings: tuple[str, ...] = ENDINGS) -> bool:
    """Return True if the name of a file ends as that of a table does, and is more than an ending."""
    return any(path.name.removesuffix(ending) not in ("", path.name) for ending in endings)


def is_lines(path: Path) -> bool:
    """Return True for JSON lines."""
    return path.name.removesuffix(".gz").endswith(LINES)


def _separator(path: Path) -> str:
    return _SEPARATORS[Path(path.name.removesuffix(".gz")).suffix]


def first_row(path: Path) -> int:
    """Return the number of the first row as a spreadsheet shows it: the header of a CSV is row 1."""
    return 1 if path.suffix == ".parquet" or is_lines(path) else 2


def batches(path: Path, options: ReadOptions) -> Iterator[Batch]:
    """Yield a table in parts; raise DataError if it cannot be read."""
    if is_lines(path):
        yield from json_batches(path, options, KNOWN)
        return
    row = first_row(path)
    rows = _parquet_batches(path) if path.suffix == ".parquet" else _csv_batches(path)
    while True:
        with _refusing(path, row):
            batch = next(rows, None)
            if batch is not None:
                batch.validate(full=True)
        if batch is None:
            return
        yield batch
        row += batch.num_rows


def _parquet_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield a Parquet file in parts."""
    source, buffer = (pa.BufferReader(path.read_bytes()), 0) if path.stat().st_size <= _WHOLE else (path, _BUFFER)
    with pq.ParquetFile(source, buffer_size=buffer, pre_buffer=False) as file:
        yield from file.iter_batches(_ROWS)


def _csv_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield a CSV in parts, every cell a string."""
    with open_bytes(path) as stream:
        yield from csv_batches(stream, path.name, _ROWS, _separator(path))


@contextlib.contextmanager
def _refusing(path: Path, row: int) -> Iterator[None]:
    """Turn the errors of an unreadable table into a DataError."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, UnicodeError, zlib.error) as error:
        if path.suffix != ".parquet":
            for _ in blocks(path, ReadOptions(max_line_bytes=4 * LONGEST)):  # raises, with the line, if it is not UTF-8
                pass
        raise DataError(
            f"a table that cannot be read ({first_line(error)})",
            expected="a complete Parquet file" if path.suffix == ".parquet" else "CSV or TSV with a header, in UTF-8",
            do="fix the row, or write the file again",
            where=f"{path.name}, row {row} or later",
        ) from error


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns, of JSON lines the fields of the first; raise DataError as ``batches``.

    A file of JSON lines without lines has no columns: nothing is missing from rows that it does not have.
    """
    if is_lines(path):
        return list(json_names(path))
    with _refusing(path, 1):
        if path.suffix == ".parquet":
            return list(pq.ParquetFile(path).schema_arrow.names)
        with open_bytes(path) as stream:
            return csv_names(stream, path.name, _separator(path))


def column_type(path: Path, column: str) -> pa.DataType:
    """Return the type of a column; of JSON lines a whole number or a list if the first line has one, else a string."""
    if path.suffix == ".parquet":
        return pq.read_schema(path).field(column).type
    value = json_names(path).get(column) if is_lines(path) else ""
    return {int: pa.int64(), list: pa.list_(pa.string())}.get(type(value), pa.string())
