"""Configs are changed by name, to values of the right type; an error names the place and the nearest name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.errors import ConfigError
from xc_core.outside import yaml_of
from xc_core.params import at_least, below, changed, option_text, plain


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 3
    share: float = 0.5

    def __post_init__(self) -> None:
        at_least(self, size=1, share=0)
        below(self, share=1)


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    colour: Colour = Colour.RED
    names: tuple[str, ...] = ("a",)
    sizes: tuple[int, ...] = ()
    title: str = ""
    loud: bool = False
    limit: float | None = None


def test_named_fields_change_and_others_stay() -> None:
    before = Outer()
    after = changed(before, {"inner": {"size": 7}, "colour": "blue", "names": ["x", "y"], "limit": 2}, "toy")
    assert after == Outer(inner=Inner(size=7), colour=Colour.BLUE, names=("x", "y"), limit=2.0)
    assert before == Outer(), "the argument is never changed"
    assert changed(after, {"limit": None}, "toy").limit is None
    assert type(changed(before, {"inner": {"share": 0}}, "toy").inner.share) is float


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        ({"colur": "red"}, "toy.colur (nearest: 'colour')", "one of inner, colour"),
        ({"inner": {"sise": 1}}, "toy.inner.sise (nearest: 'size')", "one of size, share"),
        ({7: 1}, "toy.7", "one of inner"),
        ({"inner": 7}, "toy.inner = 7", "a mapping of its fields"),
        ({"inner": None}, "toy.inner = None", "a mapping of its fields"),
        ({"inner": {"size": "7"}}, "toy.inner.size = '7'", "a whole number"),
        ({"inner": {"size": 7.0}}, "toy.inner.size = 7.0", "a whole number"),
        ({"inner": {"size": True}}, "toy.inner.size = True", "a whole number"),
        ({"inner": {"share": "half"}}, "toy.inner.share = 'half'", "a finite number"),
        ({"inner": {"share": False}}, "toy.inner.share = False", "a finite number"),
        ({"inner": {"share": float("nan")}}, "toy.inner.share = nan", "a finite number"),
        ({"limit": float("inf")}, "toy.limit = inf", "a finite number"),
        ({"limit": "none"}, "toy.limit = 'none'", "a finite number"),
        ({"title": 7}, "toy.title = 7", "text (in quotes"),
        ({"title": None}, "toy.title = None", "text (in quotes"),
        ({"loud": 1}, "toy.loud = 1", "true or false"),
        ({"colour": "green"}, "toy.colour = 'green'", "red or blue"),
        ({"colour": ["red"]}, "toy.colour = ['red']", "red or blue"),
        ({"names": "x"}, "toy.names = 'x'", "a list"),
        ({"names": ["x", 7]}, "toy.names[1] = 7", "text (in quotes"),
        ({"sizes": [1, "2"]}, "toy.sizes[1] = '2'", "a whole number"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[Any, Any], found: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(Outer(), changes, "toy")
    assert caught.value.found == found
    assert caught.value.expected.startswith(expected)


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        ({"size": 0}, "size 0", "at least 1"),
        ({"share": -0.5}, "share -0.5", "at least 0"),
        ({"share": 1}, "share 1.0", "less than 1"),
    ],
)
def test_a_failed_check_of_a_config_names_its_place(changes: dict[str, Any], found: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(Outer(), {"inner": changes}, "toy")
    assert (caught.value.where, caught.value.found, caught.value.expected) == ("toy.inner", found, expected)


OUTERS = st.builds(
    Outer,
    inner=st.builds(Inner, size=st.integers(1, 9), share=st.floats(0, 0.99)),
    colour=st.sampled_from(Colour),
    names=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    limit=st.none() | st.floats(-1e9, 1e9),
)


@given(OUTERS)
@settings(deadline=None, max_examples=50)
def test_the_plain_form_leads_back_to_the_same_config(config: Outer) -> None:
    assert changed(Outer(), plain(config), "toy") == config


def test_the_plain_form_has_only_plain_values() -> None:
    assert plain(Outer()) == {
        "inner": {"size": 3, "share": 0.5},
        "colour": "red",
        "names": ["a"],
        "sizes": [],
        "title": "",
        "loud": False,
        "limit": None,
    }
    assert type(plain(Outer())["colour"]) is str
    assert [f.name for f in dataclasses.fields(Outer)] == list(plain(Outer()))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("supcon", "supcon"),
        ("1", '"1"'),
        ("null", '"null"'),
        ("a: b", '"a: b"'),
        ("[", '"["'),
        ("", '""'),
        (None, "null"),
        (True, "true"),
        (1e-05, "1e-05"),
        ([1, "a"], '[1, "a"]'),
        ({"kind": "sum"}, '{"kind": "sum"}'),
        ("\U0001f600: x", '"\U0001f600: x"'),
    ],
)
def test_a_value_is_shown_as_a_command_reads_it(value: Any, text: str) -> None:
    assert option_text(value) == text
    assert yaml_of(text) == value
