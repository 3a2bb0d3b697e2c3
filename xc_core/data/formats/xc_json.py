"""XC repository JSON: trn.json, tst.json (uid, title, content, target_ind, target_rel), lbl.json (uid, title, content).

Takes: a folder.                     Gives: Source.
May import: errors, data.formats.base and .lines.  Never: guesses at a broken line.

A block is parsed at once by pyarrow; only where that fails is it walked line by line, to say which line and why.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from xc_core.data.formats.base import LAYOUTS, Block, Layout, ReadOptions, find, need
from xc_core.data.formats.lines import blocks
from xc_core.data.formats.xc_text import read_header
from xc_core.errors import DataError, preview

_TEXT = [("uid", pa.string()), ("title", pa.string()), ("content", pa.string())]
_TARGET = [("target_ind", pa.list_(pa.int64())), ("target_rel", pa.list_(pa.float64()))]
_STEM = {"train": "trn", "test": "tst"}


class XCJson:
    """Source over ``{trn,tst,lbl}.json[.gz]`` and the optional filter files."""

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self.folder, self.options = folder, options
        self._path = {name: need(folder, f"{name}.json") for name in ("trn", "tst", "lbl")}
        filters = [path for split in _STEM if (path := self.filters(split))]
        matrices = [path for stem in ("trn", "tst") if (path := find(folder, f"{stem}_X_Y.txt"))]
        self.files = [*self._path.values(), *filters, *matrices]

    def labels(self) -> Iterator[Block]:
        """Yield the lines of lbl.json."""
        yield from self._read("lbl", with_targets=False)

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the lines of trn.json or tst.json; check their count against ``*_X_Y.txt`` where that is present."""
        stem, rows = _STEM[split], 0
        for block in self._read(stem, with_targets=True):
            rows += len(block)
            yield block
        matrix = find(self.folder, f"{stem}_X_Y.txt")
        if matrix is not None and read_header(matrix, self.options)[0] != rows:
            raise DataError(
                f"{rows} documents in {self._path[stem].name}",
                expected=f"{read_header(matrix, self.options)[0]}, as the header of {matrix.name} says",
                do="fetch both files again, or delete the one that is wrong",
                where=self._path[stem].name,
            )

    def filters(self, split: str) -> Path | None:
        """Return filter_labels_{split}.txt, None where there is none."""
        return find(self.folder, f"filter_labels_{split}.txt")

    def _read(self, stem: str, *, with_targets: bool) -> Iterator[Block]:
        path = self._path[stem]
        schema = pa.schema(_TEXT + (_TARGET if with_targets else []))
        for number, raw in blocks(path, self.options):
            table = _parse(raw, schema)
            if table is None or table.num_rows != raw.count(b"\n") or _nulls(table):
                _explain(raw, path, number, with_targets=with_targets)
            yield _block(table, path.name, number)


def _parse(raw: bytes, schema: pa.Schema) -> pa.Table | None:
    try:
        return pa_json.read_json(
            io.BytesIO(raw),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(raw) + 1),
            parse_options=pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None


def _nulls(table: pa.Table) -> bool:
    """True where a required field, or an element of a list, is missing; title or content may be absent, not both."""
    if table["uid"].null_count or (table["title"].is_null().to_numpy() & table["content"].is_null().to_numpy()).any():
        return True
    if "target_ind" not in table.column_names:
        return False
    targets = table["target_ind"].combine_chunks()
    relevance = table["target_rel"].combine_chunks()
    lengths_differ = relevance.null_count < len(relevance) and (
        relevance.null_count > 0 or not np.array_equal(_counts(targets), _counts(relevance))
    )
    return bool(targets.null_count or targets.flatten().null_count or relevance.flatten().null_count or lengths_differ)


def _counts(column: pa.ListArray) -> Any:
    return np.diff(column.offsets.to_numpy()).astype(np.int64)


def _block(table: pa.Table, file: str, number: int) -> Block:
    block = Block(
        file,
        number,
        table["uid"].to_pylist(),
        [text or "" for text in table["title"].to_pylist()],
        [text or "" for text in table["content"].to_pylist()],
    )
    if "target_ind" in table.column_names:
        targets, relevance = table["target_ind"].combine_chunks(), table["target_rel"].combine_chunks()
        block.label_ids = targets.flatten().to_numpy().astype(np.int64)
        block.label_counts = _counts(targets)
        if relevance.null_count < len(relevance):
            block.relevance = relevance.flatten().to_numpy().astype(np.float64)
    return block


def _explain(raw: bytes, path: Path, number: int, *, with_targets: bool) -> NoReturn:
    """Find the line that is wrong and say what is wrong with it."""
    for offset, line in enumerate(raw.decode().split("\n")[:-1]):
        problem = _problem(line, with_targets=with_targets)
        if problem is not None:
            found, expected = problem
            raise DataError(
                found,
                expected=expected,
                do="mend or delete the line",
                where=f"{path.name}, line {number + offset}",
            )
    last = number + raw.count(b"\n") - 1
    raise DataError(
        "a block of lines that does not parse as JSON objects",
        expected="one JSON object a line",
        do="check the file with a JSON tool",
        where=f"{path.name}, lines {number} to {last}",
    )


def _problem(line: str, *, with_targets: bool) -> tuple[str, str] | None:
    if not line.strip():
        return "an empty line", "one JSON object a line"
    try:
        row = json.loads(line, parse_constant=lambda name: float("nan"))
    except ValueError as error:
        return (
            f"a line that is no JSON ({error}): {preview(line)}",
            "one JSON object a line, without inner line breaks",
        )
    if not isinstance(row, dict):
        return f"a JSON {type(row).__name__}: {preview(line)}", "a JSON object with uid, title, content"
    if not isinstance(row.get("uid"), str):
        return f"uid {row.get('uid')!r}", 'uid as a string, for instance "uid": "B0042"'
    for key in ("title", "content"):
        if not isinstance(row.get(key, ""), str):
            return f"{key} {preview(repr(row[key]))}", f"{key} as a string"
    if "title" not in row and "content" not in row:
        return f"neither title nor content in the keys {sorted(row)}", "title, content, or both"
    if any("\ud800" <= char <= "\udfff" for key in ("uid", "title", "content") for char in row.get(key, "")):
        return "half of a surrogate pair (a \\ud8.. escape alone)", "text that can be written as UTF-8"
    return _target_problem(row) if with_targets else None


def _target_problem(row: dict[str, Any]) -> tuple[str, str] | None:
    targets, relevance = row.get("target_ind"), row.get("target_rel")
    if not isinstance(targets, list):
        return f"target_ind {preview(repr(targets))}", "target_ind as a list of label indices"
    for value in targets:
        if isinstance(value, bool) or not isinstance(value, int):
            return (
                f"the label index {value!r} in target_ind",
                "whole numbers without quotes, for instance [3, 17]",
            )
        if abs(value) >= 2**62:
            return f"the label index {value} in target_ind", "the line number of a label in lbl.json, from 0"
    if relevance is None:
        return None if "target_rel" not in row else ("target_rel null", "a list of numbers, or no target_rel")
    if not isinstance(relevance, list) or len(relevance) != len(targets):
        size = len(relevance) if isinstance(relevance, list) else "no"
        return f"{size} target_rel for {len(targets)} target_ind", "one relevance a label"
    for value in relevance:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return f"the relevance {value!r} in target_rel", "numbers without quotes, for instance [1.0, 1.0]"
    return None


LAYOUTS.add(
    "xc-json",
    Layout("xc-json", ("trn.json", "tst.json", "lbl.json"), "trn.json[.gz], tst.json[.gz], lbl.json[.gz]", XCJson),
)
