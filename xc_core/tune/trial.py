"""One trial: an experiment in the folder of its study, run up to the stage fusion, judged on validation documents.

No stage after the fusion is ever run, and the folders of a study have none, so no test figure exists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from xc_core import artifacts
from xc_core.chain import STAGES, Stage, Workspace, run_stage
from xc_core.chain.adopt import adopt
from xc_core.chain.costs import read_costs
from xc_core.chain.dataset import Partition
from xc_core.chain.experiment import Experiment, resolve
from xc_core.chain.params_file import ParamsFile
from xc_core.errors import MissingError
from xc_core.tune.space import TRIAL_STAGES

_FUSION, _SUM = "fusion", "sum"
"""Names of the fitted rule and of the plain sum among the validation figures of the stage fusion."""
_STATE: Final = ("run", "cost", "lock")


@dataclass(frozen=True)
class _OneExperiment(ParamsFile):
    """Stands for params.yaml in the folder of a study: the trial that runs is the only experiment."""

    trial_experiment: Experiment

    def partition(self, dataset: str, recipe: str | None) -> Partition:
        """Return the trial, or its dataset."""
        return self.trial_experiment.dataset if recipe is None else self.trial_experiment

    def train_command(self, dataset: str, recipe: str) -> str:
        """Return what to do if the data of the study changed: its trials cannot be compared with new ones."""
        return f"start another study, of the new data: xc tune --dataset {dataset} --study NAME ..."


@dataclass(frozen=True)
class Result:
    """What a trial gave."""

    figures: dict[str, float]
    """P@1, P@5 and PSP@5 on validation documents, in percent, as the stage fusion names them."""
    served: str
    """What has these figures: the fusion, the plain sum, or a score that is used alone."""
    documents: int
    """Validation documents of the figures."""


@dataclass(frozen=True)
class Trial(Workspace):
    """An experiment of a study; trials with the same settings have the same folder, so a stopped one is resumed.

    Its own stages are under the study's ``root``, those of the dataset in the project.
    """

    project: Workspace
    experiment: Experiment

    @classmethod
    def of(cls, project: Workspace, root: Path, base: Experiment, changes: Mapping[str, Any]) -> Trial:
        """Return the trial of ``base`` with ``changes``, in the study at ``root``.

        Raises ConfigError for changes that the recipe refuses.
        """
        name = f"trial-{hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:10]}"
        recipe = resolve(name, base.recipe.name, dict(changes))
        return cls(root, project, replace(base, recipe=recipe))

    @property
    def params(self) -> ParamsFile:
        """What stands for params.yaml: the trial is its only experiment."""
        return _OneExperiment(self.root, self.state / "lock" / "params", self.experiment)

    def folder(self, stage: str, dataset: str, recipe: str | None = None) -> Path:
        """Return the folder of an artefact."""
        shared = STAGES[stage].scope == "dataset"
        return self.project.folder(stage, dataset) if shared else super().folder(stage, dataset, recipe)

    def raw(self, dataset: str) -> Path:
        """Return the folder of the dataset's source files."""
        return self.project.raw(dataset)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.experiment.recipe.name

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return self.experiment.dataset.name

    def run(self, stage: Stage) -> bool:
        """Run one stage, or take over its result; return True if another experiment had it."""
        adopted = adopt(self, stage, self.experiment, self._other_folders(stage.name))
        if adopted is not None:  # with what it cost
            owner, place = Workspace(adopted.parents[3]), (stage.name, self.dataset)
            with suppress(FileNotFoundError):
                cost = owner.scratch("cost", *place, adopted.parent.name).read_text("utf-8")
                artifacts.write_file(self.scratch("cost", *place, self.name), cost)
        run_stage(self, stage.name, self.dataset, self.name)
        return adopted is not None

    def _other_folders(self, stage: str) -> Iterator[Path]:
        """Yield where other experiments of the dataset have their artefact: this study, the project, other studies."""
        yield from sorted(self.data.glob(f"{self.dataset}/*/{stage}"))
        yield from sorted(self.project.data.glob(f"{self.dataset}/*/{stage}"))
        yield from sorted(self.root.parent.glob(f"*/data/{self.dataset}/*/{stage}"))

    def seconds(self) -> float | None:
        """Return how long all its stages ran when they were made, here or elsewhere; None if that is not known."""
        costs = [read_costs(self, stage.name, self.dataset, self.name).get("seconds") for stage in TRIAL_STAGES]
        return sum(cost for cost in costs if cost is not None) if None not in costs else None

    def result(self) -> Result:
        """Return the figures of what would be served, at the default of its dial.

        Raises MissingError if there are no validation documents.
        """
        facts = self.made("fusion", self.dataset, self.name).facts
        figures, served = facts.get("validation") or {}, facts.get("served", _FUSION)
        if not figures:
            raise no_validation(self.dataset)
        if served not in figures:  # a rule that learns nothing: the sum of its scores, or its only score
            served = _SUM if _SUM in figures else next(iter(figures))
        return Result(dict(facts.get("figures") or figures[served]), served, int(facts["documents"]))


def forget(workspace: Workspace, dataset: str, name: str) -> None:
    """Delete the artefacts and the state of a trial."""
    artifacts.remove(workspace.data / dataset / name)
    for kind in _STATE:
        for stage in TRIAL_STAGES:
            artifacts.remove(workspace.scratch(kind, stage.name, dataset, name))


def no_validation(dataset: str) -> MissingError:
    """Return the error for a dataset without validation documents."""
    return MissingError(
        f"no validation documents with labels of {dataset}",
        expected="documents on which trials are judged; test documents are never read",
        do=f"set datasets.{dataset}.corpus.validation_fraction in params.yaml to a larger share, for instance 0.3",
    )
