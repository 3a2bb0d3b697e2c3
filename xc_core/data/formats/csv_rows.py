"""CSV, read strictly (RFC 4180): a quote that is not closed is an error, not a cell with the rest of the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import IO, Final, cast

import pyarrow as pa

from xc_core.data.formats.base import arrow
from xc_core.errors import DataError
from xc_core.visible import counted

Bytes = IO[bytes] | io.BufferedIOBase
LONGEST: Final = 64 << 20
"""Characters of a cell or line, at most; one quote too few may join all rows of a file."""
_OTHERS: Final = (";", "\t")
"""Separators of tables that are not CSV."""
_PART: Final = 4 << 20
"""Characters after which a part ends."""
_TOO_LONG: Final = f"field larger than field limit ({LONGEST})"
_WRONG: Final = {
    "unexpected end of data": ("a quote that is never closed", 'a second " at the end of the cell'),
    "',' expected after '\"'": ("text behind the closing quote of a cell", "a comma, or the end of the row"),
    _TOO_LONG: (f"a cell of more than {LONGEST:,} characters", "a shorter text"),
}
"""Messages of the reader -> what is wrong, and what is expected."""


def csv_names(stream: Bytes, where: str) -> list[str]:
    """Return the names of the columns, the cells of the first row that is not blank; raise DataError without one."""
    for _, names in _rows(stream, where):
        if len(names) == 1:
            _check_separator(names[0], _OTHERS, where)
        return names
    raise DataError(
        "no row", expected="a header line with the names of the columns", do="write the file again", where=where
    )


def _check_separator(header: str, signs: Iterable[str], where: str) -> None:
    """Raise DataError if a header holds one of the signs of another separator, which end with that separator."""
    if sign := next((sign for sign in signs if sign in header), None):
        raise DataError(
            f"a header that is separated by {sign[-1]!r}",
            expected="commas between the cells",
            do="write the table with commas",
            where=f"{where}, row 1",
        )


def csv_batches(stream: Bytes, where: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield parts of at most ``rows`` rows and about 4 million characters, all columns strings, without blank lines.

    Raises DataError, with ``where`` and the row (the header is row 1), for wrong quotes, for a row of more or fewer
    cells than the header, and for a cell that is too long; UnicodeDecodeError if the text is not UTF-8.
    """
    found = _rows(stream, where)
    _, names = next(found, (1, []))
    part: list[list[str]] = []
    size = 0
    for number, cells in found:
        if len(cells) != len(names):
            raise DataError(
                counted(len(cells), "cell"),
                expected=f"{len(names)}, as in the header",
                do='fix the row; put a cell with a comma between quotes: "a, b"',
                where=f"{where}, row {number}",
            )
        part.append(cells)
        size += sum(map(len, cells))
        if len(part) == rows or size > _PART:
            yield _batch(part, names)
            part, size = [], 0
    if part:
        yield _batch(part, names)


def _batch(part: list[list[str]], names: list[str]) -> pa.RecordBatch:
    return pa.record_batch([arrow(column) for column in zip(*part, strict=True)], names)


def _rows(stream: Bytes, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, cells) of the rows that are not blank."""
    csv.field_size_limit(LONGEST)
    text = io.TextIOWrapper(cast("IO[bytes]", stream), "utf-8-sig", newline="")
    number, line = 1, ""
    try:
        for cells in csv.reader((line := each for each in _lines(text)), strict=True):
            if cells:
                yield number, cells
                number += 1
    except csv.Error as error:
        if number == 1:
            _check_separator(line, (f'"{mark}' for mark in _OTHERS), where)
        found, expected = _WRONG.get(str(error), (f"a row that cannot be read ({error})", "CSV"))
        raise DataError(
            found,
            expected=expected,
            do='fix the row; a quote inside a quoted cell is written twice: ""',
            where=f"{where}, row {number}",
        ) from error
    finally:
        if not stream.closed:
            text.detach()  # the stream is the caller's


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield lines; raise csv.Error for one that is too long to be one."""
    while line := text.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise csv.Error(_TOO_LONG)
        yield line
