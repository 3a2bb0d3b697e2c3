"""A terminal gets no command from a text; a text without ink is no text."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xc_core.visible import CONTROL, INK, counted, cut, escaped, http_address, listed, percent, printable


@given(st.text())
def test_a_printable_text_has_no_control_characters_but_line_breaks_and_tabs(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    assert not [c for c in shown if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI")]
    assert printable(shown) == shown


@given(st.text())
def test_escaped_json_has_the_same_content(text: str) -> None:
    line = escaped(json.dumps([text], ensure_ascii=False))
    assert json.loads(line) == [text]
    assert printable(line) == line


@pytest.mark.parametrize("text", ["", " \t", "\u200b\u200d", "\ufeff", "\u2060 \u00ad", "\u3164", "\u2800", "\x92"])
def test_a_text_without_ink_is_seen_as_empty(text: str) -> None:
    assert INK.search(text) is None


def test_all_code_points_that_unicode_lets_a_display_ignore_are_without_ink() -> None:
    """Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt."""
    ranges = (
        "00ad 034f 061c 115f-1160 17b4-17b5 180b-180f 200b-200f 202a-202e 2060-206f 3164 fe00-fe0f feff ffa0 fff0-fff8 "
        "1bca0-1bca3 1d173-1d17a e0000-e0fff"
    )
    ends = [[int(end, 16) for end in part.split("-")] for part in ranges.split()]
    ignorable = [chr(point) for ends_ in ends for point in range(ends_[0], ends_[-1] + 1)]
    assert [hex(ord(char)) for char in ignorable if INK.search(char)] == []


@pytest.mark.parametrize("text", ["a", "ä", "犬", "👍🏽", "\u200bx", "न\u200dी", "م"])
def test_a_text_with_ink_is_seen(text: str) -> None:
    assert INK.search(text)


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b2J", "\x85", "\u202egnp", "\u2066a\u2069", "\u2029", "\x00"])
def test_commands_and_changes_of_direction_are_control_characters(text: str) -> None:
    assert CONTROL.search(text)


@pytest.mark.parametrize("text", ["a\tb", "don\x92t", "\u200fשלום", "\u200d"])
def test_what_real_texts_have_is_accepted(text: str) -> None:
    assert CONTROL.search(text) is None


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "http://127.0.0.1:80"), ("me.org", "http://me.org:80"), ("::1", "http://[::1]:80")],
)
def test_an_ipv6_host_has_brackets_in_an_address(host: str, address: str) -> None:
    assert http_address(host, 80) == address


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 texts"), (1, "1 text"), (1000, "1,000 texts"), (1.0, "1 text"), (0.5, "0.5 texts")]
)
def test_a_noun_has_an_s_unless_there_is_one(number: float, shown: str) -> None:
    assert counted(number, "text") == shown


@pytest.mark.parametrize(("text", "shown"), [("x" * 100, "x" * 100), ("x" * 101, "x" * 99 + "…")])
def test_a_long_text_is_cut(text: str, shown: str) -> None:
    assert cut(text, 100) == shown


@pytest.mark.parametrize(("names", "shown"), [("", ""), ("ab", "a, b"), ("abc", "a, b and 1 more")])
def test_a_list_has_the_first_names_and_the_number_of_the_others(names: str, shown: str) -> None:
    assert listed(list(names), 2) == shown


def test_a_percentage_is_reached_as_the_bound_of_it_is() -> None:
    """Also by the numbers beside it, in single precision, in which probabilities and bounds are compared."""
    for whole in range(1, 101):
        bound = np.float32(whole / 100)
        below = np.nextafter(bound, np.float32(0))
        assert percent(bound.item()) == f"{whole}%"
        assert percent(below.item()) == (f"{whole - 1}%" if whole > 1 else "<1%")
