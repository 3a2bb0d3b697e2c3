"""A recipe file gives every setting that its result depends on: no default of another file decides a figure.

Left out may be settings of speed and rounding, and those whose default turns a feature off (``OFF``).
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import pytest

from tests.recipes.defaults import ASIDE, STAGES, own_recipes
from xc_core import recipes
from xc_core.losses import Triplet
from xc_core.plugins import HasUnused, Part
from xc_core.recipes import RECIPES, Recipe, base, settings
from xc_core.recipes.settings import ClustersSettings
from xc_core.train.encoder_settings import EncoderSettings

OFF: Final[dict[str, tuple[Any, str]]] = {
    "EncoderConfig.projection": (0, "no projection after the pooling"),
    "EncoderConfig.heads": (1, "no second head"),
    "EncoderSettings.augment": (False, "label texts are no documents"),
    "EncoderSettings.refit": (False, "validation documents are not trained on"),
    "ClassifierSettings.augment": (False, "label texts are no documents"),
    "ClassifierSettings.refit": (False, "validation documents are not trained on"),
    "ClassifierSettings.dropout": (0.0, "no dropout"),
    "ClassifierSettings.average": (0.0, "no average of rows"),
    "BiasConfig.lr": (0.0, "no bias per label"),
    "TableConfig.weight_decay": (0.0, "no weight decay of rows"),
    "EncoderSettings.cache": (False, "memory alone"),
    "ByText.cache": (False, "memory alone"),
    "ByBoth.cache": (False, "memory alone"),
    "ByRow.dropout": (0.0, "no dropout"),
    "Negatives.first": (False, "no document is reduced to its first label"),
    "Shared.share": (False, "no positives beside the sampled ones"),
    "InBatch.unseen": (0, "no labels are added to the pool"),
    "Searching.ahead": (0, "no search in the background"),
    "Lexical.usual_terms": (0, "one threshold for texts of any length"),
    "Classifier.joined": (False, "one vector per document"),
    "Fusion.add": ((), "no selection: all scores that rank labels"),
    "WithTrees.features": ((), "no selection: all scores"),
    "WithTrees.tail": (0.0, "no weight of rare labels"),
    "LightGBM.weight": (0.0, "nothing is added to the trees"),
    "LightGBM.derived": (False, "no derived features"),
    "FusionSettings.new_by_sum": (False, "the rule ranks labels without train documents"),
    "FusionSettings.tail_cost": (0.0, "no tilt to rare labels"),
}
"""Settings whose default is off: class and field, the default, what it means."""
Left = tuple[str, str, Any]
"""Place of a setting in a recipe, class and field, value."""


def owner(config: Any, name: str) -> str:
    """Return the class that declares a field, and the field."""
    declared = next(cls for cls in type(config).__mro__ if name in vars(cls).get("__annotations__", {}))
    return f"{declared.__name__}.{name}"


def left_out(config: Any, place: str, *, given: bool = True, unused: frozenset[str] = frozenset()) -> Iterator[Left]:
    """Yield the settings in use that were not given; of a config that was not given, all that it holds."""
    if isinstance(config, Mapping):
        for name, part in config.items():
            yield from left_out(part, f"{place}.{name}", given=given)
        return
    if not given and isinstance(config, Part):
        yield place, f"{config.table.family} kind", config.kind
    unused |= config.unused() if isinstance(config, HasUnused) else frozenset()
    for name in (field.name for field in dataclasses.fields(config)):
        if name in unused | ASIDE:
            continue
        value, known = getattr(config, name), given and name not in config.left_out
        if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
            within = frozenset(other.removeprefix(f"{name}.") for other in unused if other.startswith(f"{name}."))
            yield from left_out(value, f"{place}.{name}", given=known, unused=within)
        elif not known:
            yield f"{place}.{name}", owner(config, name), value


def everything_left_out(recipe: Recipe) -> Iterator[Left]:
    """Yield the settings that a result of ``recipe`` depends on and that were not given."""
    for stage in STAGES:
        if stage not in recipe.classifier.unread():
            yield from left_out(getattr(recipe, stage), stage, given=stage not in cast(Any, recipe).left_out)


def not_given(recipe: Recipe) -> list[Left]:
    """Return the same without those that are off."""
    return [left for left in everything_left_out(recipe) if left[1] not in OFF or OFF[left[1]][0] != left[2]]


def settings_classes() -> set[type]:
    """Return all classes that recipes have settings of."""
    found: set[type] = set()

    def visit(config: Any) -> None:
        for value in config.values() if isinstance(config, Mapping) else ():
            visit(value)
        if dataclasses.is_dataclass(config):
            found.add(type(config))
            for field in dataclasses.fields(config):
                visit(getattr(config, field.name))

    for name in RECIPES.names():
        visit(RECIPES[name])
    return found


def remember(patch: pytest.MonkeyPatch, cls: Any) -> None:
    """Let objects of a dataclass keep, as ``left_out``, the fields that they were built without."""
    build, names = cls.__init__, {field.name for field in dataclasses.fields(cls)}

    def init(self: Any, **given: Any) -> None:
        build(self, **given)
        object.__setattr__(self, "left_out", names - given.keys())

    patch.setattr(cls, "__init__", init)


@contextmanager
def recorded() -> Iterator[pytest.MonkeyPatch]:
    """Inside, configs keep which fields they were built without."""
    replace = dataclasses.replace

    def replaced(config: Any, **changes: Any) -> Any:
        new = replace(config, **changes)  # gives every field
        object.__setattr__(new, "left_out", config.left_out - changes.keys())
        return new

    with pytest.MonkeyPatch.context() as patch:
        for cls in settings_classes():
            remember(patch, cls)
        patch.setattr(dataclasses, "replace", replaced)
        yield patch


@pytest.fixture(scope="module")
def built() -> dict[str, Recipe]:
    """All recipes, built again by their files."""
    modules = [f"{recipes.__name__}.{name}" for _, name, _ in pkgutil.iter_modules(recipes.__path__)]
    modules = [module for module in modules if module not in {base.__name__, settings.__name__}]
    with recorded() as patch:
        patch.setattr(RECIPES, "_parts", {})
        for module in modules:
            patch.setattr(recipes, module.rpartition(".")[2], sys.modules[module])
            patch.delitem(sys.modules, module)
        for module in modules:
            importlib.import_module(module)
        return dict(RECIPES._parts)


@pytest.mark.parametrize("recipe", own_recipes(), ids=lambda recipe: recipe.name)
def test_a_recipe_file_gives_every_setting_that_is_not_off(recipe: Recipe, built: dict[str, Recipe]) -> None:
    again = built[recipe.name]
    assert again == recipe
    assert not_given(again) == [], f"give these settings in {recipe.module}"


def made(**stages: Any) -> Recipe:
    return Recipe(name="made", paper="none", module=__name__, **stages)


def test_a_setting_that_is_left_out_is_found_and_one_that_is_given_is_not() -> None:
    with recorded():
        recipe = made(encoder=EncoderSettings(loss=Triplet(margin=0.3, hardest=10)), clusters=ClustersSettings(size=8))
    found = {place: value for place, _, value in not_given(recipe)}
    assert found["encoder.loss.temperature"] == 0.1
    assert found["encoder.order"] == "clustered", "the kind of a part that is left out"
    assert found["encoder.order.batch_size"] == 128, "and what it holds"
    assert found["classifier.negatives.unseen"] == 128, "which its owner gives, not the recipe"
    assert found["scores.label_text.search"] is True
    given = {"encoder.loss", "encoder.loss.margin", "encoder.loss.hardest", "clusters.size"}
    off = {"encoder.augment", "classifier.bias.lr", "encoder.negatives.first"}
    aside = {"encoder.seed", "encoder.encoder.precision", "scores.classifier.index"}
    assert not found.keys() & (given | off | aside)


def test_changes_give_settings_and_another_kind_leaves_its_own_out() -> None:
    with recorded():
        recipe = made(clusters=ClustersSettings())
        changed = recipe.changed({"clusters": {"size": 8}, "encoder": {"loss": {"kind": "bce", "bias": 10.0}}})
    before, after = ({place for place, _, _ in not_given(one)} for one in (recipe, changed))
    assert "clusters.size" in before - after
    assert "encoder.loss.temperature" in after
    assert not after & {"encoder.loss", "encoder.loss.bias"}


def test_what_is_off_is_a_default_of_today_and_is_left_out_somewhere(built: dict[str, Recipe]) -> None:
    """Another default would change recipes that leave it out."""
    used = {key: value for recipe in built.values() for _, key, value in everything_left_out(recipe)}
    assert {key: value for key, value in used.items() if key in OFF} == {key: value for key, (value, _) in OFF.items()}
