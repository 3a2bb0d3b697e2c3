"""Judges a registered model of a project: opens its acceptance set, measures it and the champion, and asks the gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from assets.release import gate
from assets.release.best import Best
from assets.release.gate import Line, Verdict
from xc_core.chain import Workspace
from xc_core.chain.names import ACCEPTANCE
from xc_core.chain.workspace import working
from xc_core.errors import MissingError, RefusedError, StorageError, XCError
from xc_core.leftovers import scratch
from xc_core.visible import counted

if TYPE_CHECKING:
    from xc_core.data.acceptance import AcceptanceSet
    from xc_core.data.corpus import Corpus
    from xc_core.infer.acceptance import Measured
    from xc_core.recipes.settings import ModelSettings

_WHOLE_FILES_ADVICE: Final = (
    "its files are whole: if it was killed or too slow, run this again; if another release or a plug-in has packed it, "
    "use that"
)
"""What to do about a registered model that does not open or answer, although its files are what they were."""


def acceptance_folder(workspace: Workspace, dataset: str) -> Path:
    """Return the folder of a dataset's acceptance set."""
    return workspace.data / dataset / ACCEPTANCE


def acceptance_set(workspace: Workspace, dataset: str, corpus: Corpus) -> AcceptanceSet:
    """Return the acceptance set of a dataset; the first call draws it. The caller holds ``working``.

    Raises CorruptError if its files have changed.
    """
    from xc_core.data.acceptance import AcceptanceSet, draw

    folder = acceptance_folder(workspace, dataset)
    try:
        return AcceptanceSet.open(folder)
    except MissingError:
        return draw(corpus, dataset, folder)


def keep_acceptance(workspace: Workspace, dataset: str) -> None:
    """Record the acceptance set in DVC, if the project uses DVC."""
    from assets.resources import Dvc

    if (folder := acceptance_folder(workspace, dataset)).is_dir():
        Dvc.of(workspace.root).track_source(folder)


@dataclass(frozen=True)
class Judge:
    """Compares a version of an experiment's model with the champion."""

    workspace: Workspace
    dataset: str
    recipe: str

    def __call__(self, version: Any, champion: Any | None) -> Verdict:
        """Return what the gate says of a registered version; ``champion`` is one too, or None.

        Raises BusyError while rows are removed from the dataset.
        """
        from xc_core.data.corpus import Corpus

        with scratch(self.workspace.state.absolute() / ACCEPTANCE) as folder:  # it holds texts
            with working(self.workspace, self.dataset):  # a set drawn while rows are removed would keep them
                corpus = self.workspace.open(Corpus, self.dataset)
                accepted = acceptance_set(self.workspace, self.dataset, corpus)
                today = accepted.today(corpus, folder / ACCEPTANCE)
            lines, best = self._compare(version, champion, today)
            return Verdict(tuple(lines), describe(accepted, today), best)

    def _compare(self, version: Any, champion: Any | None, accepted: AcceptanceSet) -> tuple[list[Line], Best | None]:
        """Return the lines, and the best champions if the version becomes one."""
        from assets.release.versions import download
        from xc_core.infer.acceptance import measured

        if not len(accepted):
            found = "none that has a label and that today's models do not train on"
            do = f"xc acceptance --dataset {self.dataset} --redraw, or --given FILE"
            return [Line("documents", False, found, "at least one", do)], None
        try:
            ours = measured(download(version), accepted)
        except RefusedError as error:
            return [gate.refused(gate.OPENS, error)], None
        experiment, models = self.workspace.params.experiment(self.dataset, self.recipe), {}
        limits = experiment.recipe.model
        theirs = None if champion is None else _measured_champion(champion, accepted)
        lines = list(gate.without_champion(ours, None if isinstance(theirs, Line) else theirs, limits))
        if isinstance(theirs, Line):
            return [*lines, theirs], None
        if theirs is not None and champion is not None:
            lines += gate.against(ours, theirs, limits, experiment.dataset.release)
            models = {champion.tags.get("bundle", ""): theirs}
            lines += _best_lines(champion, ours, models, accepted, limits)
        models.setdefault(version.tags.get("bundle", ""), ours)
        return lines, Best.among(accepted.facts.version, models, gate.OVERALL)


def _measured_champion(version: Any, accepted: AcceptanceSet) -> Measured | Line:
    """Return the figures of the champion, or a line that fails because it cannot be measured."""
    from assets.release.versions import download
    from xc_core.infer.acceptance import measured

    try:
        return measured(download(version), accepted)
    except XCError as error:
        found = f"version {version.version} cannot be compared: {error.found}"
        expected = "a champion that opens"
        return Line("champion", False, found, expected, _advice(version, error))


def _advice(version: Any, error: XCError) -> str:
    """Return what to do about a version that cannot be measured. Only files that have changed can be repaired."""
    from assets.release.versions import is_whole, repair_command

    if isinstance(error, StorageError):
        return error.do
    return _WHOLE_FILES_ADVICE if isinstance(error, RefusedError) and is_whole(version) else repair_command(version)


def _best_lines(
    champion: Any, ours: Measured, models: dict[str, Measured], accepted: AcceptanceSet, limits: ModelSettings
) -> Iterator[Line]:
    """Yield a line per metric whose best champion so far is another than the present one, and put it into ``models``.

    One that was deleted from the registry is not compared; its line says so, and passes. If one that is there cannot be
    measured, its line fails, so that no passing fault of a disk or a server lets a worse model through.
    """
    from mlflow import MlflowClient

    from assets.release.versions import download, measured_one, versions_of
    from xc_core.infer.acceptance import measured

    present = champion.tags.get("bundle", "")
    for metric, digest in Best.of(champion, accepted.facts.version).models.items():
        if digest == present:
            continue
        versions = versions_of(MlflowClient(), champion.name, digest)
        if not versions:
            yield gate.not_compared(metric)
            continue
        version = measured_one(versions)
        try:
            if digest not in models:
                models[digest] = measured(download(version), accepted)
        except XCError as error:
            yield gate.best_unknown(metric, str(version.version), error, _advice(version, error))
            continue
        yield gate.against_best(metric, ours, models[digest], str(version.version), limits)


def describe(accepted: AcceptanceSet, today: AcceptanceSet) -> str:
    """Return an acceptance set, and what is left of it today, in words."""
    facts, left_out = accepted.facts, len(accepted) - len(today)
    less = f", {left_out:,} left out (in train, or without a label today)" if left_out else ""
    return f"acceptance set version {facts.version} ({facts.source}), {size(today)}{less}"


def size(accepted: AcceptanceSet) -> str:
    """Return the number of documents in words, with a note if they are few."""
    from xc_core.metrics.bootstrap import FEW

    few = f" (few: figures of fewer than {FEW} are uncertain)" if len(accepted) < FEW else ""
    return counted(len(accepted), "document") + few
