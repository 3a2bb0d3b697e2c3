"""CSV and TSV, read strictly (RFC 4180): a quote that is not closed is an error, not a cell with the whole rest."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import IO, Final, cast

import pyarrow as pa

from xc_core.data.formats.base import arrow
from xc_core.errors import DataError
from xc_core.visible import counted

Bytes = IO[bytes] | io.BufferedIOBase
LONGEST: Final = 64 << 20
"""Characters of a cell or line, at most; one quote too few may join all rows of a file."""
_NAMES: Final = {";": ("", ""), "\t": ("tabs", ".tsv"), ",": ("commas", ".csv")}
"""Separators of tables, their names, and the ending of a file that may have them."""
_PART: Final = 4 << 20
"""Characters after which a part ends."""
_TOO_LONG: Final = f"field larger than field limit ({LONGEST})"
_WRONG: Final = {
    "unexpected end of data": ("a quote that is never closed", 'a second " at the end of the cell'),
    "',' expected after '\"'": ("text behind the closing quote of a cell", "a comma, or the end of the row"),
    "'\t' expected after '\"'": ("text behind the closing quote of a cell", "a tab, or the end of the row"),
    _TOO_LONG: (f"a cell of more than {LONGEST:,} characters", "a shorter text"),
}
"""Messages of the reader -> what is wrong, and what is expected."""


def csv_names(stream: Bytes, where: str, separator: str = ",") -> list[str]:
    """Return the names of the columns, the cells of the first row that is not blank; raise DataError without one."""
    for _, names in _rows(stream, where, separator):
        if len(names) == 1:
            _check_separator(names[0], "", where, separator)
        return names
    raise DataError(
        "no row", expected="a header line with the names of the columns", do="write the file again", where=where
    )


def _check_separator(header: str, prefix: str, where: str, separator: str) -> None:
    """Raise DataError if a header has another separator, with ``prefix`` in front of it."""
    actual = next((sign for sign in _NAMES if sign != separator and prefix + sign in header), None)
    if actual is not None:
        name, ending = _NAMES[separator][0], _NAMES[actual][1]
        raise DataError(
            f"a header that is separated by {actual!r}",
            expected=f"{name} between the cells",
            do=f"write the table with {name}" + f", or give it a name that ends in {ending}" * bool(ending),
            where=f"{where}, row 1",
        )


def csv_batches(stream: Bytes, where: str, rows: int, separator: str = ",") -> Iterator[pa.RecordBatch]:
    """Yield parts of at most ``rows`` rows and about 4 million characters, all columns strings, without blank lines.

    Raises DataError, with ``where`` and the row (the header is row 1), for wrong quotes, for a row of more or fewer
    cells than the header, and for a cell that is too long; UnicodeDecodeError if the text is not UTF-8.
    """
    numbered_rows = _rows(stream, where, separator)
    _, names = next(numbered_rows, (1, []))
    batch: list[list[str]] = []
    size = 0
    for number, cells in numbered_rows:
        if len(cells) != len(names):
            raise DataError(
                counted(len(cells), "cell"),
                expected=f"{len(names)}, as in the header",
                do=f'fix the row; put a cell with a separator between quotes: "a{separator} b"',
                where=f"{where}, row {number}",
            )
        batch.append(cells)
        size += sum(map(len, cells))
        if len(batch) == rows or size > _PART:
            yield _batch(batch, names)
            batch, size = [], 0
    if batch:
        yield _batch(batch, names)


def _batch(rows: list[list[str]], names: list[str]) -> pa.RecordBatch:
    return pa.record_batch([arrow(column) for column in zip(*rows, strict=True)], names)


def _rows(stream: Bytes, where: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, cells) of the rows that are not blank."""
    csv.field_size_limit(LONGEST)
    text = io.TextIOWrapper(cast("IO[bytes]", stream), "utf-8-sig", newline="")
    number, line = 1, ""
    try:
        for cells in csv.reader((line := raw for raw in _lines(text)), delimiter=separator, strict=True):
            if cells:
                yield number, cells
                number += 1
    except csv.Error as error:
        if number == 1:
            _check_separator(line, '"', where, separator)
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
