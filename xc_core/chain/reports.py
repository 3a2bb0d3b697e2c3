"""Collects what is known of an evaluated experiment, for the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xc_core import artifacts, manifests
from xc_core.chain.costs import machines, read_costs
from xc_core.chain.registry import STAGES, TRAIN_STAGES
from xc_core.chain.status import Status, states
from xc_core.chain.workspace import Workspace
from xc_core.data.checks import accepted_sentence
from xc_core.errors import MissingError, MovedError, XCError, nearest
from xc_core.metrics.evaluation import Evaluation
from xc_core.metrics.page import Page

_PICTURES: Final = {"deciles": "Labels by frequency", "training": "Loss of the trainings"}


def report_path(workspace: Workspace, dataset: str, recipe: str) -> Path:
    """Return where the report on an experiment is written: local state, because its costs differ from run to run."""
    return workspace.state / "reports" / dataset / f"{recipe}.html"


def write_report(workspace: Workspace, dataset: str, recipe: str, out: Path | None = None) -> Path:
    """Write the report on an experiment to ``out``, by default to ``report_path``; return the path.

    Raises MissingError, CorruptError, StorageError.
    """
    path = out or report_path(workspace, dataset, recipe)
    write = workspace.write if out is None else artifacts.write_file  # who only reads the project may write elsewhere
    write(followed(path), page_of(workspace, dataset, recipe).html())
    return path


def followed(path: Path) -> Path:
    """Return the file that a link leads to, so that the link stays one; a pipe or device is left to its refusal."""
    return path.resolve() if path.is_file() or not path.exists() else path


def page_of(workspace: Workspace, dataset: str, recipe: str) -> Page:
    """Return the content of the report on an experiment.

    Raises MissingError if it is not evaluated, CorruptError if its evaluation is damaged.
    """
    check_made(workspace, "evaluation", dataset, recipe)
    folder = workspace.folder("evaluation", dataset, recipe)
    evaluation = Evaluation.open(folder)
    stages = [STAGES[name] for name in TRAIN_STAGES]
    return Page(
        dataset=dataset,
        recipe=recipe,
        digest=manifests.read_manifest(folder).digest(),
        report=evaluation.report,
        examples=evaluation.examples,
        learnt=evaluation.learnt.words(),
        card=_card(workspace, dataset, recipe),
        costs={stage.name: read_costs(workspace, stage.name, dataset, recipe) for stage in stages},
        machines=sorted(machines(workspace, dataset, recipe)),
        pictures={
            _PICTURES.get(path.stem, path.stem): path.read_bytes() for path in sorted(manifests.pictures(folder))
        },
    )


def check_made(workspace: Workspace, stage: str, dataset: str, recipe: str) -> None:
    """Raise MissingError, which names the recipes that have the artefact of a stage, if an experiment has none."""
    if workspace.made(stage, dataset, recipe).fingerprint:
        return
    recipes = workspace.params.recipes(dataset)
    usable = [other for other in recipes if workspace.made(stage, dataset, other).fingerprint]
    raise MissingError(
        f"no {stage} of {recipe!r} on {dataset}{nearest(recipe, usable)}",
        expected=f"one of {', '.join(usable)}" if usable else f"a recipe that has run the stage {stage}; none has yet",
        do=("fix the name, or train it: " if usable else "") + workspace.params.train_command(dataset, recipe),
    )


def stale_note(workspace: Workspace, dataset: str, recipe: str, stage: str = "evaluation") -> str:
    """Return why the figures of a stage are out of date, and the command for new ones; "" if they are up to date."""
    try:
        state = states(workspace, workspace.params.experiment(dataset, recipe))[stage]
    except XCError as error:
        return f"note: the settings of {recipe} cannot be read, so its {stage} may be out of date: {error.found}"
    if state.status is not Status.STALE:
        return ""
    only_this_stage = state.root == stage
    do = STAGES[stage].command(dataset, recipe) if only_this_stage else workspace.params.train_command(dataset, recipe)
    return f"note: the stage {stage} of {recipe} is out of date ({state.why}). Make it again: {do}"


def of_present_corpus(workspace: Workspace, dataset: str, recipe: str, stage: str = "evaluation") -> bool:
    """Return True if an artefact of an experiment was made from the corpus that is there now."""
    made = workspace.made(stage, dataset, recipe)
    return made.depends.get("corpus") == workspace.digest("corpus", dataset)


def check_corpus(workspace: Workspace, stage: str, dataset: str, recipe: str) -> None:
    """Raise MovedError if an artefact of an experiment was made from another corpus than there is now."""
    if not of_present_corpus(workspace, dataset, recipe, stage):
        raise MovedError(
            f"{recipe} measured on another corpus than there is now",
            expected="the present documents",
            do=workspace.params.train_command(dataset, recipe),
        )


def _card(workspace: Workspace, dataset: str, recipe: str) -> dict[str, str]:
    """Return the facts of the corpus that an experiment was evaluated on, if that is the present one."""
    if not of_present_corpus(workspace, dataset, recipe):
        return {"corpus": "another one than today's: the data have changed since this evaluation"}
    return data_card(workspace.made("corpus", dataset).facts)


def data_card(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a corpus in words."""
    rows, pairs = facts.get("rows", {}), facts.get("pairs", {})
    card = {"layout": str(facts.get("layout", "unknown")), "labels": f"{facts.get('labels', 0):,}"}
    for split, count in rows.items():
        per = f", {pairs[split] / count:.2f} labels each" if count and split in pairs else ""
        card[f"{split} documents"] = f"{count:,}{per}"
    filters = facts.get("filters") or {}
    if filters.get("pairs"):
        card["filtered pairs"] = f"{filters['pairs']:,} ({filters.get('source', 'unknown')})"
    for split, nearness in (facts.get("nearness") or {}).items():
        if isinstance(nearness, dict):
            card[f"{split} near train"] = (
                f"{100 * nearness['above_0.75']:.1f} % of {nearness['documents']:,} documents have a train document of "
                "nearly the same words"
            )
    if accepted := accepted_sentence(facts):
        card["accepted flaws"] = accepted
    for name, file in (facts.get("source") or {}).items():
        card[f"file {name}"] = f"{file['bytes']:,} bytes, SHA-256 {file['sha256']}"
    return card
