"""A table of parts: by name in, by name out, and words that help where a name is not there."""

from __future__ import annotations

import pytest

from xc_core.errors import ConfigError
from xc_core.plugins import Table


@pytest.fixture
def colours() -> Table[int]:
    table: Table[int] = Table("colour")
    table.add("red", 1)
    table.add("blue", 2)
    return table


def test_a_part_comes_out_under_its_name(colours: Table[int]) -> None:
    assert colours["red"] == 1
    assert colours.names() == list(colours) == ["blue", "red"]
    assert "red" in colours
    assert "green" not in colours


def test_a_decorator_registers_and_hands_back_what_it_decorates() -> None:
    table: Table[type] = Table("kind")

    @table.register("thing")
    class Thing:
        pass

    assert table["thing"] is Thing


def test_an_unknown_name_is_told_the_nearest_and_all(colours: Table[int]) -> None:
    with pytest.raises(ConfigError) as caught:
        colours["rd"]
    assert caught.value.found == "colour 'rd' (nearest: 'red')"
    assert caught.value.expected == "one of blue, red"


def test_a_name_is_taken_once(colours: Table[int]) -> None:
    with pytest.raises(ConfigError, match="a second colour named 'red'"):
        colours.add("red", 3)
    assert colours["red"] == 1
