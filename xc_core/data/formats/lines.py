"""Text files, plain or gzipped, as blocks of whole lines that are checked while they are read."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from xc_core.data.formats.base import ReadOptions
from xc_core.errors import DataError


def blocks(path: Path, options: ReadOptions) -> Iterator[tuple[int, bytes]]:
    """Yield (1-based number of the first line, whole lines, each ending in a newline).

    A byte order mark at the start of the file is skipped. Raises DataError for a truncated or damaged gzip stream, a
    line that reaches the limit, bytes that are not UTF-8, or a NUL.
    """
    number, rest, at_start = 1, b"", True
    with open_bytes(path) as stream:
        while chunk := _read(stream, options.block_bytes, path, number):
            chunk, at_start = chunk.removeprefix(codecs.BOM_UTF8) if at_start else chunk, False
            cut = chunk.rfind(b"\n") + 1
            block = b"".join((rest, memoryview(chunk)[:cut])) if cut else b""
            rest = chunk[cut:] if cut else rest + chunk
            if len(rest) >= options.max_line_bytes:
                _too_long(path, number + block.count(b"\n"), options)
            if block:
                _check(block, path, number, options)
                yield number, block
                number += block.count(b"\n")
    if rest:
        _check(rest + b"\n", path, number, options)
        yield number, rest + b"\n"


def lines(path: Path, options: ReadOptions) -> Iterator[tuple[int, list[str]]]:
    """Yield (1-based number of the first line, lines without newline or carriage return); raise as ``blocks``."""
    for number, block in blocks(path, options):
        yield number, [line.removesuffix("\r") for line in block.decode().split("\n")[:-1]]


def open_bytes(path: Path) -> BufferedIOBase:
    """Open a file for reading bytes; a file whose name ends in .gz is decompressed.

    Raises DataError for one of no bytes, which is no compressed file; Python would read it as an empty text.
    """
    if path.suffix == ".gz" and not path.stat().st_size:
        raise _broken_gzip("0 bytes", path.name, path.name)
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _read(stream: BufferedIOBase, amount: int, path: Path, number: int) -> bytes:
    try:
        return stream.read(amount)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _broken_gzip(error, path.name, f"{path.name}, line {number} or later") from error


def _broken_gzip(cause: object, name: str, where: str) -> DataError:
    return DataError(
        f"a truncated or broken gzip stream ({cause})",
        expected="a complete gzip file, because the name ends in .gz",
        do=f"download the file again (`gzip -t {name}` checks it), or remove .gz from its name if it is text",
        where=where,
    )


def _check(block: bytes, path: Path, number: int, options: ReadOptions) -> None:
    try:
        if not is_utf8(block):
            block.decode("utf-8")
    except UnicodeDecodeError as error:
        is_utf16 = number == 1 and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = "utf-16" if is_utf16 else "cp1252"
        raise DataError(
            f"the byte 0x{block[error.start]:02x}, which is not UTF-8",
            expected="UTF-8 text",
            do=f"convert the file from its encoding, for instance: iconv -f {encoding} -t utf-8 OLD > NEW",
            where=_place(path, number, block, error.start),
        ) from error
    if (position := block.find(b"\0")) >= 0:
        raise DataError(
            "a NUL byte",
            expected="text without NUL",
            do="remove the NUL bytes, for instance with: tr -d '\\000'",
            where=_place(path, number, block, position),
        )
    if len(block) >= options.max_line_bytes:
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        too_long = np.flatnonzero(np.diff(ends, prepend=-1) > options.max_line_bytes)
        if len(too_long):
            _too_long(path, number + int(too_long[0]), options)


def is_utf8(block: bytes) -> bool:
    """Return True if ``bytes.decode`` accepts the bytes; Arrow finds it 20 times as fast, and makes no copy."""
    ends = np.array([0, len(block)], np.int64)
    try:
        pa.LargeStringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(block)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _place(path: Path, number: int, block: bytes, position: int) -> str:
    line = number + block.count(b"\n", 0, position)
    return f"{path.name}, line {line}"


def _too_long(path: Path, number: int, options: ReadOptions) -> NoReturn:
    raise DataError(
        f"a line of {options.max_line_bytes:,} bytes or more",
        expected=f"lines under {options.max_line_bytes:,} bytes",
        do="look for a missing line break; if the text really is that long, raise --max-line-bytes",
        where=f"{path.name}, line {number}",
    )
