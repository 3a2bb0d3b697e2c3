"""What a study is asked to do, checked before its first trial."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.chain.experiment import Experiment, resolve
from xc_core.chain.fingerprints import content_hash, resolved
from xc_core.chain.params_file import nested
from xc_core.chain.status import depends
from xc_core.data.corpus import Corpus
from xc_core.data.splits import VALIDATION
from xc_core.errors import ConfigError, MissingError, MovedError, UsageError
from xc_core.params import deep_merged, dotted, plain
from xc_core.recipes import RECIPES, Recipe, find_recipe
from xc_core.recipes.kinds import reset
from xc_core.seeds import generator
from xc_core.tune.metric import Metric
from xc_core.tune.one_at_a_time import single_changes
from xc_core.tune.record import ONE_AT_A_TIME
from xc_core.tune.space import TRIAL_STAGES, Space, present
from xc_core.tune.trial import no_validation

DIGESTS: Final = ("corpus", "tokenisation", "settings and code")
"""Names in ``Tuning.definition`` whose values are hashes."""
_CORNERS: Final = 64
"""Combinations of the ends of all settings that are checked before the first trial."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A study: a space of changes to a recipe on a dataset, and how it is searched."""

    project: Workspace
    name: str
    dataset: str
    recipe: str
    """The recipe, or the variant of params.yaml, that is tuned."""
    base: Experiment
    """The dataset with the registered recipe that all trials change."""
    changes: Mapping[str, Any]
    """Changes that all trials share: of the variant and of --set."""
    space: Space
    metric: Metric
    sampler: str = "tpe"
    seed: int = 0
    prune: bool = True

    @classmethod
    def of(
        cls, project: Workspace, dataset: str, recipe: str, changes: dict[str, Any], space: Space, **rest: Any
    ) -> Tuning:
        """Return the study of ``recipe``, a registered one or a variant of params.yaml, with ``changes`` to it.

        Raises MissingError for an unknown dataset or a missing package, ConfigError for an unknown recipe or setting, a
        value that the recipe refuses or a trial that holds no documents out, UsageError for a setting that is both
        fixed and in the space.
        """
        dataset_settings, base = project.params.dataset(dataset), recipe
        planned = rest.get("sampler") == ONE_AT_A_TIME
        if not planned:  # there, a value in --set is what the others are compared with
            _check_disjoint(space, changes)
        declared = None if recipe in RECIPES else project.params.declared(dataset, recipe)
        if declared is not None:
            base, changes = declared[0], deep_merged(declared[1], changes)
        experiment = Experiment(dataset_settings, find_recipe(base))
        typed = space.typed(present(plain(resolve(recipe, base, changes)), space.settings))
        tuning = cls(
            project=project,
            dataset=dataset,
            recipe=recipe,
            base=experiment,
            changes=changes,
            space=typed.listed() if planned else typed,
            **rest,
        )
        for trial in tuning.corners():
            _check_held_out(trial)
            trial.require()
        return tuning

    def unused(self) -> list[str]:
        """Return the settings of the experiment in params.yaml that trials neither share nor draw.

        Trials start from the recipe as it is registered, so they ignore these settings.
        """
        _, declared = self.project.params.declared(self.dataset, self.recipe) or ("", {})
        names, shared = ({name.removesuffix(".kind") for name in dotted(part)} for part in (declared, self.changes))
        drawn = set() if self.plan else self.space.settings.keys()  # one at a time, most trials have the recipe's value
        return sorted(names - shared - drawn)

    def reset(self) -> list[str]:
        """Return the settings of trials that change because another kind of a part has other defaults."""
        registered = resolve(self.recipe, self.base.recipe.name, {})
        given = {*self.space.settings, *dotted(self.changes)}
        return sorted({line for trial in self.corners() for line in reset(registered, trial, given)})

    @cached_property
    def plan(self) -> tuple[Mapping[str, Any], ...]:
        """The values of all trials, in order; empty if a sampler draws them.

        Raises ConfigError if the recipe refuses a value, or has all of them already.
        """
        return single_changes(self.space, self._changed) if self.sampler == ONE_AT_A_TIME else ()

    def _changed(self, values: Mapping[str, Any]) -> Recipe:
        """Return the recipe of a trial; raise ConfigError if it refuses the values."""
        return resolve(self.recipe, self.base.recipe.name, deep_merged(dict(self.changes), nested(values)))

    def corners(self) -> Iterator[Recipe]:
        """Yield the recipes of all trials if they are known.

        Otherwise those at ends of the space: each value once with the first of the others, then some at random.
        Raises ConfigError for a combination that the recipe refuses.
        """
        if self.plan:
            yield from map(self._changed, self.plan)
            return
        probes = {name: domain.probes for name, domain in self.space.settings.items()}
        first = {name: values[0] for name, values in probes.items()}
        random = generator(self.seed, "tune-corners")
        for values in [
            *({**first, name: value} for name, choices in probes.items() for value in choices),
            *(
                {name: choices[random.integers(len(choices))] for name, choices in probes.items()}
                for _ in range(_CORNERS)
            ),
        ]:
            yield self._changed(values)

    def defaults(self) -> dict[str, Any] | None:
        """Return the settings of the recipe without a study, as a trial stores them; None if the space lacks them."""
        if self.plan:
            return {}
        values = self.present()
        labels = self.space.labels(values)
        return labels if labels is not None and self.space.values(labels) == values else None

    def present(self) -> dict[str, Any]:
        """Return the values that the recipe has of the settings in the space."""
        return present(plain(self._changed({})), self.space.settings)

    @cached_property
    def _by_tokenizer(self) -> dict[str, Recipe]:
        """A trial per tokenizer."""
        return dict(sorted({trial.encoder.encoder.tokenizer: trial for trial in self.corners()}.items()))

    def prepared(self) -> Tuning:
        """Run the stages of the dataset, with the tokenizers of all trials; return the study with its settings by then.

        Raises MissingError if there are no validation documents.
        """
        self.project.params.declare_tokenizers(self.dataset, list(self._by_tokenizer))
        for stage in ("corpus", "tokens"):
            run_stage(self.project, stage, self.dataset)
        corpus = self.project.open(Corpus, self.dataset)
        if not corpus.labels.rows(corpus.rows(VALIDATION)).counts_N.any():
            raise no_validation(self.dataset)
        return replace(self, base=replace(self.base, dataset=self.project.params.dataset(self.dataset)))

    def definition(self) -> dict[str, Any]:
        """Return what defines the study: if any of it changes, its trials cannot be compared with new ones."""
        experiment = Experiment(self.base.dataset, self._changed({}))
        settings = [resolved(self.project, stage, experiment) for stage in TRIAL_STAGES]
        content = {
            "dataset": self.dataset,
            "recipe": self.recipe,
            "base": self.base.recipe.name,
            "changes": dotted(self.changes),
            "space": self.space.plain(),
            "metric": dict(self.metric.weights),
            "sampler": self.sampler,
            "seed": self.seed,
            "pruner": "lowest quarter" if self.prune else "none",
            **self._data(),
            "settings and code": hashlib.sha256(json.dumps(settings).encode()).hexdigest(),
        }
        content |= {"base values": self.present()} if self.plan else {}
        definition: dict[str, Any] = json.loads(json.dumps(content))
        return definition

    def _data(self) -> dict[str, str]:
        """Return digests of the corpus, and of the token ids that the trials read; raise MissingError without them."""
        trials = [replace(self.base, recipe=recipe) for recipe in self._by_tokenizer.values()]
        stores = [depends(self.project, STAGES["encoder"], trial).get("tokens") for trial in trials]
        return {"corpus": self.project.digest("corpus", self.dataset), "tokenisation": content_hash(stores)}

    def check_data(self, definition: Mapping[str, Any]) -> None:
        """Raise MovedError if the trials would read other data than those for which the study was started."""
        try:
            current = self._data()
        except MissingError as error:
            raise MovedError(
                f"{error.found}, which another command removed",
                expected=f"the data of the study {self.name} as long as it runs",
                do="run the same command again: it makes what is missing, and the trials that are done count",
            ) from error
        changed = [name for name, digest in current.items() if definition.get(name, digest) != digest]
        if changed:
            raise MovedError(
                f"another {' and '.join(changed)} of {self.dataset} than at the start of the study {self.name}",
                expected="the same data for all trials, because they are compared with each other",
                do=f"start another study, of the new data: xc tune --dataset {self.dataset} --study NAME ...",
            )


def _check_held_out(trial: Recipe) -> None:
    """Raise ConfigError if a trial learns from all validation documents, so that nothing could judge it."""
    if trial.encoder.sees_validation:
        raise ConfigError(
            "encoder.refit in a study, by which trials learn from the documents that judge them",
            expected="an encoder that is trained on train documents alone",
            do="fix it for all trials: --set encoder.refit=false; train the winner with --learn-from published",
        )


def _check_disjoint(space: Space, changes: Mapping[str, Any]) -> None:
    """Raise UsageError if a drawn value would replace a fixed one, also under its other name: encoder.loss.kind."""
    fixed = dotted(changes)
    for name, domain in space.settings.items():
        probes = [value for value in domain.probes if value is not None]
        drawn = (dotted(deep_merged(dict(changes), nested({name: value}))) for value in probes)
        if not all(fixed.items() <= values.items() for values in drawn):
            raise UsageError(f"{name} in --set and in the space", expected="one of them", do="drop one of the two")
