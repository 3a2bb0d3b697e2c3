"""Another kind of a part has its own defaults: what the kinds share is named if it changes by that alone."""

from __future__ import annotations

from typing import Any

import pytest

from xc_core.params import dotted
from xc_core.recipes import find_recipe
from xc_core.recipes.kinds import reset


@pytest.mark.parametrize(("changes", "expected"), [
    ({"classifier": {"order": "random"}}, ["classifier.order.batch_size 128 instead of 1024"]),
    ({"classifier": {"order": {"kind": "random"}}}, ["classifier.order.batch_size 128 instead of 1024"]),
    ({"classifier": {"order": {"kind": "random", "batch_size": 1024}}}, []),
    ({"classifier": {"order": {"kind": "random", "batch_size": 64}}}, []),
    ({"classifier": {"order": {"batch_size": 64}}}, []),
    ({"classifier": {"epochs": 3}}, []),
    ({"classifier": {"order": "stored-clusters"}}, []),
    ({"fusion": {"rule": "sum"}}, []),
    ({}, []),
])  # fmt: skip
def test_shared_settings_that_another_kind_does_not_keep(changes: dict[str, Any], expected: list[str]) -> None:
    recipe = find_recipe("ngame")
    assert reset(recipe, recipe.changed(changes), dotted(changes)) == expected


def test_a_named_part_of_another_kind() -> None:
    recipe = find_recipe("house").changed({"scores": {"neighbours": {"temperature": 0.25}}})
    changed = recipe.changed({"scores": {"neighbours": {"kind": "prior"}}})
    assert reset(recipe, changed, ()) == ["scores.neighbours.temperature 0.05 instead of 0.25"]
