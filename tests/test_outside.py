"""Small files and YAML from outside are bounded before anything is built from them."""

from __future__ import annotations

import os
import stat
import time
import warnings
from pathlib import Path

import pytest

from tests.processes import open_files
from xc_core import outside
from xc_core.errors import ConfigError
from xc_core.outside import MOST_DEPTH, text_of, yaml_of

LAUGHS = "- &a [" + ", ".join("1" * 10) + "]\n" + "".join(
    f"- &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(8)
)  # fmt: skip
REFUSED = {
    "a tag": ("a: !!int foo", "the tag"),
    "a tag of a class": ("!!python/object/apply:os.system [true]", "the tag"),
    "an own tag": ("!foo 1", "the tag '!foo'"),
    "no date": ("2001-99-99", "month must be in 1..12"),
    "deep lists": ("[" * 100_000, f"more than {MOST_DEPTH} levels"),
    "deep mappings": ("{a: " * 50, f"more than {MOST_DEPTH} levels"),
    "a value inside itself": ("&a [*a]", "the alias *a inside its own value"),
    "a value inside itself under a name that is used again": ("- &a 1\n- &a [*a]", "the alias *a inside its own value"),
    "an alias of nothing": ("a: 1\nb: *foo", "the alias *foo, and no &foo before it"),
    "an alias before its value": ("a: *foo\nb: &foo 1", "the alias *foo, and no &foo before it"),
    "a pattern without quotes": ("a: 1\nb: *.json", "the alias *.json, and no &.json before it"),
    "aliases of aliases": (LAUGHS, "more than 100,000 values"),
    "two documents": ("---\n1\n---\n2", "a second document"),
    "a number of 5,000 digits": ("9" * 5000, "invalid YAML"),
    "a key twice": ("a: 1\na: 2", "duplicate key"),
    "a merge of a number": ("<<: 1", "invalid YAML"),
    "a NUL": ("a: \0", "invalid YAML"),
    "a terminal's command": ("a: \x9b", "invalid YAML"),
}


@pytest.mark.parametrize("round_trip", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_yaml_beyond_a_bound_is_refused_at_once(name: str, round_trip: bool) -> None:
    text, found = REFUSED[name]
    started = time.process_time()
    with pytest.raises(ConfigError) as caught:
        yaml_of(text, "here", round_trip=round_trip)
    assert found in caught.value.found and caught.value.where.partition(",")[0] == "here"
    assert len(str(caught.value)) < 600 and "\n" not in caught.value.found
    assert time.process_time() - started < 10


@pytest.mark.parametrize("round_trip", [False, True])
def test_an_anchor_may_be_used_again_without_a_warning(round_trip: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert yaml_of("a: &x 1\nb: &x 2\nc: *x", round_trip=round_trip) == {"a": 1, "b": 2, "c": 2}


PLACED = {
    "an open bracket": ("datasets: [", "expected the node content, but found '<stream end>'", "line 1, column 12"),
    "an open quote": (
        "a: 1\nb: 'it\n",
        "found unexpected end of stream, while scanning a quoted scalar that starts in line 2",
        "line 3, column 1",
    ),
    "a quote within braces": (
        "a: {'b: 3\nc: 'd'",
        "expected ',' or '}', but got '<scalar>', while parsing a flow mapping that starts in line 1",
        "line 2, column 5",
    ),
    "a long key, twice": (
        f"a:\n  {'k' * 300}: 1\n  {'k' * 300}: 2",
        f'found duplicate key "{"k" * 176}..., while constructing a mapping that starts in line 2',
        "line 3, column 3",
    ),
    "a key that cannot be seen, twice": (
        '{"\u200b": 1, "\u200b": 2}',
        'found duplicate key "\\u200b" with value "2" (original value: "1")',
        "line 1, column 10",
    ),
    "a NUL": ("a: 1\nb: 'x\0'\n", "unacceptable character #x0000", "line 2, column 6"),
    "a NUL first": ("\0", "unacceptable character #x0000", "line 1, column 1"),
    "a colon too many": ("a: b: c", "mapping values are not allowed here", "line 1, column 5"),
}


@pytest.mark.parametrize("name", PLACED)
def test_text_that_is_no_yaml_is_shown_as_the_parser_says_it_with_its_line_and_column(name: str) -> None:
    text, reason, place = PLACED[name]
    with pytest.raises(ConfigError) as caught:
        yaml_of(text, "params.yaml")
    assert caught.value.found == f"invalid YAML ({reason})" and caught.value.where == f"params.yaml, {place}"
    with pytest.raises(ConfigError) as caught:
        yaml_of(text)
    assert caught.value.where == place


def test_a_merge_conflict_is_called_so() -> None:
    """What was found was a mapping value, in the line after the marker."""
    sides = "a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> branch\n"
    with pytest.raises(ConfigError) as caught:
        yaml_of(sides, "params.yaml")
    assert caught.value.where == "params.yaml, line 2"
    assert caught.value.found == "a merge conflict that is not resolved (<<<<<<< HEAD)"


@pytest.mark.parametrize("text", ["a: 1\nb: *foo", "a: 1\nb: &c [*c]", "a: 1\nb: !c 1", "1\n--- 2", "[\n" + "[" * 40])
def test_the_line_of_what_is_refused_is_named(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        yaml_of(text, "params.yaml")
    assert caught.value.where == "params.yaml, line 2"
    with pytest.raises(ConfigError) as caught:
        yaml_of(text)
    assert caught.value.where == "line 2"


def test_plain_yaml_is_read_and_an_alias_repeats_its_value() -> None:
    assert yaml_of("a: &x [1, 0.5, true, null, b]\nc: *x\n") == {
        "a": [1, 0.5, True, None, "b"],
        "c": [1, 0.5, True, None, "b"],
    }
    assert yaml_of("") is None


def test_the_same_text_is_parsed_once_and_each_reader_may_change_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"a: [1, 2]  # {time.monotonic()}"
    first = yaml_of(text)
    first["a"].append(3)
    monkeypatch.setattr(outside, "YAML", None)
    assert yaml_of(text) == {"a": [1, 2]}


def test_only_a_regular_file_is_read_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name, found in (("fifo", "a named pipe"), ("folder", "a folder")):
        with pytest.raises(ConfigError) as caught:
            text_of(tmp_path / name)
        assert found in caught.value.found and caught.value.where == name
    with pytest.raises(ConfigError, match="a device"):
        text_of(Path("/dev/zero"))
    with pytest.raises(FileNotFoundError):
        text_of(tmp_path / "absent")


def test_a_socket_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux does not open one, other systems do."""
    (tmp_path / "file").touch()
    facts = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result((stat.S_IFSOCK | 0o600, *facts(file)[1:])))
    with pytest.raises(ConfigError, match="found a socket"):
        text_of(tmp_path / "file")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_what_is_read_or_refused_is_closed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a text")
    before = open_files()
    assert text_of(tmp_path / "file") == "a text"
    for path, most in ((tmp_path, 10), (tmp_path / "file", 2)):
        with pytest.raises(ConfigError):
            text_of(path, most)
    assert open_files() == before


def test_a_file_above_the_limit_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ConfigError, match="more than 1,000 bytes"):
        text_of(tmp_path / "big", 1000)
    (tmp_path / "small").write_text("a" * 1000)
    assert text_of(tmp_path / "small", 1000) == "a" * 1000
