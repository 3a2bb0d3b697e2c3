"""Shows studies of ``xc tune`` in MLflow: a run per study, a child run per trial (entry point ``xc.studies``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from assets.mlflow_errors import answering
from assets.pages import paged
from assets.settings import mlflow_settings
from assets.tracking import PARENT, connect, experiment_id, flat, log_figures
from xc_core.chain.workspace import Workspace
from xc_core.errors import XCError
from xc_core.metrics.names import stored
from xc_core.tune.record import StudyRecord, TrialOutcome, TrialRecord, studies, study_lock
from xc_core.tune.report import command

_STATUS: Final = {
    TrialOutcome.DONE: "FINISHED",
    TrialOutcome.PRUNED: "FINISHED",
    TrialOutcome.FAILED: "FAILED",
    TrialOutcome.STOPPED: "KILLED",
}
"""The status that MLflow shows for a trial; its tag xc.state has the state itself."""
_RUNNING: Final = "running"


def watcher(workspace: Workspace) -> Callable[[StudyRecord], None]:
    """Return a function that logs what MLflow does not have yet of a study; raises UnavailableError.

    Runs of studies that were killed are ended first. One that goes on is shown as running again.
    """
    settings = mlflow_settings(workspace.root)
    client = connect(settings.uri, settings.lock)
    runs = StudyRuns(client, settings.uri, settings.artifacts)
    for record in _killed(workspace):
        runs.end(record)
    return runs.show


def _killed(workspace: Workspace) -> Iterator[StudyRecord]:
    """Yield the studies that no process runs, although their record says so; one that cannot be read is left out."""
    for folder in studies(workspace):
        with suppress(XCError, OSError):
            record = StudyRecord.read(folder)
            if record.state == _RUNNING:
                with study_lock(workspace, record.dataset, record.name):  # raises BusyError while it runs
                    pass
                yield record


@dataclass(frozen=True)
class StudyRuns:
    """The runs of studies in one tracking store."""

    client: Any
    uri: str
    artifacts: str

    def show(self, record: StudyRecord) -> None:
        """Log the study and those of its trials that have no run yet, so a study that goes on is logged once.

        What a killed command did not finish to log is logged now. Raises UnavailableError if MLflow does not answer.
        """
        with answering(self.uri):
            experiment = experiment_id(self.client, self.artifacts, record.dataset)
            parent = self._study_run(experiment, record)
            self._log_trials(experiment, parent, record)
            self._log_result(parent, record)

    def end(self, record: StudyRecord) -> None:
        """End the run of a study that was killed, and those of its trials, if MLflow shows it as running.

        Raises UnavailableError.
        """
        with answering(self.uri):
            experiment = experiment_id(self.client, self.artifacts, record.dataset)
            run = self._find_run(experiment, record)
            if run is not None and run.info.status == "RUNNING":
                self._log_trials(experiment, str(run.info.run_id), record)
                self.client.set_tag(run.info.run_id, "xc.state", "killed")
                self.client.set_terminated(run.info.run_id, "KILLED")

    def _find_run(self, experiment: str, record: StudyRecord) -> Any | None:
        """Return the run of a study; None if it has none yet."""
        query = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in _identity_tags(record).items())
        return next(iter(self.client.search_runs([experiment], query, max_results=1)), None)

    def _study_run(self, experiment: str, record: StudyRecord) -> str:
        """Return the run of the study, made at its first call, with its parameters."""
        run = self._find_run(experiment, record)
        if run is None:
            tags = {**_identity_tags(record), "xc.dataset": record.dataset, "xc.recipe": str(record.asked["recipe"])}
            tags |= {"xc.git": record.origin["commit"], "xc.git_changed": record.origin.get("changed", "not recorded")}
            run = self.client.create_run(experiment, run_name=f"study {record.name}", tags=tags)
        params = _with_stored_names(flat(dict(record.asked)))
        missing = {name: value for name, value in params.items() if name not in run.data.params}
        log_figures(self.client, run.info.run_id, {}, missing)
        return str(run.info.run_id)

    def _trial_runs(self, experiment: str, parent: str) -> dict[str, Any]:
        """Return the runs of trials by their numbers."""
        runs = paged(self.client.search_runs, [experiment], f"tags.`{PARENT}` = '{parent}'")
        return {run.data.tags.get("xc.trial", ""): run for run in runs}

    def _log_trials(self, experiment: str, parent: str, record: StudyRecord) -> None:
        """Log the trials that have no run yet, or whose run was begun and not ended."""
        runs = self._trial_runs(experiment, parent)
        for trial in record.trials:
            existing = runs.get(str(trial.number))
            if existing is None or existing.info.status == "RUNNING":
                self._log_trial(experiment, parent, record, trial, existing)

    def _log_trial(self, experiment: str, parent: str, record: StudyRecord, trial: TrialRecord, existing: Any) -> None:
        """Log a trial, in the run that a killed command began if there is one."""
        tags = {
            PARENT: parent,
            "xc.role": "trial",
            "xc.study": record.name,
            "xc.trial": str(trial.number),
            "xc.state": trial.state.value,
            "xc.why": trial.why,
            "xc.taken": ", ".join(trial.taken),
        }
        run = existing or self.client.create_run(experiment, run_name=f"trial {trial.number}", tags=tags)
        run_id = str(run.info.run_id)
        figures = {**trial.figures, **{f"early_{stage}": value for stage, value in trial.early.items()}}
        figures |= {"seconds": trial.seconds} | ({} if trial.value is None else {"objective": trial.value})
        log_figures(self.client, run_id, figures, _with_stored_names(flat(dict(trial.values))))
        self.client.set_terminated(run_id, status=_STATUS[trial.state])

    def _log_result(self, parent: str, record: StudyRecord) -> None:
        """Log the best trial so far to the study's run, and whether the study goes on."""
        best = record.best
        if best is not None and best.value is not None:
            series = [("best_objective", len(record.trials), best.value)]
            log_figures(self.client, parent, dict(best.figures), {}, series)
            self.client.set_tag(parent, "xc.best", str(best.number))
        if record.winner is not None:
            self.client.set_tag(parent, "xc.command", command(record, record.winner))
        self.client.set_tag(parent, "xc.state", record.state)
        if record.state == _RUNNING:
            self.client.update_run(parent, status="RUNNING")
        else:
            self.client.set_terminated(parent)


def _identity_tags(record: StudyRecord) -> dict[str, str]:
    """Return the tags by which the run of a study is found."""
    return {"xc.role": "study", "xc.study": record.name, "xc.started": record.origin["date"]}


def _with_stored_names(params: dict[str, str]) -> dict[str, str]:
    """Return parameters under names that MLflow accepts: P_at_1 for P@1."""
    return {stored(name): value for name, value in params.items()}
