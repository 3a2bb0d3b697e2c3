"""The sampler one-at-a-time: a trial of the recipe as it is, then one for each listed value of each setting alone.

The figures of the first trial are kept per document; the differences of the others from them are in their records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from xc_core.errors import ConfigError, CorruptError, MissingError
from xc_core.linked import link
from xc_core.metrics.evaluation import FUSION
from xc_core.metrics.names import stored
from xc_core.metrics.paired import differences, matched
from xc_core.metrics.ranking import PerDocument
from xc_core.metrics.stored import StoredFigures
from xc_core.metrics.validation import open_validation
from xc_core.recipes import Recipe
from xc_core.tune.metric import FIGURES, Metric
from xc_core.tune.record import TrialRecord
from xc_core.tune.space import TRIAL_STAGES, Space
from xc_core.tune.trial import Trial, no_validation

if TYPE_CHECKING:
    from optuna import Study

_BASE: Final = "base"
"""Folder in that of a study with the fusion of the recipe as it is, which has its figures per document."""


def single_changes(space: Space, changed: Callable[[Mapping[str, Any]], Recipe]) -> tuple[dict[str, Any], ...]:
    """Return the values of each trial: none, then each value in ``space``, a space of lists, that changes the recipe.

    Settings of the last stage come first. So the cheapest trials do, and each trial can take over all stages before
    its own from the one before it. Raises ConfigError if no value changes the recipe.
    """
    stages = [stage.name for stage in TRIAL_STAGES]
    plan: list[dict[str, Any]] = [{}]
    recipes = [changed({})]
    for name in sorted(space.settings, key=lambda setting: (-stages.index(setting.split(".")[0]), setting)):
        for value in space.settings[name].probes:
            recipe = changed({name: value})
            if recipe not in recipes:
                plan.append({name: value})
                recipes.append(recipe)
    if len(plan) == 1:
        raise ConfigError(
            f"only values that the recipe has already: {', '.join(space.settings)}",
            expected="at least one other value to try",
            do="add values to the space",
        )
    return tuple(plan)


def queue(study: Study, space: Space, plan: Sequence[Mapping[str, Any]], ended: Sequence[TrialRecord]) -> Space:
    """Make the first values of the plan that no trial ended with those of the next trial; return their part of space.

    A trial that was cut is in Optuna's queue already: its values are the same.
    """
    from optuna.trial import TrialState

    tried = [dict(trial.values) for trial in ended]
    values = next(values for values in plan if values not in tried)
    part = Space({name: space.settings[name] for name in values})
    if not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        study.enqueue_trial(part.labels(values) or {})
    return part


def check_base(ended: Sequence[TrialRecord]) -> None:
    """Raise MissingError if the trial of the recipe as it is ended without figures."""
    for trial in ended:
        if trial.own and trial.value is None:
            raise MissingError(
                f"no figures of the recipe as it is: trial {trial.number} {trial.state.value} ({trial.why})",
                expected="figures that those of the changes are compared with",
                do="fix the cause, then start another study: --study NAME",
            )


def compared(trial: Trial, metric: Metric, record: TrialRecord, earlier: Sequence[TrialRecord]) -> TrialRecord:
    """Return the record of a trial that is done, with its differences from the first one, and the seconds it took.

    Of the first one, the figures are kept. Raises MissingError if there are none, CorruptError if they are damaged.
    """
    fusion = trial.folder("fusion", *trial.experiment.key)
    base = trial.root / _BASE / fusion.name
    record = replace(record, stages_seconds=trial.seconds())
    if record.own:
        link(fusion, base)
        return record
    try:
        theirs = open_validation(base)
    except (MissingError, CorruptError) as error:
        raise CorruptError(
            error.found,
            expected="the figures of the recipe as it is, which those of the changes are compared with",
            do=f"start another study (--study NAME), or delete {trial.root}",
        ) from error
    ours, own = open_validation(fusion), next(one for one in earlier if one.own)
    if ours is None or theirs is None:
        raise no_validation(trial.dataset)
    pair = matched(_served(ours, record), ours.rows, _served(theirs, own), theirs.rows)
    gains = differences(*(_with_objective(figures, metric) for figures in pair))
    return replace(record, gains={name: asdict(gain) for name, gain in gains.items()})


def _served(figures: StoredFigures, record: TrialRecord) -> PerDocument:
    """Return the figures that a trial is judged by."""
    found = figures.of(FUSION) or figures.of(record.served)
    assert found is not None, "the fusion writes what it serves"
    return found


def _with_objective(figures: PerDocument, metric: Metric) -> PerDocument:
    """Return the figures that a study shows, and the objective."""
    names, objective = [stored(name) for name in FIGURES], metric.per_document(figures)
    num, den = ({name: side[name] for name in names} for side in (figures.num, figures.den))
    return PerDocument(num | objective.num, den | objective.den)
