"""``xc run``, ``xc train``, ``xc evaluate``, ``xc leaderboard``: stages from the command line.

Takes: names of stages, datasets, recipes; changes.   Gives: artefacts, tables.
May import: stages.                                   Never: knows Dagster, DVC or MLflow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import click
from ruamel.yaml import YAML, YAMLError

from xc_core.errors import UsageError, XCError, nearest
from xc_core.params import deep_merged
from xc_core.progress import report
from xc_core.stages import STAGES, Experiment, Workspace, run_stage

_dataset = click.option("--dataset", required=True, help="Name of the dataset.")
_recipe = click.option("--recipe", default="ngame", show_default=True, help="Name of the recipe.")
_HOUR = "48m"
"""What of an hour a model has until its fusion; the rest is for checkpoints, fusion and evaluation."""
_force = click.option("--force", is_flag=True, help="Make it anew even where nothing changed.")


class _Names(click.Choice[str]):
    """Names of stages; another one is refused as every unknown name is, with the nearest."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value``; raise UsageError where it is none of the names."""
        if value not in self.choices:
            raise UsageError(
                f"stage {value!r}{nearest(value, self.choices)}",
                expected=f"one of {', '.join(self.choices)}",
                do="mend the name",
            )
        return value


@click.command(short_help="Run one stage of the chain.")
@click.argument("stage", type=_Names(list(STAGES)))
@_dataset
@click.option("--recipe", default=None, help="Name of the recipe, for stages after tokens.")
@_force
@click.option(
    "--refresh",
    is_flag=True,
    help="classifier: keep trained rows, foresee those of new labels from their texts, do not train.",
)
def run(stage: str, dataset: str, recipe: str | None, force: bool, refresh: bool) -> None:
    """Run STAGE on what is in params.yaml. This is the one writer of artefacts: Dagster and DVC call it too.

    A stage whose inputs and parameters are those of its artefact does nothing. A stage that was killed goes on where
    its last checkpoint is. A second run of the same stage and partition is refused with exit code 75.
    """
    ran = run_stage(Workspace.find(), stage, dataset, recipe, force=force, refresh=refresh)
    click.echo(f"{stage}: {'up to date' if ran.skipped else f'done in {ran.seconds:.1f} s'}, {ran.folder}")


@click.command(short_help="Run the whole chain for one recipe, or all.")
@_dataset
@click.option("--recipe", default="ngame", show_default=True, help="Name of the recipe, or all for every one there is.")
@click.option("--base", default=None, help="Recipe that a variant changes; by default the recipe of that name.")
@click.option("--set", "settings", multiple=True, metavar="STAGE.FIELD=VALUE",
              help="Change a parameter, for instance --set encoder.epochs=3. May be given often.")  # fmt: skip
@click.option(
    "--until",
    type=_Names([s for s in STAGES if s != "leaderboard"]),
    default="model",
    show_default=True,
)
@click.option("--budget", default=None, metavar="TIME",
              help="Scale epochs so that training, with encoding and label trees, takes this long at most, as 90s, 10m "
              f"or 1.5h; or none to leave them. [default: {_HOUR}, so that a run ends within the hour; none if --set "
              "gives epochs]")  # fmt: skip
@_force
def train(
    dataset: str, recipe: str, base: str | None, settings: tuple[str, ...], until: str, budget: str | None, force: bool
) -> None:
    """Declare an experiment in params.yaml and run all its stages, from corpus to the packed model.

    The experiment becomes exactly the recipe with the changes given here; changes of an earlier call are dropped.
    Stages that are up to date are skipped. With --recipe all each recipe is trained in turn, and the leaderboard shown.
    A variant that params.yaml has already is known by its name: without --base and --set it is trained as it stands.
    """
    workspace = Workspace.find()
    changes: dict[str, Any] = {}
    for setting in settings:
        _put(changes, setting)
    if base is None and (variant := _variant(workspace, dataset, recipe)):
        base, declared = variant
        if not settings:
            changes, budget = declared, budget or "none"
            report(f"{recipe}: as params.yaml has it, a variant of {base}")
    seconds = _seconds(budget or ("none" if any("epochs" in own for own in changes.values()) else _HOUR))
    if recipe == "all" and base:
        raise UsageError("--recipe all with --base", expected="one of them", do="name one recipe, or drop --base")
    chosen = _train_all if recipe == "all" else _train_one
    chosen(workspace, _Wanted(dataset, recipe, base or recipe, changes, seconds), until, force=force)


def _train_all(workspace: Workspace, wanted: _Wanted, until: str, *, force: bool) -> None:
    """Train every recipe; raise the error of the first that failed once the others are done, naming all that did."""
    from xc_core.recipes import RECIPES

    run_stage(workspace, "corpus", wanted.dataset)  # what is wrong with the dataset is wrong for all
    failed: dict[str, XCError] = {}
    for name in RECIPES.names():
        try:
            _train_one(workspace, replace(wanted, recipe=name, base=name), until, force=force)
        except XCError as error:
            failed[name] = error
            report(f"{name}: found {error.found}; going on with the other recipes")
    if until in ("evaluation", "model") and len(failed) < len(RECIPES.names()):
        run_stage(workspace, "leaderboard", wanted.dataset, force=force)
        show_leaderboard(workspace, wanted.dataset)
    if failed:
        first = next(iter(failed.values()))
        told = "; ".join(f"{name} ({error.found})" for name, error in failed.items())
        raise type(first)(f"recipes that are not trained: {told}", expected=first.expected, do=first.do)


@dataclass(frozen=True)
class _Wanted:
    """An experiment as the command line asks for it."""

    dataset: str
    recipe: str
    base: str
    changes: dict[str, Any]
    seconds: float | None


def _train_one(workspace: Workspace, wanted: _Wanted, until: str, *, force: bool) -> None:
    """Declare one experiment and run its stages."""
    dataset, recipe = wanted.dataset, wanted.recipe
    declared = workspace.declare_experiment(dataset, recipe, wanted.base, wanted.changes)
    if declared.recipe and declared.recipe.classifier.lexical.use and _reaches(until, "classifier"):
        from xc_core.fusion.lexical import require

        require()  # said now, not after the training of the encoder
    if wanted.seconds and _reaches(until, "encoder"):
        _fit_budget(workspace, wanted, declared, wanted.seconds, anew=force)
    for name in STAGES:
        if name != "leaderboard":
            ran = run_stage(workspace, name, dataset, recipe, force=force)
            report(f"{name}: {'up to date' if ran.skipped else f'{ran.seconds:.1f} s'}")
        if name == until:
            break
    if until in ("evaluation", "model"):
        show_metrics(workspace, dataset, recipe)
    if until == "model":
        click.echo(f'ask it:      xc predict --dataset {dataset} --recipe {recipe} "some text"')
        click.echo(f"release it:  xc promote --dataset {dataset} --recipe {recipe}")
    elif until == "evaluation":
        click.echo(f"pack it:     xc run model --dataset {dataset} --recipe {recipe}")


def _variant(workspace: Workspace, dataset: str, recipe: str) -> tuple[str, dict[str, Any]] | None:
    """Return base and changes of a variant that params.yaml has; None for a recipe of its own, or an unknown name."""
    from xc_core.recipes import RECIPES

    return None if recipe == "all" or recipe in RECIPES else workspace.declared(dataset, recipe)


def _reaches(until: str, stage: str) -> bool:
    """True where a run that ends with the stage ``until`` runs ``stage``."""
    order = list(STAGES)
    return order.index(until) >= order.index(stage)


def _seconds(text: str) -> float | None:
    from xc_core.stages.budget import seconds_of

    return None if text == "none" else seconds_of(text)


def _fit_budget(workspace: Workspace, wanted: _Wanted, declared: Experiment, seconds: float, *, anew: bool) -> None:
    """Time a few steps and declare the experiment again, with epochs that fit."""
    from xc_core.stages.budget import scaled_epochs

    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, wanted.dataset)
    changes = deep_merged(wanted.changes, scaled_epochs(workspace, declared, seconds, anew=anew))
    workspace.declare_experiment(wanted.dataset, wanted.recipe, wanted.base, changes)


def _put(changes: dict[str, Any], setting: str) -> None:
    """Put "a.b.c=value" into nested dictionaries, the value read as YAML."""
    name, equals, text = setting.partition("=")
    parts = name.split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise UsageError(f"--set {setting}", expected="STAGE.FIELD=VALUE", do="for instance --set encoder.epochs=3")
    try:
        value = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise UsageError(f"--set {setting}", expected="a value that YAML can read", do="quote it") from error
    place = changes
    for part in parts[:-1]:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise UsageError(f"--set {setting}", expected="one value a parameter", do="drop one of the two")
    place[parts[-1]] = value


@click.command(short_help="Judge a trained recipe on test documents.")
@_dataset
@_recipe
@_force
def evaluate(dataset: str, recipe: str, force: bool) -> None:
    """Run the stage evaluation and print its table: each score alone, their sum, the fusion."""
    workspace = Workspace.find()
    run_stage(workspace, "evaluation", dataset, recipe, force=force)
    show_metrics(workspace, dataset, recipe)


def show_metrics(workspace: Workspace, dataset: str, recipe: str) -> None:
    """Print the table of an evaluation."""
    folder = workspace.folder("evaluation", dataset, recipe)
    content = json.loads((folder / "report.json").read_text("utf-8"))
    click.echo(metrics_table(content, f"{dataset} / {recipe}: {content['documents']:,} test documents"))


def metrics_table(content: dict[str, Any], title: str) -> str:
    """Return the metrics of an evaluation report as an aligned table, in percent."""
    names = ["P_at_1", "P_at_3", "P_at_5", "nDCG_at_5", "PSP_at_1", "PSP_at_3", "PSP_at_5", "R_at_10"]
    lines = [title, f"{'':<12}" + "".join(f"{name.replace('_at_', '@'):>9}" for name in names)]
    for row, values in content["ablation"].items():
        lines.append(f"{row:<12}" + "".join(f"{_cell(values[name]):>9}" for name in names))
    low, high = zip(*(content["intervals"][name] for name in names), strict=True)
    lines.append(f"{'95 % from':<12}" + "".join(f"{_cell(value):>9}" for value in low))
    lines.append(f"{'to':<12}" + "".join(f"{_cell(value):>9}" for value in high))
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


@click.command(short_help="Compare all evaluated recipes of a dataset.")
@_dataset
@_force
def leaderboard(dataset: str, force: bool) -> None:
    """Run the stage leaderboard and print its table (percent; p: paired randomisation test of P@1 against the best)."""
    workspace = Workspace.find()
    run_stage(workspace, "leaderboard", dataset, force=force)
    show_leaderboard(workspace, dataset)


def show_leaderboard(workspace: Workspace, dataset: str) -> None:
    """Print the table of a leaderboard."""
    click.echo((workspace.folder("leaderboard", dataset) / "leaderboard.md").read_text("utf-8"))
