"""The strict reader of CSV: what it reads, and what it refuses instead of swallowing rows."""

from __future__ import annotations

import csv
import gzip
import io
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.data.formats import csv_rows
from xc_core.data.formats.csv_rows import csv_batches, csv_names
from xc_core.errors import DataError


def read(content: bytes, rows: int = 3) -> list[dict[str, str]]:
    return [row for batch in csv_batches(io.BytesIO(content), "x.csv", rows) for row in batch.to_pylist()]


CELLS = st.text(st.characters(codec="utf-8"), max_size=8)


@settings(deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS), max_size=8), st.integers(1, 4), st.sampled_from(["\n", "\r\n"]))
def test_what_a_writer_writes_is_read_again(rows: list[tuple[str, str]], size: int, ending: str) -> None:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator=ending, quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "labels"), *rows])
    content = stream.getvalue().encode()
    assert read(content, size) == [{"text": text, "labels": labels} for text, labels in rows]
    assert csv_names(io.BytesIO(content), "x.csv") == ["text", "labels"]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b"a,b\n1,2", [("1", "2")]),
        (b"\xef\xbb\xbfa,b\n1,2\n", [("1", "2")]),
        (b"\n\na,b\n\n1,2\n\n", [("1", "2")]),
        (b"a,b\n,\n", [("", "")]),
        (b'a,b\n5" disk,"a 5"" disk"\n', [('5" disk', 'a 5" disk')]),
        (b'a,b\n"one\n\ntwo",2\n', [("one\n\ntwo", "2")]),
        ("a,b\nx\u2028y,\u0085\n".encode(), [("x\u2028y", "\u0085")]),
        (b"a,b\n", []),
    ],
)
def test_rows(content: bytes, rows: list[tuple[str, str]]) -> None:
    assert [tuple(row.values()) for row in read(content)] == rows


@pytest.mark.parametrize(
    ("content", "row", "found"),
    [
        (b'a,b\n1,2\n3,"x\n4,y\n5,z\n', 3, "a quote that is never closed"),
        (b'a,b\n1,"x\n2,"y"\n3,"z"\n', 2, "text behind the closing quote of a cell"),
        (b"a,b\n1,2\n\n3\n", 3, "1 cell"),
        (b"a,b\n1,2,3\n", 2, "3 cells"),
        (b'"a,b\n1,2\n', 1, "a quote that is never closed"),
        (b"", 0, "no row"),
    ],
)
def test_a_row_that_is_wrong_is_named(content: bytes, row: int, found: str) -> None:
    with pytest.raises(DataError) as caught:
        csv_names(io.BytesIO(content), "x.csv")
        read(content)
    assert (caught.value.where, caught.value.found) == (f"x.csv, row {row}" if row else "x.csv", found)


def test_a_row_may_be_longer_than_any_buffer_but_not_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(b"a,b\n" + b"x" * (5 << 20) + b",2\n") == [{"a": "x" * (5 << 20), "b": "2"}]
    monkeypatch.setattr(csv_rows, "LONGEST", 100)
    with pytest.raises(DataError, match="field larger than field limit"):
        read(b'a,b\n1,"' + b"x,y\n" * 1000)


def test_text_that_is_no_utf_8_is_the_callers_matter() -> None:
    with pytest.raises(UnicodeDecodeError):
        read(b"a,b\n\xff,2\n")


def test_memory_holds_one_part_and_the_stream_stays_open() -> None:
    content = b"a,b\n" + b"some words of a text,label\n" * 200_000
    stream = io.BytesIO(content)
    tracemalloc.start()
    assert sum(len(batch) for batch in csv_batches(stream, "x.csv", 1000)) == 200_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20, peak
    assert not stream.closed


def test_a_compressed_file_that_ends_early_is_the_callers_matter() -> None:
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 10_000)
    with gzip.open(io.BytesIO(whole[:-20])) as stream, pytest.raises(EOFError):
        list(csv_batches(stream, "x.csv", 10))


def test_all_columns_are_strings() -> None:
    (batch,) = csv_batches(io.BytesIO(b"a,b\n1,true\n"), "x.csv", 10)
    assert batch.schema == pa.schema([("a", pa.string()), ("b", pa.string())])


@pytest.mark.parametrize("mark", [";", "\t"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_table_with_another_separator_is_named_before_its_rows_are_blamed(mark: str, quote: str) -> None:
    header = mark.join(f"{quote}{name}{quote}" for name in ("uid", "text", "labels"))
    with pytest.raises(DataError, match="a header that is separated by") as caught:
        csv_names(io.BytesIO(f'{header}\n1{mark}a "b, c" d{mark}x\n'.encode()), "x.csv")
    assert repr(mark) in caught.value.found


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_separator_between_quotes_is_part_of_the_cell_and_the_advice_shows_one(separator: str) -> None:
    content = f'a{separator}b\n"1{separator}2"{separator}3\n'
    assert csv_names(io.BytesIO(content.encode()), "x", separator) == ["a", "b"]
    (batch,) = csv_batches(io.BytesIO(content.encode()), "x", 10, separator)
    assert batch.to_pylist() == [{"a": f"1{separator}2", "b": "3"}]
    with pytest.raises(DataError) as caught:
        list(csv_batches(io.BytesIO(content.replace('"', "").encode()), "x", 10, separator))
    assert (caught.value.found, caught.value.where) == ("3 cells", "x, row 2")
    assert caught.value.do == f'fix the row; put a cell with a separator between quotes: "a{separator} b"'


def test_a_part_ends_when_its_cells_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "_PART", 100)
    content = b"a\n" + b"x" * 60 + b"\n" + b"y\n" * 5
    assert [len(batch) for batch in csv_batches(io.BytesIO(b"a\n" + (b"x" * 60 + b"\n") * 5), "x.csv", 10)] == [2, 2, 1]
    assert [len(batch) for batch in csv_batches(io.BytesIO(content), "x.csv", 10)] == [6]
