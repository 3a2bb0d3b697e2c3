"""A study: draws settings with Optuna, runs a trial for each, keeps the best, and goes on where it was stopped.

Optuna's sqlite file in the study's folder holds every trial; the record ``study.json`` is written from it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from xc_core.chain.params_file import nested
from xc_core.chain.workspace import Workspace, working
from xc_core.errors import BusyError, CorruptError, MissingError, MovedError, StorageError, XCError, in_words
from xc_core.params import deep_merged
from xc_core.progress import report
from xc_core.seeds import derive
from xc_core.tune.asked import Tuning
from xc_core.tune.early import early
from xc_core.tune.limits import TimeIsUpError, count_of_killed, seconds_kept, stopped_after
from xc_core.tune.one_at_a_time import check_base, compared, queue
from xc_core.tune.record import SAME, StudyRecord, TrialOutcome, TrialRecord, study_folder, study_lock
from xc_core.tune.space import TRIAL_STAGES
from xc_core.tune.storage import answering, importances, opened, sampler, unreadable
from xc_core.tune.trial import Result, Trial, forget

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.trial import Trial as Drawn

Watcher = Callable[[StudyRecord], None]
_ABORTING: Final = (BusyError, StorageError, MissingError, MovedError, CorruptError)
"""Errors that any other trial would raise too: they end the command, and the trial is tried again later."""
_MAX_FAILED_IN_A_ROW: Final = 3
"""Failed trials in a row that end the command, because the settings are then unlikely to be the cause."""
_MAX_REPEATS: Final = 50
"""Trials in a row with settings of earlier ones that end the study; such a trial takes no time."""
_PRUNED_SHARE: Final = 0.25
"""Share of the trials that the pruner ends at each stage."""
_WARMUP_TRIALS: Final = 5
"""Trials before the pruner begins."""
_PROBE_SECONDS: Final = 1.0
"""Seconds to wait for the lock of a study: another ``xc tune`` holds it for a moment to check if the study runs."""
_RECORD: Final = "record"
_KILLED: Final = "killed"
"""Attribute of a study: seconds that killed trials ran, by their numbers."""


@dataclass(frozen=True)
class StudyLimits:
    """When a study ends, and how many trials keep their artefacts."""

    trials: int
    """Trials with different settings in total, those of earlier commands included."""
    seconds: float | None = None
    """Wall time of all trials, those of earlier commands included; None for no limit."""
    keep: int = 1
    """Best trials that keep their artefacts."""


def tune(tuning: Tuning, limits: StudyLimits, watchers: Iterable[Watcher] = ()) -> StudyRecord:
    """Run trials until a limit is reached, and return the record of the study; watchers see it after each trial.

    Raises UsageError if a study of this name was started with other settings, BusyError if it is running, the error of
    a trial if it is not of its settings, or if three trials in a row fail, and what ``answering`` raises.
    """
    folder = study_folder(tuning.project, tuning.dataset, tuning.name)
    lock = study_lock(tuning.project, tuning.dataset, tuning.name, patience=_PROBE_SECONDS)
    with lock, working(tuning.project, tuning.dataset), answering(folder):
        running = _Running(tuning, limits, folder, opened(folder, tuning), list(watchers))
        try:
            with answering(folder):  # here too, so that the handlers below see the errors that it makes
                return running.finish(running.until_done())
        except (TimeIsUpError, KeyboardInterrupt, *_ABORTING) as error:
            record = running.finish("stopped")
            if not isinstance(error, TimeIsUpError):
                raise
            report("tune: the budget is used up; the trial that ran was cut and goes on with a larger --budget")
            return record
        except Exception:
            running.finish("failed")
            raise


@dataclass
class _Running:
    """A study while a command runs it."""

    tuning: Tuning
    limits: StudyLimits
    folder: Path
    study: OptunaStudy
    watchers: list[Watcher]
    failed: int = 0
    """Failed trials in a row."""

    def until_done(self) -> str:
        """Run trials until a limit is reached; return which."""
        self._recover()
        while True:
            record = self.record("running")
            check_base(record.ended if self.tuning.plan else ())
            tried = {_key(trial.values) for trial in record.ended}
            if len(tried) == len(self.tuning.plan) > 0:
                return "all values tried"
            if len(tried) >= self.limits.trials:
                return "all trials done"
            if _repeats(record.ended) >= _MAX_REPEATS:
                return "the sampler draws nothing new"
            if self.limits.seconds is not None and record.seconds >= self.limits.seconds:
                return "budget used up"
            if not self.tuning.plan and len(tried) >= (self.tuning.space.size or math.inf):
                return "all combinations tried"
            self._next_trial(record)

    @property
    def _seconds_file(self) -> Path:
        return self.folder / "seconds.json"

    def record(self, state: str) -> StudyRecord:
        """Return the record of the study."""
        definition, origin = (self.study.user_attrs[name] for name in ("asked", "origin"))
        killed, stored = self.study.user_attrs.get(_KILLED, {}), self.study.get_trials(deepcopy=False)
        try:
            recorded = [_recorded(trial, killed.get(str(trial.number), 0.0)) for trial in stored]
        except (ValueError, LookupError, TypeError) as error:
            raise unreadable(self.folder, error) from error
        trials = (replace(trial, values=self.tuning.space.values(trial.values)) for trial in recorded if trial)
        return StudyRecord(
            name=self.tuning.name,
            asked=definition,
            metric=str(self.tuning.metric),
            origin=origin,
            trials=tuple(replace(trial, folder=trial.folder or self._trial(trial.values).name) for trial in trials),
            state=state,
        )

    def finish(self, state: str) -> StudyRecord:
        """Write the record with importances, show it, and delete the artefacts of trials that lost."""
        record = replace(self.record(state), importances={} if self.tuning.plan else importances(self.study))
        self._delete_losers(record)
        self._publish(record)
        return record

    def _recover(self) -> None:
        """Let trials of a killed command be tried again; let a new study begin with the recipe's own settings."""
        from optuna.trial import TrialState

        trials = self.study.get_trials(deepcopy=False)
        for frozen in trials:
            if frozen.state is TrialState.RUNNING:
                report(f"tune: trial {frozen.number} was killed; its settings are tried again")
                params = frozen.system_attrs.get("fixed_params") or frozen.params
                if params.keys() == self.tuning.space.settings.keys():  # else they are drawn again, from the same seed
                    self.study.enqueue_trial(params)
                killed_seconds = self.study.user_attrs.get(_KILLED, {})
                seconds = count_of_killed(self._seconds_file, frozen.number)
                self.study.set_user_attr(_KILLED, {**killed_seconds, str(frozen.number): seconds})
                self.study.tell(frozen.number, state=TrialState.FAIL)
        if not trials and (defaults := self.tuning.defaults()) is not None:
            self.study.enqueue_trial(defaults)
        elif not trials:
            report("tune: the recipe's own settings are not in the space, so no trial shows what it reaches as it is")

    def _next_trial(self, record: StudyRecord) -> None:
        """Draw a trial and run it; if an earlier trial had the same settings, copy its result."""
        self.study.sampler = sampler(self.tuning.sampler, derive(self.tuning.seed, "tune", len(record.ended)))
        space, plan = self.tuning.space, self.tuning.plan
        drawn = self.study.ask((queue(self.study, space, plan, record.ended) if plan else space).distributions())
        values = space.values(drawn.params)
        shown = ", ".join(f"{name} {value}" for name, value in values.items()) or "the recipe as it is"
        report(f"tune: trial {drawn.number}: {shown}")
        earlier = next((trial for trial in record.ended if _key(trial.values) == _key(values)), None)
        if earlier is None:
            remaining = None if self.limits.seconds is None else self.limits.seconds - record.seconds
            self._run_trial(drawn, values, remaining, record.ended)
        else:
            reason = f"{SAME} {earlier.number}"
            self._end(drawn, replace(earlier, number=drawn.number, seconds=0.0, taken=(), why=reason))

    def _run_trial(
        self, drawn: Drawn, values: Mapping[str, Any], seconds: float | None, earlier: Sequence[TrialRecord]
    ) -> None:
        """Run a trial for at most ``seconds``, and store how it ended, whatever happens."""
        trial = self._trial(values)
        params, start = drawn.params, time.monotonic()
        own = params == self.tuning.defaults()
        blank = TrialRecord(number=drawn.number, state=TrialOutcome.STOPPED, values=params, own=own, folder=trial.name)
        deadline, definition = None if seconds is None else start + seconds, self.study.user_attrs["asked"]
        attempt = _Attempt(self.tuning, trial, blank, deadline, definition, earlier)
        try:
            with seconds_kept(self._seconds_file, drawn.number):
                attempt.run()
            self.failed = 0
        except (TimeIsUpError, KeyboardInterrupt, *_ABORTING):
            self.study.enqueue_trial(drawn.params)
            raise
        except Exception as error:
            self.failed += 1
            attempt.record = replace(attempt.record, state=TrialOutcome.FAILED, why=in_words(error))
            if self.failed == _MAX_FAILED_IN_A_ROW:
                raise
        finally:
            self._end(drawn, replace(attempt.record, seconds=round(time.monotonic() - start, 3)))

    def _trial(self, values: Mapping[str, Any]) -> Trial:
        """Return the trial of drawn settings."""
        changes = deep_merged(dict(self.tuning.changes), nested(values))
        return Trial.of(self.tuning.project, self.folder, self.tuning.base, changes)

    def _end(self, drawn: Drawn, record: TrialRecord) -> None:
        """Store the result of a trial in the study, show it, and delete what lost."""
        from optuna.trial import TrialState

        stored = replace(record, values=drawn.params)
        drawn.set_user_attr(_RECORD, {**asdict(stored), "state": stored.state.value, "taken": list(stored.taken)})
        if record.state is TrialOutcome.DONE:
            self.study.tell(drawn, record.value)
        else:
            self.study.tell(drawn, state=TrialState.PRUNED if record.state is TrialOutcome.PRUNED else TrialState.FAIL)
        report(f"tune: {_line(record, self.tuning)}")
        current = self.record("running")
        self._delete_losers(current, record.folder)
        self._publish(current)

    def _delete_losers(self, record: StudyRecord, last: str = "") -> None:
        """Delete the artefacts of all trials but the best, the last one, and a stopped one that will be resumed."""
        ended = {trial.folder for trial in record.ended}
        keep = {trial.folder for trial in record.ranked()[: self.limits.keep]} | {last}
        keep |= {trial.folder for trial in record.trials if not trial.ended and trial.folder not in ended}
        workspace = Workspace(self.folder)
        for folder in workspace.data.glob(f"{self.tuning.dataset}/trial-*"):
            if folder.name not in keep:
                forget(workspace, self.tuning.dataset, folder.name)

    def _publish(self, record: StudyRecord) -> None:
        """Write the record and call the watchers; one that fails is reported and not called again."""
        record.write(self.folder)
        for watcher in list(self.watchers):
            try:
                watcher(record)
            except XCError as error:
                report(f"tune: the study is not shown there: {error}")
                self.watchers.remove(watcher)


@dataclass
class _Attempt:
    """One trial while it runs."""

    tuning: Tuning
    trial: Trial
    record: TrialRecord
    """What is known so far."""
    deadline: float | None
    """When the budget ends, on the monotonic clock."""
    definition: Mapping[str, Any]
    """What the study was started with."""
    earlier: Sequence[TrialRecord] = ()
    """The trials that ended before."""

    def run(self) -> None:
        """Run the stages up to the fusion; the pruner may end the trial between two of them.

        Raises MovedError if the data of the study change.
        """
        for stage in TRIAL_STAGES:
            self.tuning.check_data(self.definition)
            with stopped_after(None if self.deadline is None else self.deadline - time.monotonic()):
                if self.trial.run(stage):
                    self.record = replace(self.record, taken=(*self.record.taken, stage.name))
                figures = early(self.trial, stage.name) if self.tuning.prune else None
            if figures is not None and self._prunes(stage.name, figures):
                return
        self.tuning.check_data(self.definition)
        self._judge(self.trial.result())

    def _prunes(self, stage: str, figures: Mapping[str, float]) -> bool:
        """Record the objective of one score alone; return True if the trial is to end here."""
        value = round(self.tuning.metric.value(figures), 4)  # as it is stored, so that equal figures stay equal
        self.record = replace(self.record, early={**self.record.early, stage: value})
        earlier = [trial.early[stage] for trial in self.earlier if stage in trial.early and not trial.repeats]
        if not is_low(value, earlier):
            return False
        reason = f"one of the lowest after {stage}: {value:.2f}"
        self.record = replace(self.record, state=TrialOutcome.PRUNED, why=reason)
        return True

    def _judge(self, result: Result) -> None:
        """Record the objective; a figure that is not a number is a failure."""
        value = self.tuning.metric.value(result.figures)
        finite = math.isfinite(value)
        record = replace(
            self.record,
            state=TrialOutcome.DONE if finite else TrialOutcome.FAILED,
            value=value if finite else None,
            figures=result.figures,
            served=result.served,
            documents=result.documents,
            why="" if finite else "the figures are not finite",
        )
        planned = self.tuning.plan and finite
        self.record = compared(self.trial, self.tuning.metric, record, self.earlier) if planned else record


def is_low(value: float, earlier: Sequence[float]) -> bool:
    """Return True if a figure is in the lowest quarter of those of earlier trials, pruned ones included.

    Optuna's percentile pruner looks at trials that ran to their end, so it prunes more and more of a study (half of 50
    random trials), and it compares the best figure of a trial so far with figures of one stage.
    """
    finite = [figure for figure in earlier if math.isfinite(figure)]
    return len(finite) >= _WARMUP_TRIALS and bool(value < np.quantile(finite, _PRUNED_SHARE))


def _recorded(frozen: Any, seconds: float) -> TrialRecord | None:
    """Return the record of a trial of Optuna; one that was killed after ``seconds`` has none, and counts as stopped."""
    if not frozen.state.is_finished():
        return None
    stored = frozen.user_attrs.get(_RECORD)
    if stored is None:
        return TrialRecord(
            number=frozen.number, state=TrialOutcome.STOPPED, values=frozen.params, why="killed", seconds=seconds
        )
    return TrialRecord.of(stored)


def _line(record: TrialRecord, tuning: Tuning) -> str:
    head = f"trial {record.number}: {record.state.value}"
    value = "" if record.value is None else f", {tuning.metric} {record.value:.2f}"
    taken = f", taken over: {', '.join(record.taken)}" if record.taken else ""
    return f"{head}{value} in {record.seconds:.1f} s{taken}" + (f" ({record.why})" if record.why else "")


def _key(values: Mapping[str, Any]) -> str:
    return str(sorted(values.items(), key=lambda item: item[0]))


def _repeats(ended: Sequence[TrialRecord]) -> int:
    """Return how many of the last trials, in a row, had the settings of an earlier one."""
    return next((i for i, trial in enumerate(reversed(ended)) if not trial.repeats), len(ended))
