"""Sparse matrices of scipy.sparse.save_npz. Formats, sizes and types are checked in the headers before arrays are read.

Pickles are never opened.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.lib import format as npy

from xc_core.errors import DataError, XCError, bare, first_line, preview
from xc_core.memory import free_bytes
from xc_core.shapes import I64, Array

_FORMATS: Final = {"csr": ("indices", "indptr"), "csc": ("indices", "indptr"), "coo": ("row", "col")}
"""The formats that are read, and their arrays of positions beside ``data``."""
_HEADER_BYTES: Final = 4096
"""Longest header of an array; a plain one has 118 bytes."""
_COPIED: Final = 16
"""Bytes per number of the copies that are made, at most two of 8 bytes."""
_VALUES, _WHOLE, _TEXT = "biuf", "iu", "SU"
"""numpy's kinds of types: of values, of positions, and of the name of the format."""


@dataclass(frozen=True)
class _Member:
    """An array in the archive as its header describes it; ``start`` is the length of the header in bytes."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    bytes: int
    """Length of the member in the archive, uncompressed, as the archive says."""


def columns_of(path: Path) -> int:
    """Return the number of columns of a matrix; no array is read. Raises DataError."""
    with _opened(path) as archive:
        return _shape(archive, path)[1]


def read_csr(path: Path, *, most_rows: int, most_columns: int) -> scipy.sparse.csr_matrix:
    """Return a matrix as CSR, with repeated entries kept; the formats csr, csc and coo are read.

    Raises DataError before anything large is allocated: for more than ``most_rows`` x ``most_columns``, arrays of other
    types or lengths than the shape needs, or more bytes than there is memory.
    """
    with _opened(path) as archive:
        stored = _small(archive, "format", _TEXT, (), path)
        kind = stored.decode("ascii", "replace") if isinstance(stored, bytes) else str(stored)  # by SciPy before 1.0
        if kind not in _FORMATS:
            raise _wrong(
                f"the format {preview(kind)}",
                f"one of {', '.join(_FORMATS)}",
                "save it again with matrix.tocsr()",
                path,
            )
        shape = _shape(archive, path)
        for size, limit, axis in zip(shape, (most_rows, most_columns), ("rows", "columns"), strict=True):
            if size > limit:
                raise _wrong(f"{size:,} {axis}", f"at most {limit:,}, by the size of the text file", _AGAIN, path)
        arrays = _arrays(archive, kind, shape, path)
    matrix = _csr(kind, arrays, shape)
    if matrix is None:
        raise _wrong("positions outside of the matrix", "indices and indptr that fit the shape", _AGAIN, path)
    return matrix


_AGAIN: Final = "download or write the file again"


def _wrong(found: str, expected: str, do: str, path: Path) -> DataError:
    return DataError(found, expected=expected, do=do, where=path.name)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; every error of zipfile, numpy and scipy while it is read becomes a DataError."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except XCError:
        raise
    except Exception as error:  # they raise errors of a dozen types for damaged files
        raise _wrong(
            f"a file that scipy cannot read ({first_line(error, 120)})",
            "a sparse matrix written by scipy.sparse.save_npz; pickles are not opened",
            _AGAIN,
            path,
        ) from error


def _member(archive: zipfile.ZipFile, name: str, kinds: str, path: Path) -> _Member:
    """Return the header of an array after comparing its type with ``kinds`` and its length with the archive's."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as stream:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream, max_header_size=_HEADER_BYTES)
        member = _Member(name, dtype, shape, stream.tell(), info.file_size)
    if dtype.kind not in kinds:
        type_name = "real numbers" if kinds == _VALUES else "whole numbers" if kinds == _WHOLE else "text"
        hint = "; pickles are not opened" if dtype.hasobject else ""
        raise _wrong(f"{name} of type {bare(str(dtype))}", f"{type_name}, written by save_npz{hint}", _AGAIN, path)
    needed = member.start + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if needed != member.bytes:
        raise _wrong(f"{name} of {member.bytes:,} bytes", f"{needed:,} bytes, as its header says", _AGAIN, path)
    return member


def _small(archive: zipfile.ZipFile, name: str, kinds: str, shape: tuple[int, ...], path: Path) -> Any:
    """Return a small array of a known shape."""
    member = _member(archive, name, kinds, path)
    if member.shape != shape or member.dtype.itemsize > 64:
        raise _wrong(f"{name} of shape {member.shape}", f"the shape {shape}", _AGAIN, path)
    return _read(archive, name)[()]


def _read(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(f"{name}.npy") as stream:
        return np.asarray(npy.read_array(stream, allow_pickle=False, max_header_size=_HEADER_BYTES))


def _shape(archive: zipfile.ZipFile, path: Path) -> tuple[int, int]:
    rows, columns = (int(size) for size in _small(archive, "shape", _WHOLE, (2,), path))
    if min(rows, columns) < 0:
        raise _wrong(f"the shape {rows} x {columns}", "two numbers from 0", _AGAIN, path)
    return rows, columns


def _arrays(archive: zipfile.ZipFile, kind: str, shape: tuple[int, int], path: Path) -> dict[str, Array]:
    """Read the arrays of a matrix after checking all headers."""
    first, second = _FORMATS[kind]
    members = [_member(archive, "data", _VALUES, path)]
    members += [_member(archive, name, _WHOLE, path) for name in (first, second)]
    entries = members[0].shape
    needed = {"csr": (shape[0] + 1,), "csc": (shape[1] + 1,)}.get(kind, entries)
    for member, expected_shape in zip(members, (entries, entries, needed), strict=True):
        if len(member.shape) != 1 or member.shape != expected_shape:
            raise _wrong(f"{member.name} of shape {member.shape}", f"the shape {expected_shape}", _AGAIN, path)
    size = sum(member.bytes + _COPIED * int(np.prod(member.shape)) for member in members)
    if size > (free := free_bytes()):
        found, expected = f"a matrix that takes {size:,} bytes", f"at most the {free:,} bytes of free memory"
        raise _wrong(found, expected, "use a machine with more memory, or the layout xc-text, which is streamed", path)
    return {member.name: _read(archive, member.name) for member in members}


def _csr(kind: str, arrays: dict[str, Array], shape: tuple[int, int]) -> scipy.sparse.csr_matrix | None:
    """Return the matrix as CSR; None if positions are outside of its shape."""
    data = arrays["data"].astype(np.float64)
    if kind == "coo":
        row, col = (arrays[name].astype(np.int64) for name in ("row", "col"))
        if not (_within(row, shape[0]) and _within(col, shape[1])):
            return None
        order = np.argsort(row, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=shape[0]))])
        return scipy.sparse.csr_matrix((data[order], col[order], indptr), shape)
    indices, indptr = (arrays[name].astype(np.int64) for name in ("indices", "indptr"))
    ordered = indptr[0] == 0 and indptr[-1] == len(indices) and bool((indptr[1:] >= indptr[:-1]).all())
    if not ordered or not _within(indices, shape[1] if kind == "csr" else shape[0]):
        return None
    build = scipy.sparse.csr_matrix if kind == "csr" else scipy.sparse.csc_matrix
    return build((data, indices, indptr), shape).tocsr()


def _within(positions: I64, size: int) -> bool:
    return not len(positions) or bool(positions.min() >= 0 and positions.max() < size)
