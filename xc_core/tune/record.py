"""The record of a study, ``study.json``: what was asked, and the result of every trial. Written after each trial.

Only this file is needed to show a study; the sqlite file beside it is for Optuna.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from xc_core import artifacts
from xc_core.canonical import canonical
from xc_core.chain.costs import processor
from xc_core.chain.workspace import Workspace
from xc_core.errors import CorruptError, MissingError
from xc_core.locks import locked
from xc_core.metrics.paired import PairedDifference
from xc_core.root import check_there
from xc_core.tune.metric import OBJECTIVE
from xc_core.visible import counted

SAME: Final = "same settings as trial"
"""How the reason of a trial that repeats another begins."""
ONE_AT_A_TIME: Final = "one-at-a-time"
"""The sampler of a study whose trials change one setting each."""
_FILE: Final = "study.json"
_FOLDER: Final = "tune"


class TrialOutcome(StrEnum):
    """How a trial ended."""

    DONE = "done"
    PRUNED = "pruned"
    """Stopped early, because figures of one score were among the lowest."""
    FAILED = "failed"
    STOPPED = "stopped"
    """Killed, interrupted or cut by the budget; its settings are tried again and it does not count."""


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial."""

    number: int
    state: TrialOutcome
    values: Mapping[str, Any]
    """The drawn settings, by dotted name."""
    value: float | None = None
    """The objective, in percent."""
    figures: Mapping[str, float] = field(default_factory=dict)
    early: Mapping[str, float] = field(default_factory=dict)
    """The objective of single scores, by the stage after which they were measured."""
    served: str = ""
    documents: int = 0
    seconds: float = 0.0
    taken: tuple[str, ...] = ()
    """Stages whose result was taken over from another experiment."""
    own: bool = False
    """True for the settings that the recipe has without a study."""
    why: str = ""
    folder: str = ""
    stages_seconds: float | None = None
    """Seconds of all its stages, those included that were taken over; None if not known. One at a time only."""
    gains: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """One at a time: the ``PairedDifference`` from the recipe as it is, by figure; that of the objective too."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> TrialRecord:
        """Return the record of a trial as it was stored; fields that only a later version knows are ignored.

        Raises KeyError, ValueError or TypeError for other content.
        """
        values = {f.name: content[f.name] for f in fields(cls) if f.name in content}
        return cls(**{**values, "state": TrialOutcome(content["state"]), "taken": tuple(content["taken"])})

    @property
    def ended(self) -> bool:
        """True if it is not tried again."""
        return self.state is not TrialOutcome.STOPPED

    def gain(self, figure: str) -> PairedDifference:
        """Return the difference of a figure from the recipe as it is; KeyError if it is not known."""
        return PairedDifference(**self.gains[figure])

    @property
    def repeats(self) -> bool:
        """True if it has the settings, and took over the result, of an earlier trial."""
        return self.why.startswith(SAME)


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """A study and its trials."""

    name: str
    asked: Mapping[str, Any]
    """What defines the study: dataset, recipe, changes, space, metric, sampler, seed, pruner, digests."""
    metric: str
    """The metric in words."""
    origin: Mapping[str, str]
    """Machine, date, commit, and files that differ from it, of the first start."""
    trials: tuple[TrialRecord, ...] = ()
    importances: Mapping[str, float] = field(default_factory=dict)
    """Share of the variance of the objective that each setting explains; empty if there are few trials."""
    state: str = "running"

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return str(self.asked["dataset"])

    @property
    def best(self) -> TrialRecord | None:
        """The trial with the highest objective, the first of equal ones; None if none is done."""
        return next(iter(self.ranked()), None)

    def ranked(self) -> list[TrialRecord]:
        """Return the trials that are done, best first, without those that repeat another."""
        done = [t for t in self.trials if t.state is TrialOutcome.DONE and t.value is not None and not t.repeats]
        return sorted(done, key=lambda trial: (-(trial.value or 0.0), trial.number))

    @property
    def planned(self) -> bool:
        """True if its trials change one setting each."""
        return bool(self.asked.get("sampler") == ONE_AT_A_TIME)

    @property
    def winner(self) -> TrialRecord | None:
        """The trial whose settings are to be trained: the best; one at a time, the best that is clearly better.

        A seed is no improvement: one that is better than another shows how much chance there is.
        """
        if not self.planned:
            return self.best
        compared = [trial for trial in self.ranked() if trial.gains and not next(iter(trial.values)).endswith(".seed")]
        gains = ((trial, trial.gain(OBJECTIVE)) for trial in compared)
        return next((trial for trial, gain in gains if gain.clear and gain.points > 0), None)

    @property
    def baseline(self) -> TrialRecord | None:
        """The trial of the recipe's own settings, if it is done."""
        return next((trial for trial in self.trials if trial.own and trial.state is TrialOutcome.DONE), None)

    @property
    def ended(self) -> list[TrialRecord]:
        """The trials that are not tried again."""
        return [trial for trial in self.trials if trial.ended]

    @property
    def seconds(self) -> float:
        """Wall time of all trials, in seconds."""
        return sum(trial.seconds for trial in self.trials)

    def write(self, folder: Path) -> None:
        """Write the record into the study's folder."""
        artifacts.write_file(record_file(folder), canonical(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> StudyRecord:
        """Read the record of the study in ``folder``; raise MissingError, CorruptError."""
        path = record_file(folder)
        try:
            content = json.loads(path.read_text("utf-8"))
            trials = tuple(TrialRecord.of(trial) for trial in content.pop("trials"))
            record = cls(**content, trials=trials)
            _ = record.dataset, record.origin["date"]  # by which MLflow finds its run
            return record
        except FileNotFoundError as error:
            raise MissingError(f"no {path}", expected="the record of a study", do="xc tune ...") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # the last for JSON that is no object
            raise CorruptError(
                f"an unreadable {path} ({error})", expected="what xc tune wrote", do="run the same xc tune again"
            ) from error


def study_folder(workspace: Workspace, dataset: str, name: str) -> Path:
    """Return the folder of a study: its sqlite file, its record and the artefacts of its best trials."""
    return workspace.state / _FOLDER / dataset / name


def study_lock(workspace: Workspace, dataset: str, name: str, *, patience: float = 0.0) -> AbstractContextManager[None]:
    """Return the lock of a study, which the command that runs it holds.

    Raises BusyError if another process still holds it after ``patience`` seconds, MissingError if the project was moved
    or deleted since the command began.
    """
    check_there(workspace.root)
    file = study_folder(workspace, dataset, name) / "lock"
    return locked(file, f"the study {name} of {dataset}", patience=patience)


def record_file(folder: Path) -> Path:
    """Return the file of the record of the study in ``folder``."""
    return folder / _FILE


def studies(workspace: Workspace) -> list[Path]:
    """Return the folders of all studies that have a record."""
    return sorted(path.parent for path in (workspace.state / _FOLDER).glob(f"*/*/{_FILE}"))


def machine() -> str:
    """Return processor, cores, threads and GPU of this machine in words; no host name."""
    import torch

    from xc_core.devices import Device

    gpu = Device.chosen().in_words()
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    return f"{processor()}, {counted(cores, 'core')}, {counted(threads, 'thread')}, {gpu}"
