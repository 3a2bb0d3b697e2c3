"""CSV, read strictly (RFC 4180): a quote that is not closed is an error, not a cell with the rest of the file."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from typing import IO, Final, cast

import pyarrow as pa

from xc_core.errors import DataError

Bytes = IO[bytes] | io.BufferedIOBase
_LONGEST: Final = 64 << 20
"""Characters of a cell, at most; one quote too few may join all rows of a file."""
_WRONG: Final = {
    "unexpected end of data": ("a quote that is never closed", 'a second " at the end of the cell'),
    "',' expected after '\"'": ("text behind the closing quote of a cell", "a comma, or the end of the row"),
    f"field larger than field limit ({_LONGEST})": (f"a cell of more than {_LONGEST:,} characters", "a shorter text"),
}
"""Messages of the reader -> what is wrong, and what is expected."""


def csv_names(stream: Bytes, where: str) -> list[str]:
    """Return the names of the columns, the cells of the first row that is not blank; raise DataError without one."""
    for _, names in _rows(stream, where):
        return names
    raise DataError(
        "no row", expected="a header line with the names of the columns", do="write the file again", where=where
    )


def csv_batches(stream: Bytes, where: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield parts of at most ``rows`` rows, all columns strings; blank lines count as no rows.

    Raises DataError, with ``where`` and the row (the header is row 1), for wrong quotes, for a row of more or fewer
    cells than the header, and for a cell that is too long; UnicodeDecodeError if the text is not UTF-8.
    """
    found = _rows(stream, where)
    _, names = next(found, (1, []))
    while part := list(itertools.islice(found, rows)):
        for number, cells in part:
            if len(cells) != len(names):
                raise DataError(
                    f"{len(cells)} cells",
                    expected=f"{len(names)}, as in the header",
                    do='fix the row; a cell with a comma stands between quotes: "a, b"',
                    where=f"{where}, row {number}",
                )
        columns = zip(*(cells for _, cells in part), strict=True)
        yield pa.record_batch([pa.array(column, pa.string()) for column in columns], names)


def _rows(stream: Bytes, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, cells) of the rows that are not blank."""
    csv.field_size_limit(_LONGEST)
    text = io.TextIOWrapper(cast("IO[bytes]", stream), "utf-8-sig", newline="")
    number = 1
    try:
        for cells in csv.reader(text, strict=True):
            if cells:
                yield number, cells
                number += 1
    except csv.Error as error:
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
