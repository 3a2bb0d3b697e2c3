"""``xc train``: declare an experiment and run all its stages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.chain.adopt import share
from xc_core.chain.registry import TRAIN_STAGES
from xc_core.chain.undeclared import replaced, undeclared_recipes
from xc_core.chain.workspace import training
from xc_core.cli.options import Names, dataset_option, device_option, force_option
from xc_core.cli.tables import show_leaderboard, show_metrics
from xc_core.data.splits import LEARN_FROM
from xc_core.errors import ConfigError, MissingError, UsageError, XCError, bare
from xc_core.outside import MOST_DEPTH, yaml_of
from xc_core.params import deep_merged, dotted, put
from xc_core.progress import report

if TYPE_CHECKING:
    from xc_core.chain.experiment import Experiment

_BUDGET: Final = "48m"
"""Time that training may take by default, so that a run with fusion and evaluation ends within the hour."""
_AFTER = ("evaluation", "audit", "model")
"""If a run ends with one of these stages, its metrics are shown."""
_MEASURED = TRAIN_STAGES[: TRAIN_STAGES.index("encoder")]
"""Stages that a time budget needs, because it is measured on their artefacts."""


@dataclass(frozen=True)
class _Request:
    """An experiment as given on the command line."""

    dataset: str
    recipe: str
    base: str
    changes: dict[str, Any]
    seconds: float | None
    until: str
    force: bool
    learn_from: str | None = None


@click.command(short_help="Run the whole pipeline for one recipe, or all.")
@dataset_option
@click.option("--recipe", default="ngame", show_default=True, help="Name of the recipe, or all for every recipe.")
@click.option("--base", default=None, help="Recipe that a variant changes; by default the recipe of that name.")
@click.option("--set", "settings", multiple=True, metavar="STAGE.FIELD=VALUE",
              help="Change a setting, for instance --set encoder.epochs=3 or --set encoder.loss=supcon. May be given "
              "several times.")  # fmt: skip
@click.option("--until", type=Names("stage", list(TRAIN_STAGES)), default="model", show_default=True,
              help="Last stage to run.")  # fmt: skip
@click.option("--budget", default=None, metavar="TIME",
              help="Scale epochs so that training, encoding and fitting scores take this long at most, as 90s, 10m or "
              f"1.5h; or none to train all epochs. [default: {_BUDGET}, so that a run ends within the hour; none if "
              "--set gives epochs or a variant is trained as params.yaml has it]")  # fmt: skip
@click.option("--learn-from", type=click.Choice(LEARN_FROM), default=None,
              help="What the final model learns from, to compare recipes as equals: train documents, or published "
              "(train and validation, as far as the fusion permits). [default: the recipe's own settings]")  # fmt: skip
@force_option
@device_option
def train(
    dataset: str, recipe: str, base: str | None, settings: tuple[str, ...], budget: str | None, **ending: Any
) -> None:
    """Declare an experiment in params.yaml and run all its stages, from corpus to the packed model.

    The experiment becomes exactly the recipe with the changes given here; changes of an earlier call are dropped.
    Stages that are up to date are skipped, and what another experiment of the dataset has made with the same settings
    from the same inputs is used. With --recipe all, each recipe is trained in turn and the leaderboard shown.
    Without --base and --set, a variant that is already in params.yaml is trained as it is.
    """
    workspace = Workspace.find()
    changes = changes_of(settings)
    workspace.params.dataset(dataset)  # reports what is wrong with a name, before torch is imported
    if base is None and (variant := _variant(workspace, dataset, recipe)):
        base, declared = variant
        if not settings:
            changes, budget = declared, "none" if budget is None else budget
            report(f"{recipe}: as params.yaml has it, a variant of {base}")
    if budget is None:
        budget = "none" if any("epochs" in fields for fields in changes.values()) else _BUDGET
    seconds = budget_seconds(budget)
    if recipe == "all" and base is not None:
        raise UsageError("--recipe all with --base", expected="one of them", do="name one recipe, or drop --base")
    run = _train_all if recipe == "all" else _train_one
    run(workspace, _Request(dataset, recipe, recipe if base is None else base, changes, seconds, **ending))


def _train_all(workspace: Workspace, request: _Request) -> None:
    """Train every recipe; raise the error of the first that failed once the others are done, naming all that failed."""
    from xc_core.recipes import RECIPES

    run_stage(workspace, "corpus", request.dataset)  # a fault of the dataset is a fault for all recipes
    failed: dict[str, XCError] = {}
    for name in RECIPES.names():
        try:
            _train_one(workspace, replace(request, recipe=name, base=name))
        except XCError as error:
            if not workspace.root.is_dir():  # moved or deleted: the others would fail too
                raise
            failed[name] = error
            report(f"{name}: found {error.found}; continuing with the other recipes")
    if request.until in _AFTER and len(failed) < len(RECIPES.names()):
        run_stage(workspace, "leaderboard", request.dataset, force=request.force)
        show_leaderboard(workspace, request.dataset)
    if failed:
        first = next(iter(failed.values()))
        message = "; ".join(f"{name} ({error.found})" for name, error in failed.items())
        raise type(first)(f"recipes that are not trained: {message}", expected=first.expected, do=first.do)


def _train_one(workspace: Workspace, request: _Request) -> None:
    """Declare one experiment and run its stages, unless another process trains it."""
    with training(workspace, request.dataset, request.recipe):
        _declare_and_run(workspace, _with_learn_from(request))


def _declare_and_run(workspace: Workspace, request: _Request) -> None:
    dataset, recipe, until = request.dataset, request.recipe, request.until
    _, previous = workspace.params.declared(dataset, recipe) or ("", {})
    lost = recipe in undeclared_recipes(workspace, dataset)
    declared = workspace.params.declare_experiment(dataset, recipe, request.base, request.changes)
    if lost and (warning := replaced(workspace, declared, TRAIN_STAGES[: TRAIN_STAGES.index(until) + 1])):
        report(warning)
    _report_reset(request, declared)
    if _reaches(until, "scores"):  # reported now, not after the training of the encoder
        declared.recipe.require(fusion=_reaches(until, "fusion"))
    stages = TRAIN_STAGES
    if request.seconds and _reaches(until, "encoder"):
        for name in _MEASURED:
            _run(workspace, request, name)
        request, stages = _fit_budget(workspace, request, declared, request.seconds), stages[len(_MEASURED) :]
    _report_dropped(request, previous)
    for name in stages:
        if name == "encoder":
            _report_obstacles(workspace, declared)
        may_share = not request.force and STAGES[name].scope == "experiment" and name not in _AFTER
        if may_share and (other := share(workspace, name, dataset, recipe)):
            report(f"{name}: {other} has the same, which is used")
        _run(workspace, request, name)
        if name == until:
            break
    if until in _AFTER:
        show_metrics(workspace, dataset, recipe)
    if until == "model":
        click.echo(f'ask it:      xc predict --dataset {dataset} --recipe {recipe} "some text"')
        click.echo(f"release it:  xc promote --dataset {dataset} --recipe {recipe}")
    elif until in _AFTER:
        click.echo(f"pack it:     xc run model --dataset {dataset} --recipe {recipe}")


def _run(workspace: Workspace, request: _Request, name: str) -> None:
    ran = run_stage(workspace, name, request.dataset, request.recipe, force=request.force)
    if not ran.skipped:
        report(f"{name}: {ran.seconds:.1f} s")


def _report_dropped(request: _Request, previous: dict[str, Any]) -> None:
    """Report which settings of an earlier call the experiment no longer has; params.yaml does not say who set them."""
    old, new = ({name.removesuffix(".kind") for name in dotted(changes)} for changes in (previous, request.changes))
    if dropped := sorted(old - new):
        listed = f"dropped, set by an earlier call or its budget: {', '.join(dropped)}"
        report(f"{request.recipe}: {listed}; give them again with --set to keep them")


def _report_reset(request: _Request, declared: Experiment) -> None:
    """Report settings that changed because another kind of a part has other defaults."""
    from xc_core.recipes import find_recipe
    from xc_core.recipes.kinds import reset, sentence

    if changed := reset(find_recipe(request.base), declared.recipe, dotted(request.changes)):
        report(f"{request.recipe}: {sentence(changed)}")


def _with_learn_from(request: _Request) -> _Request:
    """Add the changes of ``--learn-from``, which depend on the fusion of the recipe."""
    if request.learn_from is None:
        return request
    from xc_core.recipes import find_recipe

    recipe = find_recipe(request.base).changed(request.changes)
    return replace(request, changes=deep_merged(request.changes, recipe.learning_from(request.learn_from)))


def _variant(workspace: Workspace, dataset: str, recipe: str) -> tuple[str, dict[str, Any]] | None:
    """Return base and changes of a variant in params.yaml; None for a registered recipe or an unknown name."""
    from xc_core.recipes import RECIPES

    return None if recipe == "all" or recipe in RECIPES else workspace.params.declared(dataset, recipe)


def _reaches(until: str, stage: str) -> bool:
    """Return True if a run that ends with the stage ``until`` runs ``stage``."""
    return TRAIN_STAGES.index(until) >= TRAIN_STAGES.index(stage)


def budget_seconds(text: str) -> float | None:
    """Return the seconds of a value of --budget; None for "none"."""
    if text == "none":
        return None
    from xc_core.planning.budget import seconds_of

    return seconds_of(text)


def _report_obstacles(workspace: Workspace, declared: Experiment) -> None:
    """Report, before the encoder is trained, whether this machine has too little memory or disk."""
    from xc_core.planning.planned import obstacles

    with suppress(MissingError):  # a training that finds no corpus says so itself
        for line in obstacles(workspace, declared):
            report(f"warning: {declared.recipe.name} may not end: {line}; xc plan shows every stage")


def _fit_budget(workspace: Workspace, request: _Request, declared: Experiment, seconds: float) -> _Request:
    """Time a few steps, declare the experiment again with epochs that fit, and return it."""
    from xc_core.planning.budget import scaled_epochs

    changes = deep_merged(request.changes, scaled_epochs(workspace, declared, seconds, again=request.force))
    workspace.params.declare_experiment(request.dataset, request.recipe, request.base, changes)
    return replace(request, changes=changes)


def changes_of(settings: Iterable[str]) -> dict[str, Any]:
    """Return the values of --set, such as "encoder.epochs=3", as nested mappings; a value is read as YAML."""
    changes: dict[str, Any] = {}
    for setting in settings:
        _put_setting(changes, setting)
    return changes


def _put_setting(changes: dict[str, Any], setting: str) -> None:
    name, equals, text = setting.partition("=")
    parts, shown = name.split("."), bare(setting, 200)
    listed = len(parts) == 1 and text.lstrip().startswith("[")  # scores=[label_text, classifier]: the parts to keep
    if not equals or not (2 <= len(parts) <= MOST_DEPTH or listed) or not all(parts):
        raise UsageError(f"--set {shown}", expected="STAGE.FIELD=VALUE", do="for instance --set encoder.epochs=3")
    try:
        value = yaml_of(text)
    except ConfigError as error:
        found = f"--set {shown}: {error.found}"
        raise UsageError(found, expected="a value that YAML can read", do="quote it") from error
    try:
        put(changes, name, value)
    except ConfigError as error:
        raise UsageError(f"--set {shown}", expected="one value per setting", do="drop one of the two") from error
