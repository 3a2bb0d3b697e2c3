"""Errors have three lines; each kind has its own documented exit code; errors can be pickled."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core import errors
from xc_core.errors import ConfigError, XCError, first_line, in_words, nearest, preview

KINDS = [XCError, *XCError.__subclasses__()]
DOCUMENTED = {name: int(code) for name, code in re.findall(r"(\w+Error)\s+(\d\d)  ", errors.__doc__ or "")}


@pytest.mark.parametrize("kind", [k for k in KINDS if k.__module__ == "xc_core.errors"])
def test_every_kind_has_its_documented_exit_code(kind: type[XCError]) -> None:
    assert DOCUMENTED[kind.__name__] == kind.exit_code


def test_exit_codes_differ_and_none_is_used_by_shells() -> None:
    assert len(set(DOCUMENTED.values())) == len(DOCUMENTED) == 13
    assert not set(DOCUMENTED.values()) & {0, 1, 2, *range(126, 256)}


def test_a_message_has_three_lines_and_names_the_place() -> None:
    error = ConfigError("x = 3", expected="text", do="fix the value", where="params.yaml")
    assert str(error) == "params.yaml: found x = 3\n  expected: text\n  do this:  fix the value"
    assert str(ConfigError("y", expected="z", do="w")).startswith("found y\n")


def test_what_was_found_and_its_place_are_cut() -> None:
    """Input of any length can be in them."""
    error = ConfigError("x" * 901, expected="text", do="fix it", where="y" * 901)
    assert (error.found, error.where) == ("x" * 897 + "...", "y" * 897 + "...")
    whole = ConfigError("x" * 900, expected="text", do="fix it", where="y" * 900)
    assert (whole.found, whole.where) == ("x" * 900, "y" * 900)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\nb"), "a"),
        (RuntimeError(), "RuntimeError"),
        (OSError("x" * 300), "x" * 200),
        (MemoryError("\n"), "MemoryError"),
        (ValueError("\x1b[31m"), "\\x1b[31m"),
    ],
)
def test_the_first_line_of_any_error_is_shown(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_an_error_in_words_is_what_was_found_or_its_type_and_message() -> None:
    assert in_words(ConfigError("x = 3", expected="text", do="fix it")) == "x = 3"
    assert in_words(KeyError("x")) == "KeyError: 'x'"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_can_be_pickled(kind: type[XCError]) -> None:
    """A worker process sends its error to its parent this way."""
    error = kind("a", expected="b", do="c", where="d")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)


def test_nearest_names_the_closest_or_nothing_if_none_is_close() -> None:
    assert nearest("encodr", ["encoder", "index"]) == " (nearest: 'encoder')"
    assert nearest("zzz", ["encoder", "index"]) == ""
    assert nearest(5, ["encoder", 55]) == " (nearest: '55')"


def test_a_name_that_looks_the_same_is_said_to_be_in_another_unicode_form() -> None:
    """As the names of files of a Mac, which have accents as characters of their own."""
    for name, known in (("caf\u00e9", "cafe\u0301"), ("e\u0301", "\u00e9")):
        assert nearest(name, ["cafe", known]) == f" (nearest: '{known}', in another Unicode form)"


@given(st.text() | st.binary(), st.integers(8, 80))
@settings(deadline=None, max_examples=60)
def test_a_preview_is_short_one_line_and_printable(text: str | bytes, limit: int) -> None:
    shown = preview(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    assert shown[0] in "'\"" and shown[-1] in "'\""
