"""docs/defaults.md lists every setting of every recipe with its value and a source that exists."""

from __future__ import annotations

import re

import pytest

from tests.recipes.defaults import GUESS, PAGE, own_recipes, table, values, written
from xc_core.recipes import RECIPES, Recipe

AGAIN = "run: python -m tests.recipes.defaults, and say where new values come from"


def test_the_table_is_that_of_the_recipes() -> None:
    assert {key: names for key, (names, _) in written().items()} == table(own_recipes()), AGAIN


def test_the_page_names_every_recipe() -> None:
    names = [recipe.name for recipe in own_recipes()]
    page = PAGE.with_name("recipes.md").read_text("utf-8")
    missing = [name for name in names if f"`{name}`" not in page and not name.startswith("astra-")]
    assert missing == [], "add them to the table of docs/recipes.md"


def test_a_value_that_changes_changes_the_table() -> None:
    changed = RECIPES["ngame"].changed({"encoder": {"loss": {"margin": 0.25}}})
    others = [recipe for recipe in own_recipes() if recipe.name != "ngame"]
    found = table([*others, changed])
    assert found["encoder.loss.margin", "0.25"] == "`ngame`"
    assert found != table(own_recipes())


@pytest.mark.parametrize("recipe", own_recipes(), ids=lambda recipe: recipe.name)
def test_each_setting_of_a_recipe_stands_once_and_settings_that_nothing_reads_do_not(recipe: Recipe) -> None:
    settings = [setting for setting, _ in values(recipe)]
    assert len(set(settings)) == len(settings)
    assert ("clusters.size" in settings) == (recipe.classifier.order.stored and recipe.classifier.epochs > 0)
    assert ("encoder.optim.lr" in settings) == (recipe.encoder.epochs > 0)


def test_every_source_is_a_guess_a_paper_or_a_lab_note_that_exists() -> None:
    sources = [source for _, source in written().values()]
    assert all(sources)
    assert GUESS in sources
    for link in re.findall(r"\]\(([^)]+)\)", " ".join(sources)):
        assert (PAGE.parent / link).is_file(), link


def test_the_runbook_names_every_recipe_whose_label_trees_could_not_be_seeded() -> None:
    """``words`` was missing."""
    with_trees = [recipe.name for recipe in own_recipes() if {"lexical", "characters"} & set(recipe.scores)]
    text = " ".join(PAGE.with_name("runbook.md").read_text("utf-8").split())
    (around,) = re.findall(r"[^.]*label trees[^.]* could not be seeded\.", text, re.IGNORECASE)
    assert len(with_trees) > 2
    assert [name for name in with_trees if f"`{name}`" not in around] == []
