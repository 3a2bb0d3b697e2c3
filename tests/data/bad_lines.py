"""Kinds of bad JSON lines in the layout tabular, and what the error must say."""

from __future__ import annotations

from typing import Any

from tests.data.spoil import Spoil, case, cut_in_half, drop_key, edit, put, put_json


def line(number: int, content: bytes) -> Spoil:
    """Replace a line of train.jsonl."""
    return lambda folder: put(folder / "train.jsonl", number, content)


def value(number: int, **changes: Any) -> Spoil:
    """Change fields of a line of train.jsonl."""
    return lambda folder: put_json(folder / "train.jsonl", number, **changes)


LINES = [
    case("a line cut", "jsonl", lambda f: (f / "train.jsonl").write_bytes((f / "train.jsonl").read_bytes()[:-9]),
         "train.jsonl, line 60", "a line that is not JSON", "one JSON object per line", "fix or delete the line"),
    case("a key twice", "jsonl", line(5, b'{"uid": "x", "text": "a", "text": "b", "labels": [3]}'),
         "train.jsonl, line 5", "the key 'text' twice"),
    case("two objects on a line", "jsonl", line(5, b'{"text": "a"} {"text": "b"}'), "train.jsonl, line 5", "not JSON"),
    case("a line without an object", "jsonl", line(5, b'["x", "a", [3]]'), "line 5", "instead of an object"),
    case("a list of objects", "jsonl", line(1, b'[{"text": "a"}]'), "train.jsonl, line 1", "jq -c '.[]'"),
    case("an empty line", "jsonl", line(5, b""), "train.jsonl, line 5", "an empty line"),
    case("text of a number", "jsonl", value(5, text=3), "train.jsonl, line 5", "text 3", "as strings"),
    case("text of a list", "jsonl", value(5, text=["a"]), "train.jsonl, line 5", 'text ["a"]', "as strings"),
    case("no text", "jsonl", lambda f: drop_key(f / "train.jsonl", 5, "text"), "train.jsonl, line 5", "an empty text"),
    case("no text in any line", "jsonl", lambda f: edit(f / "train.jsonl", lambda ls: [b'{"txt": "a", "labels": [1]}']),
         "train.jsonl", "'labels', 'txt' (nearest: 'txt')", "a column text", "rename"),
    case("labels of fractions", "jsonl", value(5, labels=[1.5]), "line 5", "the labels [1.5]", "whole numbers in"),
    case("labels true", "jsonl", value(5, labels=[True]), "train.jsonl, line 5", "the labels [true]"),
    case("labels of objects", "jsonl", value(5, labels=[{"name": "a"}]), "line 5", 'the labels [{"name": "a"}]'),
    case("a number of a label", "jsonl", value(5, labels=[10]), "train.jsonl, line 5", "the label index 10"),
    case("null as labels", "jsonl", value(5, labels=None), "train.jsonl, line 5", "without labels", "empty-labels"),
    case("no labels in a line", "jsonl", lambda f: drop_key(f / "train.jsonl", 5, "labels"), "line 5", "without labe"),
    case("a uid of a fraction", "jsonl", value(5, uid=0.5), "train.jsonl, line 5", "the uid 0.5"),
    case("no uid in a line", "jsonl", lambda f: drop_key(f / "train.jsonl", 5, "uid"), "line 5", "the uid null"),
    case("no uid in the first line", "jsonl", lambda f: drop_key(f / "train.jsonl", 1, "uid"),
         "train.jsonl, line 2", "a uid, but none in the first line", "a uid in each line, or in none"),
    case("a group of a list", "jsonl", value(5, group=["a"]), "train.jsonl, line 5", 'the group ["a"]'),
    case("half of a character", "jsonl", line(5, b'{"uid": "x", "text": "\\ud83d", "labels": [3]}'), "surrogate pair"),
    case("bad UTF-8 in JSON lines", "jsonl", line(5, b'{"uid": "x", "text": "caf\xe9", "labels": [3]}'),
         "train.jsonl, line 5", "0xe9", "iconv -f cp1252"),
    case("gzipped lines cut", "jsonl.gz", lambda f: cut_in_half(f / "train.jsonl.gz"), "gzip -t train.jsonl.gz"),
    case("empty JSON lines", "jsonl", lambda f: (f / "train.jsonl").write_bytes(b""), "10 labels, 0 train and 12 test"),
    case("a long line", "jsonl", value(5, text="word " * 210_000), "train.jsonl, line 5", "--max-line-bytes"),
]  # fmt: skip
