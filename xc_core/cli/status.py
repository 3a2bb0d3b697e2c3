"""``xc status``, ``xc settings``: the state of every artefact, and the settings of an experiment."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict
from typing import Any, Final

import click

from xc_core import canonical
from xc_core.artifacts import read_made
from xc_core.chain import Workspace, changelog
from xc_core.chain.dataset import Partition
from xc_core.chain.fingerprints import write_settings
from xc_core.chain.params_file import PARTS
from xc_core.chain.registry import STAGES, versioned_stages
from xc_core.chain.status import State, states
from xc_core.chain.undeclared import advice, undeclared_datasets, undeclared_recipes
from xc_core.cli.options import dataset_option
from xc_core.cli.tables import show_next
from xc_core.errors import MissingError, XCError, nearest
from xc_core.lifecycle.drift import read_record
from xc_core.locks import lockers
from xc_core.params import plain
from xc_core.progress import optional, report
from xc_core.root import FILE
from xc_core.visible import listed, printable

_STALE: Final = 1
"""Exit code of ``xc status`` if something is out of date."""
_DECLARE: Final = "xc ingest data/NAME/raw --dataset NAME"


@click.command(short_help="Show which artefacts are up to date, and why others are not.")
@click.option("--dataset", default=None, help="Name of the dataset; by default all.")
@click.option("--recipe", default=None, help="Name of the recipe; by default all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per artefact; the exit code is 0.")
def status(dataset: str | None, recipe: str | None, as_json: bool) -> None:
    """Print the state of every stage. The exit code is 1 if a stage is out of date, missing or damaged.

    An experiment whose settings are wrong is reported, and the others are shown.
    """
    workspace = Workspace.find()
    pairs = _pairs(workspace, dataset, recipe)
    exit_code = 0
    for pair in pairs:
        try:
            stage_states = _states(workspace, *pair)
        except XCError as error:
            is_asked_for = dataset is not None if pair[1] is None else recipe is not None
            if not is_asked_for and not _is_declared(workspace, *pair):
                continue  # deleted since the list was made
            if len(pairs) == 1:
                raise
            report(str(error))
            exit_code = max(exit_code, error.exit_code)
            continue
        exit_code = max(exit_code, *(0 if state.status.usable else _STALE for state in stage_states))
        details = {"corpus": _corpus_details(workspace, pair[0]), "model": _model_details(workspace, *pair)}
        if as_json:
            _echo_json(*pair, stage_states, details)
        else:
            _echo(*pair, stage_states, details, _running(workspace, *pair))
        if pair[1] is None and not as_json:  # only ingested so far
            show_next(workspace, pair[0])
    if not as_json:
        if not pairs:
            click.echo(_nothing_declared(workspace))
        elif recipe is None:
            _echo_undeclared(workspace, dataset)
    if exit_code and not as_json:
        sys.exit(exit_code)


def _echo_undeclared(workspace: Workspace, dataset: str | None) -> None:
    """Print what params.yaml has lost, because the list above does not show it: datasets, and experiments of others."""
    for name in workspace.params.datasets() if dataset is None else [dataset]:
        for lost in undeclared_recipes(workspace, name):
            click.echo("\n".join(printable(line) for line in advice(workspace, name, lost)))
    if dataset is None and (names := undeclared_datasets(workspace, "corpus")):
        click.echo(_some_undeclared(names))


def _nothing_declared(workspace: Workspace) -> str:
    """Return what to do if params.yaml names no dataset: it may be another one than that of ``data/``."""
    names = undeclared_datasets(workspace, "raw", "corpus")
    if not names:
        return "no dataset yet; create one: xc ingest FOLDER --dataset NAME"
    return (
        f"no dataset in {FILE}, but data/ has {printable(listed(names))}; restore {FILE}, for instance from git, "
        f"or declare each again: {_DECLARE}"
    )


def _some_undeclared(names: list[str]) -> str:
    """Return what to do if params.yaml has lost datasets: the list above does not show them."""
    return (
        f"note: data/ has {printable(listed(names))}, not in {FILE}; restore its lines, for instance from git, "
        f"declare a dataset again ({_DECLARE}), or delete the folder"
    )


def _pairs(workspace: Workspace, dataset: str | None, recipe: str | None) -> list[tuple[str, str | None]]:
    """Return every (dataset, recipe) that is asked for, or (dataset, None) for a dataset without recipes.

    Raises MissingError if no dataset has the recipe.
    """
    if recipe is None:
        names = workspace.params.datasets() if dataset is None else [dataset]
        none: tuple[None] = (None,)
        return [(name, recipe_name) for name in names for recipe_name in workspace.params.recipes(name) or none]
    if dataset is not None:
        return [(dataset, recipe)]
    pairs = workspace.params.experiments()
    if matching := [(name, recipe_name) for name, recipe_name in pairs if recipe_name == recipe]:
        return [*matching]
    recipes = sorted({recipe_name for _, recipe_name in pairs})
    raise MissingError(
        f"no experiment of recipe {recipe!r} in params.yaml{nearest(recipe, recipes)}",
        expected=f"one of {', '.join(recipes)}" if recipes else "an experiment; there is none yet",
        do=f"fix the name, or create it: xc train --dataset NAME --recipe {recipe}",
    )


def _is_declared(workspace: Workspace, dataset: str, recipe: str | None) -> bool:
    declared = workspace.params.datasets() if recipe is None else workspace.params.recipes(dataset)
    return (recipe or dataset) in declared


def _keep_settings(workspace: Workspace, partition: Partition) -> None:
    """Write the settings files, if they can be written."""
    with optional("the settings files, which DVC compares, are not written"):
        write_settings(workspace, partition)


def _states(workspace: Workspace, dataset: str, recipe: str | None) -> list[State]:
    partition = workspace.params.partition(dataset, recipe)
    _keep_settings(workspace, partition)
    return list(states(workspace, partition).values())


def _corpus_details(workspace: Workspace, dataset: str) -> dict[str, Any]:
    """Return what is shown of the corpus: validation documents, how near they and tests are to train, last change."""
    folder = workspace.folder("corpus", dataset)
    facts, change = read_made(folder).facts, changelog.last(folder)
    split = facts.get("split", {})
    found = {"nearness": facts.get("nearness"), "split": split.get("by"), "validation_file": split.get("given")}
    details = {**found, "last_change": change, "note": changelog.gap(folder)}
    return {name: value for name, value in details.items() if value}


def _model_details(workspace: Workspace, dataset: str, recipe: str | None) -> dict[str, Any]:
    """Return the last answer of ``xc drift``, and whether it still holds for the present data and model."""
    record = read_record(workspace, dataset, recipe) if recipe else None
    if record is None or recipe is None:
        return {}
    holds = record.holds(workspace, dataset, recipe)
    if not holds and not workspace.folder("model", dataset, recipe).is_dir():
        return {}  # the answer is about a model that was deleted
    return {"drift": {**asdict(record), "line": record.line, "holds": holds}}


def _running(workspace: Workspace, dataset: str, recipe: str | None) -> dict[str, int]:
    """Return the stages that run on this machine now, and the process of each."""
    found = {name: lockers(workspace.scratch("lock", name, dataset, recipe), "FLOCK") for name in STAGES}
    return {name: pids[0] for name, pids in found.items() if pids}


def _echo(
    dataset: str,
    recipe: str | None,
    stage_states: list[State],
    details: dict[str, dict[str, Any]],
    running: dict[str, int],
) -> None:
    click.echo(f"{dataset}{f' / {recipe}' if recipe else ''}")
    for state in stage_states:
        reason = f": {state.why}" if state.why else ""
        now = f" (process {running[state.stage]} runs it now)" if state.stage in running else ""
        click.echo(f"  {state.stage:<11} {state.status}{reason}{now}")
        for line in _detail_lines(details.get(state.stage, {})):
            click.echo(f"  {'':<11} {line}")


def _detail_lines(details: dict[str, Any]) -> list[str]:
    from xc_core.data.nearness import sentence, warning

    nearness, change, drift = (details.get(name) for name in ("nearness", "last_change", "drift"))
    given = "validation_file" in details
    lines = [sentence(nearness), *warning(nearness, details.get("split", ""), given=given)] if nearness else []
    if drift:
        lines.append(f"new data: {drift['line']}" + ("" if drift["holds"] else " (of an earlier version: xc drift)"))
    lines += [changelog.sentence(change)] if change else []
    return [*lines, f"note: {details['note']}"] if "note" in details else lines


def _echo_json(dataset: str, recipe: str | None, stage_states: list[State], details: dict[str, dict[str, Any]]) -> None:
    for state in stage_states:
        click.echo(
            canonical.line({"dataset": dataset, "recipe": recipe, **asdict(state), **details.get(state.stage, {})})
        )


@click.command(short_help="Show all settings of a dataset or experiment.")
@dataset_option
@click.option("--recipe", default=None, help="Name of the recipe; without it the settings of the dataset are shown.")
def settings(dataset: str, recipe: str | None) -> None:
    """Print every setting, defaults included, as YAML; update the settings files that DVC compares.

    A known recipe need not be trained: its own settings are shown.
    """
    workspace = Workspace.find()
    # raises the error of an unknown name before slow libraries are imported
    dataset_settings = workspace.params.dataset(dataset)

    from ruamel.yaml import YAML

    from xc_core.chain.experiment import Experiment
    from xc_core.recipes import RECIPES

    partition: Partition
    if recipe and recipe in RECIPES and workspace.params.declared(dataset, recipe) is None:
        partition = Experiment(dataset_settings, RECIPES[recipe])
    else:
        partition = workspace.params.partition(dataset, recipe)
        _keep_settings(workspace, partition)
    stages = versioned_stages("dataset" if recipe is None else "experiment")
    content = {stage.name: plain(partition.settings(stage.name)) for stage in stages}
    if recipe is None:  # those that no stage reads come last
        content |= {name: plain(getattr(partition, name)) for name in PARTS if name not in content}
    out = io.StringIO()
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(content, out)
    click.echo(out.getvalue().rstrip())
