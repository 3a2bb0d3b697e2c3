"""The texts of one column of a file, in blocks: Parquet, CSV, TSV and JSON lines, plain or gzip."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xc_core.data.formats.csv_rows import csv_batches, csv_names
from xc_core.data.formats.tables import LINES
from xc_core.errors import DataError, bare, first_line, nearest

ROWS: Final = 1024
"""Rows of a block, at most: memory holds one."""
LONGEST: Final = 64 << 20
"""Bytes of a line of JSON or a cell of Parquet, as many as a cell of a CSV may have."""
_PART: Final = 4 << 20
"""Bytes after which a block ends."""
_DECODED: Final = 16
"""Rows of Parquet that are decoded at once: few, because each may be long or repeat a long text."""
_BROKEN: Final = (pa.ArrowException, OSError, UnicodeError, EOFError, zlib.error)
"""What readers raise for a file that is not what its name says, or is cut off."""


def blocks_of(stream: IO[bytes], path: Path, column: str) -> Iterator[list[str]]:
    """Yield the texts of ``column`` of the file ``path``, open as ``stream``, in blocks of at most ``ROWS``.

    The end of the name decides the format. Raises DataError for a file that cannot be read, a column that is missing
    or is not text, and a text that is too long.
    """
    name = Path(path.name.removesuffix(".gz"))
    if name.name != path.name and not path.stat().st_size:
        raise _unreadable(str(path), "gzip", EOFError("0 bytes"))  # Python would read an empty text
    plain = stream if name.name == path.name else gzip.GzipFile(fileobj=stream)
    yield from _READERS[name.suffix](plain, column, str(path))


def _parquet(stream: Any, column: str, where: str) -> Iterator[list[str]]:
    try:
        file = pq.ParquetFile(stream)
        _check_column(column, file.schema_arrow.names, where)
        yield from _in_blocks(_cells(file.iter_batches(_DECODED, columns=[column]), where))
    except _BROKEN as error:
        raise _unreadable(where, "Parquet", error) from error


def _cells(batches: Iterable[Any], where: str) -> Iterator[tuple[str, int]]:
    """Yield the text of each row of Parquet and its length in bytes; raise DataError for one that is too long."""
    number = 0
    for batch in batches:
        strings = _strings(batch.column(0), where)
        for cell, size in zip(strings, pc.binary_length(strings).to_pylist(), strict=True):
            number += 1
            if size > LONGEST:
                raise _too_long("a cell of more than", "a shorter text", f"{where}, row {number}")
            yield cell.as_py(), size


def _in_blocks(sized: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """Yield blocks of at most ROWS texts and about ``_PART`` bytes, from texts and their lengths in bytes."""
    texts: list[str] = []
    total = 0
    for text, size in sized:
        texts.append(text)
        total += size
        if len(texts) == ROWS or total > _PART:
            yield texts
            texts, total = [], 0
    if texts:
        yield texts


def _too_long(found: str, expected: str, where: str) -> DataError:
    return DataError(f"{found} {LONGEST:,} bytes", expected=expected, do="cut the text", where=where)


def _csv(stream: Any, column: str, where: str, separator: str = ",") -> Iterator[list[str]]:
    try:
        _check_column(column, csv_names(stream, where, separator), where)
        stream.seek(0)
        for batch in csv_batches(stream, where, ROWS, separator):
            yield _strings(batch.column(column), where).to_pylist()
    except _BROKEN as error:
        raise _unreadable(where, "CSV or TSV", error) from error


def _jsonl(stream: Any, column: str, where: str) -> Iterator[list[str]]:
    try:
        yield from _in_blocks(_fields(stream, column, where))
    except _BROKEN as error:
        raise _unreadable(where, "JSON lines", error) from error


def _fields(stream: Any, column: str, where: str) -> Iterator[tuple[str, int]]:
    """Yield the text of each line and the length of the line in bytes."""
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), 1):
        if len(line) > LONGEST:
            raise _too_long("more than", "a shorter line", f"{where}, line {number}")
        yield _field(line, column, f"{where}, line {number}"), len(line)


_SEPARATED: Final = {".csv": _csv, ".tsv": partial(_csv, separator="\t")}
_READERS: Final[dict[str, Any]] = {".parquet": _parquet, **_SEPARATED, **dict.fromkeys(LINES, _jsonl)}


def _field(line: bytes, column: str, where: str) -> str:
    try:
        text = json.loads(line)[column]
        text.encode()
    except UnicodeEncodeError as error:
        found = "half of a surrogate pair (an escape like \\ud83d alone)"
        do = "fix the line"
        raise DataError(found, expected="text that can be encoded as UTF-8", do=do, where=where) from error
    except UnicodeDecodeError as error:
        found = f"text that is not UTF-8 ({first_line(error)})"
        do = "convert the file from its encoding, for instance: iconv -f cp1252 -t utf-8 OLD > NEW"
        raise DataError(found, expected="JSON in UTF-8", do=do, where=where) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            "a line without a text",
            expected=f'an object with a string, for instance {{"{column}": "a small dog"}}',
            do="write each object of the list on a line: jq -c '.[]' OLD > NEW"
            if line.lstrip().startswith(b"[")
            else "fix the line, or name the field with --column",
            where=where,
        ) from error
    return str(text)


def _check_column(column: str, names: list[str], where: str) -> None:
    if column not in names:
        raise DataError(
            f"no column {column!r}{nearest(column, names)}",
            expected=f"one of {bare(', '.join(names), 300)}",
            do="name the column of the texts with --column",
            where=where,
        )
    if (count := names.count(column)) > 1:
        raise DataError(f"{count} columns {column!r}", expected="one", do="rename the others", where=where)


def _strings(column: Any, where: str) -> Any:
    """Return a column as large strings; raise DataError for another type and for nulls."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if kind not in (pa.string(), pa.large_string(), pa.string_view()) or column.null_count:
        raise DataError(
            f"a column of {column.type} with {column.null_count} nulls",
            expected="strings without nulls",
            do="convert the column",
            where=where,
        )
    return column.cast(pa.large_string())


def _unreadable(where: str, kind: str, error: Exception) -> DataError:
    found = f"a file that cannot be read ({first_line(error)})"
    expected = f"{kind} in UTF-8" + ", in a complete gzip file" * where.endswith(".gz")
    return DataError(found, expected=expected, do="fix it", where=where)
