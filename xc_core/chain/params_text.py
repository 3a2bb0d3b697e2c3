"""The text of params.yaml: written with its comments, and without an entry."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

from ruamel.yaml import YAML

from xc_core.errors import ConfigError
from xc_core.outside import yaml_of
from xc_core.root import FILE


def written(params: Any) -> str:
    """Return the text of params.yaml that was read with its comments."""
    yaml, text = YAML(), io.StringIO()
    yaml.width = 120
    yaml.dump(params, text)
    return text.getvalue()


def without(text: str, part: str, name: str) -> str:
    """Return the file without an entry. Its lines are cut out, since ruamel.yaml has the comments below in the entry.

    If what remains means something else (anchors, entries in braces), the entry is removed without these comments.
    """
    params: Any = yaml_of(text, FILE, round_trip=True) or {}
    entries: Any = params.get(part) or {}
    if name not in entries:
        return text
    line, column = entries.lc.key(name)
    entries.pop(name)
    lines = _without_lines(text.splitlines(keepends=True), line, column)
    if not entries:
        first = params.lc.key(part)[0]
        key, colon, comment = lines[first].partition(":")
        lines[first] = f"{key}{colon} {{}}{comment}"
    with suppress(ConfigError):
        if yaml_of("".join(lines)) == params:
            return "".join(lines)
    return written(params)


def _without_lines(lines: list[str], key_line: int, column: int) -> list[str]:
    """Return lines without the entry whose key is in line ``key_line``: up to the last one that is further indented."""
    end = key_line + 1
    for number, line in enumerate(lines[end:], end):
        content = line.strip()
        if content and len(line) - len(line.lstrip()) > column:
            end = number + 1
        elif content and not content.startswith("#"):
            break
    return [*lines[:key_line], *lines[end:]]
