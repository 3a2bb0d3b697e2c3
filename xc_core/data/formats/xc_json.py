"""XC repository JSON: trn.json, tst.json (uid, title, content, target_ind, target_rel), lbl.json (uid, title, content).

Optional: val.json, validation documents; fields ``group``, ``time`` and ``near_duplicate_of`` of documents.

pyarrow parses a block at once; only if that fails, the first wrong line is searched for, to explain what is wrong.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.json as pa_json

from xc_core.artifacts import replacing, write_file
from xc_core.data.formats.base import LAYOUTS, Block, Layout, ReadOptions, Source, Texts, find, in_json, need
from xc_core.data.formats.json_rows import object_of, wrong_line
from xc_core.data.formats.lines import blocks, open_bytes
from xc_core.data.formats.times import written
from xc_core.data.formats.xc_text import read_header
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.errors import DataError, preview, previews
from xc_core.progress import report
from xc_core.shapes import I64, Array, Bool

_TEXT = [("uid", pa.string()), ("title", pa.string()), ("content", pa.string())]
_TARGET = [("target_ind", pa.list_(pa.int64())), ("target_rel", pa.list_(pa.float64()))]
_FAMILY = "near_duplicate_of"
"""Written by an update: the name of the document's family of near-duplicates, unless it is its own uid. If it is for
all, one document has it, so that families are not searched again."""
_NAMES = [("group", pa.string()), (_FAMILY, pa.string())]
_TIME: Final = (pa.string(), pa.int64(), pa.float64())
"""Types of the field ``time`` that pyarrow reads, in the order in which they are tried."""
STEM: Final = {TRAIN: "trn", VALIDATION: "val", TEST: "tst"}
"""What the names of the files of a split begin with."""
_SEAM = re.compile(rb"\}[ \t\r]*\n[ \t]*(?=\{)")
"""The end of one object and the start of the next; inside an object, JSON never has a "{" right after a "}"."""


class XCJson(Source):
    """Source over ``{trn,tst,lbl}.json[.gz]`` and the optional filter files."""

    documents_stay = True
    """Documents name labels by their line."""

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self.folder, self.options = folder, options
        needed = ("lbl",) if options.part else ("trn", "tst", "lbl")
        self._path = {name: need(folder, f"{name}.json") for name in needed}
        self._path |= {name: path for name in ("trn", "tst", "val") if (path := find(folder, f"{name}.json"))}
        self.splits = tuple(split for split, stem in STEM.items() if stem in self._path)
        filters = [path for split in self.splits if (path := self.filters(split))]
        matrices = [path for split in self.splits if (path := find(folder, f"{STEM[split]}_X_Y.txt"))]
        self.files = [*self._path.values(), *filters, *matrices]
        self._reported: set[Path] = set()

    def labels(self) -> Iterator[Block]:
        """Yield the lines of lbl.json; compare their number with ``*_X_Y.txt`` if there is one."""
        rows = 0
        for block in self._read("lbl", with_targets=False):
            rows += len(block)
            yield block
        for split in self.splits:
            self._compare(self._path["lbl"].name, f"{STEM[split]}_X_Y.txt", "labels", rows)

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the lines of a file of documents; compare their number with ``*_X_Y.txt`` if there is one."""
        stem, rows = STEM[split], 0
        for block in self._read(stem, with_targets=True):
            rows += len(block)
            yield block
        self._compare(self._path[stem].name, f"{stem}_X_Y.txt", "documents", rows)

    def filters(self, split: str) -> Path | None:
        """Return filter_labels_{split}.txt; None if there is none."""
        return find(self.folder, f"filter_labels_{split}.txt")

    def _compare(self, file: str, matrix: str, side: str, count: int) -> None:
        """Raise DataError if the header of a matrix beside the JSON states another number."""
        path = find(self.folder, matrix)
        if path is None:
            return
        documents, labels = read_header(path, self.options)
        claimed = documents if side == "documents" else labels
        if claimed != count:
            raise DataError(
                f"{claimed} {side} in the header",
                expected=f"{count}, the number of lines of {file}",
                do=f"download both files again; {path.name} is not needed beside JSON, so it can also be deleted",
                where=f"{path.name}, line 1",
            )

    def _read(self, stem: str, *, with_targets: bool) -> Iterator[Block]:
        path = self._path[stem]
        schema = pa.schema(_TEXT + (_TARGET + _NAMES if with_targets else []))
        timed = pa.schema([*schema, ("time", pa.string())])
        for number, raw in blocks(path, self.options):
            has_times = with_targets and b'"time"' in raw
            table = _parse(raw, timed) if has_times else None
            if table is None:
                table = _parse(raw, schema)
            if table is None:
                _explain(raw, path, number, schema)
            if path not in self._reported:
                self._reported.add(path)
                _report_ignored(raw, path, [*schema.names, "time"] if with_targets else schema.names)
            block = _block(table, path.name, number)
            if has_times:
                block.times = _texts(table) if "time" in table.column_names else _times(raw)
            yield block


def _report_ignored(raw: bytes, path: Path, known: list[str]) -> None:
    """Report the fields of the first line that nothing reads."""
    ignored = [name for name in _object(raw[: raw.index(b"\n")]) if name not in known]
    if ignored:
        report(f"{path.name}: ignored fields: {previews(ignored)}")


def _object(line: bytes) -> dict[str, Any]:
    """Return the object of a line; an empty one if Python cannot read it."""
    with suppress(ValueError, RecursionError):  # a huge number or a deep list in a field, which Arrow skips
        row = json.loads(line)
        return row if isinstance(row, dict) else {}
    return {}


def _times(raw: bytes) -> list[str]:
    """Return the field ``time`` of each line of a block as texts; nothing is "".

    It may have any values, of several types too: before ``--split time`` it was ignored, and other splits still need no
    times.
    """
    for kind in _TIME:
        if table := _table(raw, pa.schema([("time", kind)])):
            return _texts(table)
    return [written(_object(line).get("time")) for line in raw.split(b"\n")[:-1]]


def _texts(table: pa.Table) -> list[str]:
    return list(map(written, table["time"].to_pylist()))


def _parse(raw: bytes, schema: pa.Schema) -> pa.Table | None:
    """Return lines as a table, one object per row; None if any line is wrong."""
    rows = _rows(raw)
    if rows is None or not raw.lstrip().startswith(b"{"):
        return None  # pyarrow ends the process (SIGSEGV) if a line is null
    table = _table(raw, schema)
    return table if table is not None and table.num_rows == rows and _complete(table) else None


def _table(raw: bytes, schema: pa.Schema) -> pa.Table | None:
    """Return the fields of a schema as a table; None if pyarrow cannot read them in its types."""
    try:
        return pa_json.read_json(
            io.BytesIO(raw),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(raw) + 1),
            parse_options=pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None


def _rows(raw: bytes) -> int | None:
    """Return the number of lines if one object ends and the next one starts at each line break between them."""
    content = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    between = ends[:-1]
    if (content[between - 1] == ord("}")).all() and (content[between + 1] == ord("{")).all():
        return len(ends)
    return len(ends) if len(_SEAM.findall(raw)) == len(between) else None


def _complete(table: pa.Table) -> bool:
    """Return False if a uid, both texts, the targets, an element of a list or one of several relevances is missing."""
    if table["uid"].null_count or _both_null(table["title"], table["content"]):
        return False
    if "target_ind" not in table.column_names:
        return True
    targets, relevance = table["target_ind"].combine_chunks(), table["target_rel"].combine_chunks()
    if targets.null_count or targets.flatten().null_count or relevance.flatten().null_count:
        return False
    return bool((_counts(targets) == _counts(relevance))[_not_null(relevance)].all())


def _both_null(titles: pa.ChunkedArray, contents: pa.ChunkedArray) -> bool:
    """Return True if both columns are null in the same row."""
    if not titles.null_count or not contents.null_count:
        return False
    return bool((titles.is_null().to_numpy() & contents.is_null().to_numpy()).any())


def _not_null(column: pa.Array) -> Bool:
    """Return True for the rows that are not null."""
    if not column.null_count:
        return np.ones(len(column), bool)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def _counts(column: pa.ListArray) -> I64:
    return np.diff(_numbers(column.offsets)).astype(np.int64)


def _numbers(column: pa.Array) -> Array:
    """Return numbers without nulls; unlike ``to_numpy`` it does not import pandas."""
    return np.from_dlpack(column)


def _block(table: pa.Table, file: str, number: int) -> Block:
    uids, titles, contents = (Texts(_filled(table[name].combine_chunks())) for name in ("uid", "title", "content"))
    block = Block(file, number, uids, titles, contents)
    if "target_ind" in table.column_names:
        targets, relevance = table["target_ind"].combine_chunks(), table["target_rel"].combine_chunks()
        block.label_ids = _numbers(targets.flatten()).astype(np.int64)
        block.label_counts = _counts(targets)
        has_relevance = np.repeat(_not_null(relevance), block.label_counts)
        block.relevance = np.ones(len(block.label_ids))
        block.relevance[has_relevance] = _numbers(relevance.flatten())
        if table["group"].null_count < len(table):
            block.groups = [group or "" for group in table["group"].to_pylist()]
        if table[_FAMILY].null_count < len(table):
            block.families = [family or "" for family in table[_FAMILY].to_pylist()]
    return block


def _filled(texts: pa.StringArray) -> pa.StringArray:
    return texts.fill_null("") if texts.null_count else texts


def _explain(raw: bytes, path: Path, number: int, schema: pa.Schema) -> NoReturn:
    """Find the first wrong line by bisection and raise DataError with the problem."""
    lines = raw.split(b"\n")[:-1]
    first, end = 0, len(lines)
    while end - first > 1:
        middle = (first + end) // 2
        if _parse(b"\n".join(lines[first:middle]) + b"\n", schema) is None:
            end = middle
        else:
            first = middle
    line = lines[first].decode()
    raise wrong_line(*_problem(line, with_targets="target_ind" in schema.names), path, number + first, line)


def _problem(line: str, *, with_targets: bool) -> tuple[str, str]:
    """Return what was found in a wrong line, and what was expected."""
    row = object_of(line)
    if isinstance(row, tuple):
        return row
    if not isinstance(row.get("uid"), str):
        return (
            f"uid {in_json(row['uid'])}" if "uid" in row else "no uid"
        ), 'uid as a string, for instance "uid": "B0042"'
    for key in ("title", "content"):
        if not isinstance(row.get(key), str | None):
            return f"{key} {in_json(row[key])}", f"{key} as a string"
    if row.get("title") is None and row.get("content") is None:
        return f"neither title nor content, but {', '.join(sorted(row))}", "title, content, or both"
    return (_target_problem(row) if with_targets else None) or (
        f"an ambiguous line: {preview(line)}",
        "a plain JSON object",
    )


def _target_problem(row: dict[str, Any]) -> tuple[str, str] | None:
    targets, relevance = row.get("target_ind"), row.get("target_rel")
    if not isinstance(targets, list):
        found = f"target_ind {in_json(targets)}" if "target_ind" in row else "no target_ind"
        return found, "target_ind as a list of label indices, for instance [3, 17]"
    for value in targets:
        if isinstance(value, bool) or not isinstance(value, int):
            return (
                f"the label index {in_json(value)} in target_ind",
                "whole numbers without quotes, for instance [3, 17]",
            )
        if abs(value) >= 2**62:
            return f"the label index {in_json(value)} in target_ind", "the line number of a label in lbl.json, from 0"
    for key, _ in _NAMES:
        if not isinstance(row.get(key), str | None):
            return f"{key} {in_json(row[key])}", f"{key} as a string, or no {key}"
    if relevance is None:
        return None
    if not isinstance(relevance, list):
        return f"target_rel {in_json(relevance)}", "a list of numbers, or no target_rel"
    if len(relevance) != len(targets):
        return f"{len(relevance)} target_rel for {len(targets)} target_ind", "one relevance per label"
    for value in relevance:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return (
                f"the relevance {in_json(value)} in target_rel",
                "finite numbers without quotes, for instance [1.0, 1.0]",
            )
    return None


def add_labels(folder: Path, labels: pl.DataFrame, new: int) -> None:
    """Add lines for the last ``new`` labels to lbl.json, and their number to the header of ``*_X_Y.txt`` beside it."""
    path = need(folder, "lbl.json")
    with open_bytes(path) as stream:
        content = stream.read()
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in labels.tail(new).iter_rows(named=True)]
    content += (b"" if content.endswith(b"\n") else b"\n") + "".join(lines).encode()
    write_file(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    for stem in STEM.values():
        if matrix := find(folder, f"{stem}_X_Y.txt"):
            _state_labels(matrix, len(labels))


def _state_labels(path: Path, labels: int) -> None:
    """Replace the number of labels in the header of a sparse label matrix; raise DataError for damaged rows."""
    options = ReadOptions()
    rows, _ = read_header(path, options)
    with (
        replacing(path) as work,
        work.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) if path.suffix == ".gz" else nullcontext(file) as output,
    ):
        output.write(f"{rows} {labels}\n".encode())
        for number, block in blocks(path, options):
            output.write(block[block.index(b"\n") + 1 :] if number == 1 else block)


_FILES = ("trn.json", "tst.json", "lbl.json")
LAYOUTS.add(
    "xc-json",
    Layout("xc-json", _FILES, "trn.json[.gz], tst.json[.gz], lbl.json[.gz]", XCJson, add_labels, ("lbl.json",)),
)
