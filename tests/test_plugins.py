"""Tables of parts by name, and plug-ins from entry points."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from xc_core import plugins
from xc_core.errors import ConfigError
from xc_core.plugins import GROUP, Part, Table, importing, load_plugins

PLUGGED: Table[int] = Table("plug")
"""The table that the plug-ins of these tests register in; each test empties it."""


@pytest.fixture
def colours() -> Table[int]:
    table: Table[int] = Table("colour")
    table.add("red", 1)
    table.add("blue", 2)
    return table


def test_a_part_is_found_under_its_name(colours: Table[int]) -> None:
    assert colours["red"] == 1
    assert colours.names() == list(colours) == ["blue", "red"]
    assert "red" in colours
    assert "green" not in colours


def test_a_decorator_registers_and_returns_what_it_decorates() -> None:
    table: Table[type] = Table("kind")

    @table.register("thing")
    class Thing:
        pass

    assert table["thing"] is Thing


def test_an_unknown_name_is_refused_with_the_nearest_and_all_names(colours: Table[int]) -> None:
    with pytest.raises(ConfigError) as caught:
        colours["rd"]
    assert caught.value.found == "colour 'rd' (nearest: 'red')"
    assert caught.value.expected == "one of blue, red"


def test_a_second_part_of_the_same_name_is_refused(colours: Table[int]) -> None:
    with pytest.raises(ConfigError, match="a second colour named 'red'"):
        colours.add("red", 3)
    assert colours["red"] == 1


def test_a_part_gets_its_kind_when_it_is_registered() -> None:
    table: Table[type[Part]] = Table("shape")

    @table.register("circle")
    class Circle(Part):
        pass

    assert Circle.kind == "circle"
    with pytest.raises(ConfigError, match="a second shape named 'circle'"):

        @table.register("circle")
        class Round(Part):
            kind = "round"

    assert table["circle"] is Circle
    assert Circle.kind == "circle"


def test_a_part_without_the_base_class_of_its_family_is_refused() -> None:
    """It would lack what all parts have, so a training would fail somewhere with an AttributeError."""
    shapes: Table[type[Part]] = Table("shape")

    class Shape(Part):
        table = shapes

    @shapes.register("square")
    class Square(Shape):
        pass

    with pytest.raises(ConfigError, match="Round, registered as the shape 'round', without the base class") as refused:
        shapes.register("round")(type("Round", (Part,), {}))
    assert "derived from tests.test_plugins.Shape" in refused.value.expected
    assert shapes.names() == ["square"]


@pytest.mark.parametrize("name", [None, 7, ["red"], {"red": 1}])
def test_what_is_not_text_is_no_name(colours: Table[int], name: object) -> None:
    assert name not in colours
    with pytest.raises(ConfigError, match="colour") as caught:
        colours[name]  # type: ignore[index]
    assert caught.value.expected == "one of blue, red"


# plug-ins

Provide = Callable[..., None]


@pytest.fixture
def provide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provide]:
    """Return a function that installs plug-ins: module name to source."""
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(PLUGGED, "_parts", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    entries: list[EntryPoint] = []
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries if group == GROUP else [])
    plugins._load_once.cache_clear()

    def add(**modules: str) -> None:
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(f"from tests.test_plugins import PLUGGED\n{source}\n")
            entries.append(EntryPoint(name, name, GROUP))

    yield add
    plugins._load_once.cache_clear()
    for entry in entries:
        sys.modules.pop(entry.value, None)


def test_a_plug_in_is_imported_when_an_unknown_name_is_looked_up(provide: Provide) -> None:
    provide(xc_blue="PLUGGED.add('blue', 2)")
    PLUGGED.add("red", 1)
    assert PLUGGED["red"] == 1
    assert "xc_blue" not in sys.modules, "a known name needs no plug-in"
    assert PLUGGED["blue"] == 2
    assert PLUGGED.names() == ["blue", "red"]


def test_all_names_include_those_of_plug_ins(provide: Provide) -> None:
    provide(xc_blue="PLUGGED.add('blue', 2)", xc_green="PLUGGED.add('green', 3)")
    assert list(PLUGGED) == ["blue", "green"]


def test_a_plug_in_is_imported_once(provide: Provide) -> None:
    provide(xc_blue="PLUGGED.add('blue', 2)")
    load_plugins()
    load_plugins()
    assert PLUGGED.names() == ["blue"]


def test_a_plug_in_may_read_a_table_while_it_is_imported(provide: Provide) -> None:
    provide(xc_blue="assert 'green' in PLUGGED\nPLUGGED.add('blue', 2)", xc_green="PLUGGED.add('green', 3)")
    assert PLUGGED.names() == ["blue", "green"]


def test_the_file_of_a_plug_in_is_found_without_an_import(provide: Provide, tmp_path: Path) -> None:
    provide(xc_green="1 / 0", xc_blue="PLUGGED.add('blue', 2)")
    assert plugins.plugin_files() == [tmp_path / "xc_blue.py", tmp_path / "xc_green.py"]
    (tmp_path / "xc_green.py").unlink()
    importlib.invalidate_caches()
    assert plugins.plugin_files() == [tmp_path / "xc_blue.py"]
    assert not {"xc_blue", "xc_green"} & set(sys.modules)


def test_a_plug_in_whose_package_cannot_be_imported_has_no_file(provide: Provide, tmp_path: Path) -> None:
    (tmp_path / "xc_package").mkdir()
    (tmp_path / "xc_package" / "__init__.py").write_text("1 / 0")
    provide(**{"xc_package.part": "", "xc_blue": ""})
    assert plugins.plugin_files() == [tmp_path / "xc_blue.py"]


BROKEN = {
    "an import that fails": ("import xc_no_such_module", "No module named 'xc_no_such_module'"),
    "a syntax error": ("def", "SyntaxError"),
    "an error": ("1 / 0", "ZeroDivisionError: division by zero"),
    "a name in use": ("PLUGGED.add('red', 5)", "a second plug named 'red'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_plug_in_that_cannot_be_imported_is_named_at_every_look_up(provide: Provide, name: str) -> None:
    source, reason = BROKEN[name]
    PLUGGED.add("red", 1)
    provide(xc_broken=source)
    for _ in range(2):
        with pytest.raises(ConfigError, match="the plug-in 'xc_broken'") as caught:
            PLUGGED["blue"]
        assert reason in caught.value.found
        do = "choose another name, or" if name == "a name in use" else "fix or"
        assert caught.value.do == f"{do} uninstall the package that provides it"
    assert PLUGGED["red"] == 1, "a known name still works"


def test_no_garbage_is_collected_while_libraries_are_imported() -> None:
    assert gc.isenabled()
    with pytest.raises(ImportError), importing():
        with importing():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the inner block does not end the pause of the outer one"
        raise ImportError
    assert gc.isenabled()


def test_a_part_may_have_a_second_base_class_that_is_told_of_its_classes() -> None:
    told: list[tuple[str, str]] = []

    class Named:
        def __init_subclass__(cls, *, title: str) -> None:
            told.append((cls.__name__, title))

    class Own(Part, Named, title="mine"):
        pass

    assert told == [("Own", "mine")]
