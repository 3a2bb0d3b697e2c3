"""JSON lines, read strictly: every line is parsed by itself, because polars and pyarrow accept wrong ones silently."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from xc_core.data.formats.base import ReadOptions, in_json
from xc_core.data.formats.csv_rows import LONGEST
from xc_core.data.formats.lines import blocks
from xc_core.errors import DataError, preview

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def json_names(path: Path) -> dict[str, Any]:
    """Return the first line of a file, whose keys are the names of its columns; empty for a file without lines."""
    for number, raw in blocks(path, ReadOptions(max_line_bytes=LONGEST)):
        return next(_objects(path, number, raw))
    return {}


def json_batches(path: Path, options: ReadOptions, known: tuple[str, ...]) -> Iterator[dict[str, list[Any]]]:
    """Yield the rows of a file in parts: the values of those of the ``known`` fields that occur, None in rows without.

    Raises DataError for the first line that is not an object, for a uid if the first line has none, and for a field of
    text that would move the texts of the parts before it to another column.
    """
    fields: set[str] = set()
    for number, raw in blocks(path, options):
        rows = list(_objects(path, number, raw))
        fields.update(rows[0] if number == 1 else ())
        for name in known:
            first = None if name in fields else next((row for row, values in enumerate(rows) if name in values), None)
            if first is not None and name in ("uid", "title", "text"):
                expected = f"a {name} in {'each' if name == 'uid' else 'the first'} line, or in none"
                raise wrong_line(f"a {name}, but none in the first line", expected, path, number + first)
            fields.update(() if first is None else (name,))
        yield {name: [row.get(name) for row in rows] for name in known if name in fields}


def _objects(path: Path, number: int, raw: bytes) -> Iterator[dict[str, Any]]:
    for row, line in enumerate(raw.decode().split("\n")[:-1]):
        parsed = object_of(line)
        if isinstance(parsed, tuple):
            raise wrong_line(*parsed, path, number + row, line)
        if not parsed and number + row == 1:
            raise wrong_line("an object without fields", "the fields of a row in the first line", path, 1)
        yield parsed


def wrong_line(found: str, expected: str, path: Path, number: int, line: str = "") -> DataError:
    """Return the error for a wrong line."""
    is_list = number == 1 and line.lstrip().startswith("[")
    do = "write each object of the list on a line: jq -c '.[]' OLD > NEW" if is_list else "fix or delete the line"
    return DataError(found, expected=expected, do=do, where=f"{path.name}, line {number}")


def object_of(line: str) -> dict[str, Any] | tuple[str, str]:
    """Return the object of a line of JSON; for a line that is none, what was found and what was expected."""
    if not line.strip():
        return "an empty line", "one JSON object per line"
    try:
        row = _JSON.decode(line)
        half = "\\" in line and _SURROGATE.search(json.dumps(row, ensure_ascii=False))  # only an escape can be a half
    except (ValueError, RecursionError) as error:
        return (
            f"a line that is not JSON ({error}): {preview(line)}",
            "one JSON object per line, without inner line breaks",
        )
    if not isinstance(row, dict):
        return f"{in_json(row)} instead of an object", "one JSON object per line"
    if half:
        return "half of a surrogate pair (an escape like \\ud83d alone)", "text that can be encoded as UTF-8"
    return row


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; raise ValueError if a key occurs twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"the key {Counter(name for name, _ in pairs).most_common(1)[0][0]!r} twice")
    return row


_JSON: Final = json.JSONDecoder(object_pairs_hook=_without_repeated_keys)
