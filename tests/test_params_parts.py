"""Configs of parts: changed by kind, by settings or by both; named parts; and what a fingerprint depends on."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.source import MODULES, nodes
from xc_core.errors import ConfigError
from xc_core.losses import SupCon, Triplet
from xc_core.params import at_least, changed, deep_merged, in_use, later, one_of, plain
from xc_core.plugins import Part, Table

SHAPES: Table[type[Shape]] = Table("shape")


class Shape(Part):
    """A family of parts."""

    table = SHAPES


@SHAPES.register("circle")
@dataclass(frozen=True, kw_only=True)
class Circle(Shape):
    radius: float = 1.0
    pen: str = "thin"

    def __post_init__(self) -> None:
        at_least(self, radius=0)
        one_of(self, pen=("thin", "thick"))


@SHAPES.register("square")
@dataclass(frozen=True, kw_only=True)
class Square(Shape):
    side: int = 2
    pen: str = "thin"
    rounded: bool = later(False, was=False)
    """Added later; False is what was done before."""
    gap: int = later(3, was=0)
    """Added later with a new default."""

    def unused(self) -> frozenset[str]:
        return frozenset() if self.side else frozenset({"pen"})


@SHAPES.register("dot")
@dataclass(frozen=True)
class Dot(Shape):
    """A part without settings."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    main: Shape = field(default_factory=Circle)
    named: Mapping[str, Shape] = field(default_factory=lambda: {"circle": Circle(), "dot": Dot()})


def draw(changes: Any) -> Drawing:
    return changed(Drawing(), changes, "toy")


# one part


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"radius": 2}, Circle(radius=2.0)),
        ("circle", Circle()),
        ("square", Square()),
        ("dot", Dot()),
        ({"kind": "square"}, Square()),
        ({"kind": "square", "side": 5}, Square(side=5)),
        ({"kind": "circle", "pen": "thick"}, Circle(pen="thick")),
        ({}, Circle()),
    ],
)
def test_a_part_is_changed_by_settings_by_kind_or_by_both(changes: Any, expected: Shape) -> None:
    assert draw({"main": changes}).main == expected
    assert type(draw({"main": changes}).main) is type(expected)


def test_the_same_kind_keeps_present_settings_and_another_kind_starts_from_its_defaults() -> None:
    thick = draw({"main": {"pen": "thick"}})
    assert changed(thick, {"main": "circle"}, "toy") == thick
    assert changed(thick, {"main": {"kind": "circle", "radius": 3}}, "toy").main == Circle(radius=3.0, pen="thick")
    assert changed(thick, {"main": "square"}, "toy").main == Square(pen="thin")


ALL = "circle, dot, square"


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        ({"side": 2}, "toy.main.side", "a setting of the shape 'circle': radius, pen"),
        ({"radios": 2}, "toy.main.radios (nearest: 'radius')", "a setting of the shape 'circle': radius, pen"),
        ({"kind": "square", "radius": 2}, "toy.main.radius", "a setting of the shape 'square': side, pen"),
        ({"kind": "dot", "pen": "thin"}, "toy.main.pen", "a setting of the shape 'dot': none"),
        ({"radius": "wide"}, "toy.main.radius = 'wide'", "a finite number"),
        ("circel", "shape 'circel' (nearest: 'circle')", f"one of {ALL}"),
        ({"kind": "circel"}, "shape 'circel' (nearest: 'circle')", f"one of {ALL}"),
        ({"kind": None}, "shape None", f"one of {ALL}"),
        ({"kind": 7}, "shape 7", f"one of {ALL}"),
        ({"kind": ["circle"]}, "shape ['circle']", f"one of {ALL}"),
        ({"kind": {"a": 1}}, "shape {'a': 1}", f"one of {ALL}"),
        (None, "toy.main = None", f"a shape ({ALL}) or a mapping of its settings"),
        (7, "toy.main = 7", f"a shape ({ALL}) or a mapping of its settings"),
        (["circle"], "toy.main = ['circle']", f"a shape ({ALL}) or a mapping of its settings"),
        ({"radius": -1}, "radius -1.0", "at least 0"),
        ({"pen": "red"}, "pen 'red'", "thin or thick"),
    ],
)
def test_what_does_not_fit_a_part_is_refused(changes: Any, found: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        draw({"main": changes})
    assert caught.value.found == found or caught.value.found.startswith(f"{found} (nearest")
    assert caught.value.expected.startswith(expected)
    assert "toy.main" in f"{caught.value.where} {caught.value.found}", "the place is named"


# named parts


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"circle": Circle(), "dot": Dot()}),
        ({"circle": {"radius": 2}}, {"circle": Circle(radius=2.0), "dot": Dot()}),
        ({"square": {}}, {"circle": Circle(), "dot": Dot(), "square": Square()}),
        ({"square": {"side": 4}}, {"circle": Circle(), "dot": Dot(), "square": Square(side=4)}),
        ({"big_one": {"kind": "square"}}, {"circle": Circle(), "dot": Dot(), "big_one": Square()}),
        ({"big-1": "square"}, {"circle": Circle(), "dot": Dot(), "big-1": Square()}),
        ({"circle": "square"}, {"circle": Square(), "dot": Dot()}),
        ({"circle": None}, {"dot": Dot()}),
        ({"square": None}, {"circle": Circle(), "dot": Dot()}),
        ({"circle": None, "square": {}}, {"dot": Dot(), "square": Square()}),
        (["dot"], {"dot": Dot()}),
        (("square", "dot"), {"dot": Dot(), "square": Square()}),
        ([], {}),
    ],
)
def test_named_parts_are_changed_added_dropped_or_listed(changes: Any, expected: dict[str, Shape]) -> None:
    found = draw({"named": changes}).named
    assert list(found.items()) == list(expected.items()), "present parts keep their order, new ones come last"


def test_the_defaults_are_not_changed() -> None:
    before = Drawing()
    changed(before, {"named": {"circle": None, "square": {}}}, "toy")
    assert list(before.named) == ["circle", "dot"]


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        (7, "toy.named = 7", "a mapping from names to settings, or a list of names"),
        (None, "toy.named = None", "a mapping from names to settings, or a list of names"),
        ("circle", "toy.named = 'circle'", "a mapping from names to settings, or a list of names"),
        (["dot", 7], "toy.named = ['dot', 7]", "a mapping from names to settings, or a list of names"),
        (["dot", "dot"], "toy.named = ['dot', 'dot']", "a mapping from names to settings, or a list of names"),
        ({"circel": None}, "toy.named.circel = null (nearest: 'circle')", "one of circle, dot"),
        ({"mine": {}}, "shape 'mine'", f"one of {ALL}"),
        ({"mine": "circel"}, "shape 'circel' (nearest: 'circle')", f"one of {ALL}"),
        ({"mine": {"kind": ["circle"]}}, "shape ['circle']", f"one of {ALL}"),
        ({"circle": {"side": 1}}, "toy.named.circle.side", "a setting of the shape 'circle': radius, pen"),
        ({"dot": 7}, "toy.named.dot = 7", f"a shape ({ALL})"),
        (["circle", "circel"], "shape 'circel' (nearest: 'circle')", f"one of {ALL}"),
    ],
)
def test_what_does_not_fit_named_parts_is_refused(changes: Any, found: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        draw({"named": changes})
    assert caught.value.found == found or caught.value.found.startswith(f"{found} (nearest")
    assert caught.value.expected.startswith(expected)
    assert "toy.named" in f"{caught.value.where} {caught.value.found}", "the place is named"


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "/tmp", "", ".", "Circle", "a b", "a.b", "-a", "ä", "a\n", "a" * 65, 7]
)
def test_a_name_that_is_no_folder_name_is_refused(name: Any) -> None:
    """A score's name is the name of its folder in an artefact."""
    with pytest.raises(ConfigError) as caught:
        draw({"named": {name: {"kind": "dot"}}})
    assert caught.value.found == f"the name {name!r} in toy.named"


# plain forms

PENS = st.sampled_from(["thin", "thick"])
SHAPE = st.one_of(
    st.builds(Circle, radius=st.floats(0, 9), pen=PENS),
    st.builds(Square, side=st.integers(0, 9), pen=PENS, rounded=st.booleans(), gap=st.integers(0, 9)),
    st.just(Dot()),
)


@given(SHAPE, st.dictionaries(st.sampled_from(["circle", "dot", "other"]), SHAPE))
@settings(deadline=None, max_examples=60)
def test_the_plain_form_leads_back_to_the_same_parts(main: Shape, named: dict[str, Shape]) -> None:
    drawing = Drawing(main=main, named=named)
    dropped = {name: None for name in Drawing().named if name not in named}
    form = plain(drawing)
    again = changed(Drawing(), {**form, "named": {**form["named"], **dropped}}, "toy")
    assert again.main == main
    assert again.named == named


def test_the_plain_form_names_the_kind_first() -> None:
    assert list(plain(Square())) == ["kind", "side", "pen", "rounded", "gap"]
    assert plain(Drawing(named={"a": Dot()}))["named"] == {"a": {"kind": "dot"}}


def test_a_fingerprint_sees_the_part_in_use_only() -> None:
    assert in_use(Drawing(main=Dot(), named={})) == {"main": {"kind": "dot"}, "named": []}


def test_a_fingerprint_depends_on_the_order_of_named_parts() -> None:
    """A fusion reads scores in their order; JSON with sorted keys would lose it."""
    one, other = ({"a": Dot(), "b": Circle()}, {"b": Circle(), "a": Dot()})
    assert in_use(Drawing(named=one)) != in_use(Drawing(named=other))
    assert in_use(Drawing(named=one))["named"][0] == ["a", {"kind": "dot"}]


def test_a_later_field_is_in_a_fingerprint_only_if_it_changes_what_was_done() -> None:
    assert in_use(Square(gap=0)) == {"kind": "square", "side": 2, "pen": "thin"}
    assert in_use(Square(gap=0, rounded=True)) == {"kind": "square", "side": 2, "pen": "thin", "rounded": True}
    assert in_use(Square()) == {"kind": "square", "side": 2, "pen": "thin", "gap": 3}, "the new default differs"
    assert plain(Square()) == {"kind": "square", "side": 2, "pen": "thin", "rounded": False, "gap": 3}


def test_an_unused_field_is_not_in_a_fingerprint() -> None:
    assert in_use(Square(side=0, pen="thick", gap=0)) == in_use(Square(side=0, gap=0)) == {"kind": "square", "side": 0}
    assert plain(Square(side=0, pen="thick"))["pen"] == "thick"


def test_unused_and_later_fields_inside_named_parts_are_left_out_too() -> None:
    found = in_use(Drawing(main=Dot(), named={"a": Square(side=0, gap=0)}))
    assert found["named"] == [["a", {"kind": "square", "side": 0}]]


# merging changes


@pytest.mark.parametrize(
    ("ours", "theirs", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"x": 1, "y": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({"a": 1}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        ({"a": "circle"}, {"a": "square"}, {"a": "square"}),
        ({"a": "circle"}, {"a": {"radius": 2}}, {"a": {"kind": "circle", "radius": 2}}),
        ({"a": {"radius": 2}}, {"a": "circle"}, {"a": {"kind": "circle", "radius": 2}}),
        ({"a": {"kind": "circle", "radius": 2}}, {"a": "circle"}, {"a": {"kind": "circle", "radius": 2}}),
        ({"a": {"kind": "circle", "radius": 2}}, {"a": "square"}, {"a": {"kind": "square"}}),
        ({"a": "circle"}, {"a": {"kind": "square", "side": 1}}, {"a": {"kind": "square", "side": 1}}),
        (
            {"a": {"kind": "circle", "radius": 2}},
            {"a": {"kind": "square", "side": 1}},
            {"a": {"kind": "square", "side": 1}},
        ),
    ],
)
def test_merged_changes_keep_both_unless_the_kinds_differ(
    ours: dict[str, Any], theirs: dict[str, Any], merged: dict[str, Any]
) -> None:
    before = repr((ours, theirs))
    assert deep_merged(ours, theirs) == merged
    assert repr((ours, theirs)) == before, "the arguments are not changed"


@pytest.mark.parametrize("ours", [["a", "b"], {"a": {"radius": 2}}])
def test_a_list_of_parts_and_settings_of_single_ones_cannot_be_merged(ours: Any) -> None:
    """Either would be lost without a word: which parts there are, or their settings."""
    theirs = {"a": {"radius": 3}} if isinstance(ours, list) else ["a", "b"]
    with pytest.raises(ConfigError, match="a list of scores"):
        deep_merged({"scores": ours}, {"scores": theirs})


def test_only_another_code_version_of_a_part_in_use_enters_a_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = in_use(Triplet())
    assert "code_version" not in before
    monkeypatch.setattr(SupCon, "code_version", "2")
    assert in_use(Triplet()) == before
    monkeypatch.setattr(Triplet, "code_version", "2")
    assert in_use(Triplet()) == {**before, "code_version": "2"}
    assert plain(Triplet()) == before, "it is no setting"


def test_a_method_that_fits_states_no_default_of_a_setting_again() -> None:
    """Two defaults of one setting can disagree: a label tree's regulariser was 0.1 here and 0.01 in its settings."""
    classes = [node for module in MODULES for node in nodes(module) if isinstance(node, ast.ClassDef)]
    fields = {
        line.target.id
        for node in classes
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None
    }
    methods = [node for owner in classes for node in owner.body if isinstance(node, ast.FunctionDef)]
    found = [
        f"{method.name}({argument.arg}={ast.unparse(default)})"
        for method in methods
        if method.name in ("fit", "grow", "build")
        for argument, default in zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)
        if default is not None and argument.arg in fields
    ]
    assert not found
