"""A recipe: for each stage of the pipeline, the settings of the part it runs. A method is data, never code."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

from xc_core.data.splits import LEARN_FROM
from xc_core.errors import ConfigError, nearest
from xc_core.fusion import Inputs
from xc_core.params import UnknownSettingError, changed
from xc_core.plugins import Table, load_plugins
from xc_core.recipes.settings import StageSettings, inputs_of, named

__all__ = ["RECIPES", "Recipe", "find_recipe", "named", "register"]

_REMOVED_SETTINGS: Final = frozenset((
    "index", "encoder.radius", "encoder.text_share", "encoder.table", "encoder.table_loss",
    *(f"{stage}.loss.{name}" for stage in ("encoder", "classifier") for name in ("name", "negatives", "binary")),
    *(f"{stage}.{part}.name" for stage in ("encoder", "classifier") for part in ("order", "negatives")),
    "encoder.order.cluster_size",
    *(f"classifier.order.{name}" for name in ("cluster_size", "double_every", "refresh_every", "warmup_epochs")),
    "classifier.negatives.tree_width", "classifier.negatives.tree_regulariser", "classifier.lexical",
    "clusters.radius", "negatives.use", "negatives.sample", "negatives.seed",
    *(f"fusion.{name}" for name in
      ("kind", "features", "add", "weight", "depth", "min_leaf", "shrinkage", "tail", "trees")),
))  # fmt: skip
"""Names of version 0.1 that are refused now."""
_REMOVED_ADVICE: Final = (
    "delete the entry, which is of version 0.1, or move it: CHANGELOG.md (0.2.0) lists where its settings are now"
)


@dataclass(frozen=True, kw_only=True)
class Recipe(StageSettings):
    """A method: a name, and settings for each stage. Frozen; a variant is a recipe with changes."""

    name: str
    paper: str
    """Where the method comes from, in one line."""
    module: str
    """The module that defines it (``__name__``)."""

    def __post_init__(self) -> None:
        self.fusion.rule.check(self.inputs)
        if self.classifier.negatives.stored and self.classifier.epochs and not self.negatives.k:
            raise ConfigError(
                "a classifier that trains on stored hard negatives, and negatives.k = 0",
                expected="hard negatives that the stage negatives mines",
                do="set negatives.k, for instance to 20",
            )
        if not any(score.searches for score in self.scores.values()):
            raise ConfigError(
                f"scores that propose no candidates: {', '.join(self.scores)}",
                expected="at least one score that searches, for instance classifier",
                do="add one: --set scores.classifier=classifier",
            )
        if self.encoder.sees_validation and self.fusion.rule.learns:
            raise ConfigError(
                f"encoder.refit with the fusion {self.fusion.rule.kind!r}, which is fitted on validation documents",
                expected="a fusion without parameters, because all scores have seen these documents",
                do="set fusion.rule=sum, or encoder.refit=false and classifier.refit=true",
            )
        noisy = [name for name, score in self.scores.items() if score.needs_noise]
        if noisy and not (self.classifier.negatives.draws_from_noise and self.classifier.epochs):
            raise ConfigError(
                f"the score {noisy[0]!r} with a classifier whose negatives are drawn from no distribution",
                expected="classifier.negatives frequency or tree, and classifier.epochs above 0",
                do=f"change classifier.negatives or epochs, or leave the score out: --set scores.{noisy[0]}=null",
            )

    @property
    def inputs(self) -> Inputs:
        """The scores as the fusion sees them."""
        return inputs_of(self.scores)

    def require(self, *, fusion: bool = True) -> None:
        """Raise MissingError if a package that a score, or the fusion with ``fusion``, is fitted with is missing."""
        for score in self.scores.values():
            score.check()
        if fusion:
            self.fusion.rule.require()

    def learning_from(self, documents: str) -> dict[str, Any]:
        """Return the changes with which the final model learns from ``documents``; raise ConfigError for another name.

        "train": from train documents alone, which is the same for all recipes. "published": from train and validation
        documents, except an encoder whose scores are fused by a fitted rule: the rule needs documents that the encoder
        has not seen.
        """
        if documents not in LEARN_FROM:
            raise ConfigError(f"documents {documents!r}", expected=" or ".join(LEARN_FROM), do="fix the name")
        published = documents == "published"
        refit = published and not self.fusion.rule.learns
        # with refit there is one held-out training, because nothing is fitted on its documents
        single_fold = {"enough": 1} if refit else {}
        return {"encoder": {"refit": refit}, "classifier": {"refit": published, **single_fold}}

    def variant(self, name: str, paper: str, module: str, changes: dict[str, Any]) -> Recipe:
        """Return the recipe with ``changes`` under another name, as a method of its own that ``module`` defines."""
        return dataclasses.replace(self.changed(changes), name=name, paper=paper, module=module)

    def changed(self, changes: dict[str, Any]) -> Recipe:
        """Return the recipe with ``changes``, a mapping stage -> field -> value.

        Raises ConfigError for an unknown stage, field or value.
        """
        for name in changes if isinstance(changes, dict) else ():
            if name not in self.stages():
                raise ConfigError(
                    f"{self.name}.{name}{nearest(name, self.stages())}",
                    expected=f"a stage with settings: {', '.join(self.stages())}",
                    do=_REMOVED_ADVICE if name in _REMOVED_SETTINGS else "fix the name",
                )
        try:
            return changed(self, changes, self.name)
        except UnknownSettingError as error:
            if error.setting.removeprefix(f"{self.name}.") not in _REMOVED_SETTINGS:
                raise
            raise ConfigError(error.found, expected=error.expected, do=_REMOVED_ADVICE) from error

    @classmethod
    def stages(cls) -> tuple[str, ...]:
        """Return the names of the stages that a recipe configures."""
        return tuple(f.name for f in dataclasses.fields(StageSettings))


RECIPES: Table[Recipe] = Table("recipe")


def register(recipe: Recipe) -> Recipe:
    """Add a recipe to the table, under its own name, and return it."""
    return RECIPES.add(recipe.name, recipe)


def find_recipe(name: str) -> Recipe:
    """Return the recipe ``name``; raise ConfigError, naming the nearest, if there is none."""
    try:
        return RECIPES[name]
    except ConfigError as error:
        load_plugins()  # raises the error of one that cannot be imported, which no other --base repairs
        do = f"{error.do}; a variant of a known one under a name of its own needs --base KNOWN"
        raise ConfigError(error.found, expected=error.expected, do=do) from error
