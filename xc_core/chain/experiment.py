"""An experiment: a dataset with a recipe. All its stages read their settings here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from xc_core.chain.dataset import Dataset
from xc_core.recipes import Recipe, find_recipe


@dataclass(frozen=True)
class Experiment:
    """A dataset, and a recipe with its changes applied."""

    dataset: Dataset
    recipe: Recipe

    @property
    def key(self) -> tuple[str, str | None]:
        """(dataset, recipe)."""
        return self.dataset.name, self.recipe.name

    @property
    def tokenizer(self) -> str | None:
        """The tokenizer whose ids the recipe's encoder reads."""
        return self.recipe.encoder.encoder.tokenizer

    def settings(self, stage: str) -> Any:
        """Return the settings of ``stage``; None for one that has none (leaderboard)."""
        return self.dataset.settings(stage) or getattr(self.recipe, stage, None)


def resolve(recipe: str, base: str, changes: dict[str, Any]) -> Recipe:
    """Return recipe ``base`` under the name ``recipe`` with ``changes`` (stage -> field -> value).

    Raises ConfigError for an unknown recipe, stage, field or value.
    """
    return replace(find_recipe(base), name=recipe).changed(changes)
