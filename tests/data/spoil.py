"""Ways to spoil a good folder; lines are numbered from 1, as in messages."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse

from tests.data.worlds import label_csr, small_world, write_xc_text
from xc_core.errors import DataError, XCError

_DROP: Final = object()
Spoil = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """How a good folder is spoilt, and what the error must say."""

    name: str
    layout: str
    spoil: Spoil
    fragments: tuple[str, ...]
    error: type[XCError] = DataError
    settings: dict[str, Any] = field(default_factory=dict)


def case(name: str, layout: str, spoil: Spoil, *fragments: str, **more: Any) -> Case:
    return Case(name, layout, spoil, fragments, **more)


def field_of(line: int, **changes: Any) -> Spoil:
    """Change fields of a document of trn.json."""
    return lambda folder: put_json(folder / "trn.json", line, **changes)


def raw_line(line: int, content: bytes) -> Spoil:
    """Replace a line of trn.json by raw bytes."""
    return lambda folder: put(folder / "trn.json", line, content)


def document(**changes: Any) -> bytes:
    row = {"uid": "new", "title": "a title", "content": "", "target_ind": [1], "target_rel": [1.0]} | changes
    return json.dumps(row).encode()


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def long_line(folder: Path) -> None:
    put_json(folder / "trn.json", 4, content="word " * 210_000)


def link(folder: Path, name: str, goal: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(goal)


def link_to_moved_file(folder: Path) -> None:
    outside = folder.parent / "outside.json"
    (folder / "lbl.json").rename(outside)
    link(folder, "lbl.json", outside)


def link_to_outer_folder(folder: Path) -> None:
    link(folder, "more", folder.parent)


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def remove(folder: Path) -> None:
    empty(folder)
    folder.rmdir()


def file_instead(folder: Path) -> None:
    remove(folder)
    folder.write_text("not a folder")


def two_layouts(folder: Path) -> None:
    write_xc_text(small_world(), folder)


def rewrite_parquet(name: str, **columns: list[Any]) -> Spoil:
    """Replace or add columns of a Parquet table."""

    def spoil(folder: Path) -> None:
        table = pq.read_table(folder / name).to_pydict()
        pq.write_table(pa.table(table | columns), folder / name)

    return spoil


def pickled_matrix(folder: Path) -> None:
    (folder / "Y.trn.npz").write_bytes(pickle.dumps({"a": 1}))


def object_matrix(folder: Path) -> None:
    np.savez(folder / "Y.trn.npz", format=b"csr", shape=np.array([{}, {}], object), data=np.array([{}], object))


def arrays_of(name: str, **changes: Any) -> Spoil:
    """Replace or add arrays of a saved matrix."""

    def spoil(folder: Path) -> None:
        with np.load(folder / name) as arrays:
            np.savez(folder / name, **(dict(arrays) | changes))

    return spoil


def huge_header(folder: Path) -> None:
    """Let the header of an array say that it has 10^15 numbers."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,)}\n"
    with np.load(folder / "Y.trn.npz") as arrays, zipfile.ZipFile(folder / "new.npz", "w") as archive:
        for key, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array)
            raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            archive.writestr(f"{key}.npy", raw if key == "data" else content.getvalue())
    (folder / "new.npz").replace(folder / "Y.trn.npz")


def save_matrix(name: str, rows: slice = slice(None), columns: int = 10, twice: bool = False) -> Spoil:
    def spoil(folder: Path) -> None:
        matrix = label_csr(small_world().train[rows], columns)
        if twice:
            indices = np.concatenate([matrix.indices[:3], matrix.indices[2:]])
            indptr = np.where(np.arange(len(matrix.indptr)) > 1, matrix.indptr + 1, matrix.indptr)
            matrix = scipy.sparse.csr_matrix((np.ones(len(indices)), indices, indptr), matrix.shape)
        scipy.sparse.save_npz(folder / name, matrix)

    return spoil


def bare_array(folder: Path) -> None:
    np.save(folder / "Y.tst.npy", np.eye(3))
    (folder / "Y.tst.npy").rename(folder / "Y.tst.npz")


def invalid_utf8_parquet(folder: Path) -> None:
    table = pq.read_table(folder / "train.parquet")
    offsets = pa.array(np.arange(table.num_rows + 1, dtype=np.int32) * 2).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), table.num_rows, [None, offsets, pa.py_buffer(b"a\xe9" * table.num_rows)])
    pq.write_table(table.set_column(1, "text", text), folder / "train.parquet")


def edit(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Rewrite the lines of a plain file."""
    path.write_bytes(b"".join(line + b"\n" for line in change(path.read_bytes().split(b"\n")[:-1])))


def put(path: Path, line: int, content: bytes) -> None:
    """Replace one line."""
    edit(path, lambda lines: [*lines[: line - 1], content, *lines[line:]])


def insert(path: Path, line: int, content: bytes) -> None:
    """Insert a line before line ``line``."""
    edit(path, lambda lines: [*lines[: line - 1], content, *lines[line - 1 :]])


def drop(path: Path, line: int) -> None:
    """Delete one line."""
    edit(path, lambda lines: [*lines[: line - 1], *lines[line:]])


def put_json(path: Path, line: int, **changes: Any) -> None:
    """Change fields of the object in one line; ``_DROP`` deletes a field."""
    row = json.loads(path.read_bytes().split(b"\n")[line - 1]) | changes
    put(path, line, json.dumps({key: value for key, value in row.items() if value is not _DROP}).encode())


def drop_key(path: Path, line: int, *keys: str) -> None:
    """Delete fields of the object in one line."""
    put_json(path, line, **dict.fromkeys(keys, _DROP))
