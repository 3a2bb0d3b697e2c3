"""What the studies need of Optuna: its sqlite file, samplers and importances. Optuna is an optional package."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xc_core.causes import is_locked, storage_error, storage_reason
from xc_core.errors import BusyError, CorruptError, MissingError, UsageError, first_line
from xc_core.git import project_checkout
from xc_core.sqlite import sqlite_address
from xc_core.tune.asked import DIGESTS, Tuning
from xc_core.tune.record import ONE_AT_A_TIME, machine, record_file

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler

_FILE: Final = "study.db"
_CHANGED: Final = {"settings and code": "version of the code of a stage, of a default or of a model's files"}
"""Names of ``DIGESTS`` in a message, if they do not say enough."""
_MIN_TRIALS: Final = 10
"""Trials from which importances are estimated."""


def require_optuna() -> None:
    """Raise MissingError if Optuna is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise MissingError(
            "no installed package optuna",
            expected="the package of the extra tune",
            do="pip install -c constraints.txt -e '.[tune]'",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def sampler(name: str, seed: int) -> BaseSampler:
    """Return the sampler of one trial. Each trial has a seed of its own, so a resumed study draws the same trials."""
    from optuna.samplers import RandomSampler, TPESampler

    kinds: dict[str, type[TPESampler | RandomSampler]] = {"tpe": TPESampler, "random": RandomSampler}
    kinds |= {ONE_AT_A_TIME: RandomSampler}  # which draws nothing: all values are in the queue
    return kinds[name](seed=seed % (1 << 32))


@contextmanager
def answering(folder: Path) -> Iterator[None]:
    """Turn errors of the file of the study in ``folder`` into ones that say what is wrong.

    That is a BusyError if another process has locked it, a StorageError if the disk refuses a write, else a
    CorruptError.
    """
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, OptunaError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error  # Optuna's names no reason
        if is_locked(cause):
            raise BusyError(
                f"{folder / _FILE}, which another program has locked",
                expected="a file that no other program writes; the trials that are done are in it",
                do="end that program, then run the same command again",
            ) from error
        if reason := storage_reason(cause, folder):
            raise storage_error(reason, folder) from error
        raise unreadable(folder, cause) from error


def unreadable(folder: Path, error: Exception) -> CorruptError:
    """Return the error for a file of the study in ``folder`` that is damaged."""
    return CorruptError(
        f"an unreadable {folder / _FILE} ({first_line(error)})", expected="the study's file", do=f"delete {folder}"
    )


def opened(folder: Path, tuning: Tuning) -> Study:
    """Open the study in ``folder``, or start it.

    Raises UsageError if it was started with other settings, CorruptError if its file is damaged or one of another
    version of Optuna, MissingError if it is gone and only the record is there, ConfigError if its path cannot be part
    of an address. The caller calls it in ``answering``.
    """
    import optuna

    if not (folder / _FILE).exists() and (record := record_file(folder)).exists():
        raise MissingError(
            f"no {folder / _FILE} beside {record.name}, which shows its trials",
            expected="both files of the study",
            do=f"restore the file; or delete {folder}, which starts the study again",
        )
    try:
        study = optuna.create_study(
            study_name=tuning.name,
            storage=sqlite_address(folder / _FILE),
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.NopPruner(),  # ``study.is_low`` decides
        )
        stored = _stored_definition(study)
        study.get_trials(deepcopy=False)  # reads all that it has stored as JSON
    except (RuntimeError, ValueError, LookupError, TypeError) as error:
        raise unreadable(folder, error) from error
    definition = tuning.definition()
    if stored is not None and any(definition.get(name) != value for name, value in stored.items()):
        raise _definition_error(tuning, stored, definition)
    if stored is None:
        code = project_checkout(tuning.project.root)
        origin = {
            "machine": machine(),
            "date": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
            "commit": code.commit,
            "changed": code.changes,
        }
        study.set_user_attr("origin", origin)
        study.set_user_attr("asked", definition)
    return study


def _stored_definition(study: Study) -> Mapping[str, Any] | None:
    """Return what a study was started with, None for a new one; raise TypeError if it cannot be that."""
    stored, origin = (study.user_attrs.get(name) for name in ("asked", "origin"))
    if stored is not None and not (isinstance(stored, dict) and isinstance(origin, dict)):
        raise TypeError("no settings of a study")
    return stored


def _definition_error(tuning: Tuning, stored: Mapping[str, Any], definition: Mapping[str, Any]) -> UsageError:
    """Return the error for a study that was started with other settings, naming what differs."""
    differing = [name for name in stored if stored[name] != definition.get(name)]
    shown = [name for name in differing if name not in DIGESTS]
    parts = [f"{name} ({_difference(stored[name], definition.get(name))})" for name in shown]
    parts = parts or [_CHANGED.get(name, name) for name in differing]
    new_study = "give the new study a name of its own: --study NAME"
    return UsageError(
        f"a study {tuning.name!r} of {tuning.dataset} with another {', '.join(parts)}",
        expected="what the study was started with, because its trials are compared with each other",
        do=f"repeat its first command, or {new_study}" if shown else new_study,
    )


def _difference(old: Any, new: Any) -> str:
    """Return what differs: names for mappings, values otherwise."""
    if isinstance(old, dict) and isinstance(new, dict):
        return ", ".join(name for name in sorted({*old, *new}) if old.get(name) != new.get(name))
    return f"{old} before, {new} now"


def importances(study: Study) -> dict[str, float]:
    """Return how much each setting matters for being among the best trials, by PED-ANOVA; empty for few trials.

    Source: Watanabe et al., "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces",
    IJCAI 2023.
    """
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(done) < _MIN_TRIALS or len({trial.value for trial in done}) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns of settings that never varied
        return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))
