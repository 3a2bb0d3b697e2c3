"""``xc tune``: search the settings of a recipe on validation documents."""

from __future__ import annotations

import shlex
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from xc_core import artifacts
from xc_core.chain import Workspace
from xc_core.chain.names import checked_name
from xc_core.chain.reports import followed
from xc_core.cli.options import dataset_option, device_option
from xc_core.cli.train import budget_seconds, changes_of
from xc_core.errors import UsageError, XCError
from xc_core.progress import report
from xc_core.visible import counted

if TYPE_CHECKING:
    from xc_core.tune.study import Watcher

_ONE_AT_A_TIME: Final = "one-at-a-time"
"""As in xc_core/tune/record.py, which takes long to import."""
_TRIALS: Final = 20
GROUP = "xc.studies"
"""Entry points of this group show studies elsewhere: each names a function (workspace) -> function (study record)."""


@click.command(short_help="Search the settings of a recipe on validation documents.")
@dataset_option
@click.option("--recipe", required=True, help="Recipe as it is registered, or variant as params.yaml has it.")
@click.option("--space", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="YAML file with a line per setting: a list of values, {range: [a, b]}, optionally with step: c, or "
              "{log: [a, b]}.")  # fmt: skip
@click.option("--trials", default=None, type=click.IntRange(1),
              help="Trials of the study in total; one that repeats earlier settings does not count. [default: 20; all "
              "with --sampler one-at-a-time]")  # fmt: skip
@click.option("--budget", default=None, metavar="TIME",
              help="Wall time of all trials of the study, as 90s, 10m or 1.5h. [default: no limit]")  # fmt: skip
@click.option("--metric", default="mean", show_default=True,
              help="mean of P@1, P@5 and PSP@5; or one of them; or weights, as P@1=2,PSP@5=1.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="STAGE.FIELD=VALUE",
              help="Fix a setting for all trials, as in xc train. May be given several times.")  # fmt: skip
@click.option("--sampler", default="tpe", show_default=True, type=click.Choice(["tpe", "random", _ONE_AT_A_TIME]),
              help="How settings are chosen: tpe learns from earlier trials, random does not; one-at-a-time tries the "
              "recipe as it is, then each listed value of each setting alone, and prints the differences.")  # fmt: skip
@click.option("--pruner", default=None, type=click.Choice(["quarter", "none"]),
              help="quarter ends trials whose single scores are in the lowest quarter after a stage. "
              "[default: quarter; none with --sampler one-at-a-time, which refuses quarter]")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of the sampler.")
@click.option("--study", default=None, help="Name of the study; by default that of the recipe.")
@click.option("--keep", default=1, show_default=True, type=click.IntRange(0), help="Best trials that keep artefacts.")
@click.option("--out", default=None, type=click.Path(path_type=Path), help="Write the study as a Markdown note.")
@device_option
def tune(dataset: str, recipe: str, space: Path, settings: tuple[str, ...], **options: Any) -> None:
    """Train variants of a recipe up to the stage fusion and find the one with the best figures on validation documents.

    Test documents are never read. The same command again continues the study; trials done count. Studies are kept in
    .xc/tune/DATASET/STUDY, not in params.yaml; the command that trains the winner is printed.
    """
    workspace = Workspace.find()
    workspace.params.dataset(dataset)  # reports what is wrong with a name, before torch is imported
    from xc_core.recipes.kinds import sentence
    from xc_core.tune.asked import Tuning
    from xc_core.tune.metric import Metric
    from xc_core.tune.report import note, summary
    from xc_core.tune.space import Space
    from xc_core.tune.storage import require_optuna
    from xc_core.tune.study import StudyLimits
    from xc_core.tune.study import tune as run

    require_optuna()
    budget, study = options["budget"], options["study"]
    seconds, metric = budget_seconds("none" if budget is None else budget), Metric.of(options["metric"])
    study = checked_name("study", recipe if study is None else study)
    sampling = {"sampler": options["sampler"], "seed": options["seed"], "prune": _prunes(options)}
    changes, values = changes_of(settings), Space.read(space, fewest=1 if options["sampler"] == _ONE_AT_A_TIME else 2)
    tuning = Tuning.of(workspace, dataset, recipe, changes, values, name=study, metric=metric, **sampling)
    if tuning.plan:
        count = counted(len(tuning.plan), "trial")
        report(f"tune: {count} in all: {recipe} as it is, then each other value of each setting")
    if unused := tuning.unused():
        listed = f"not used, set in params.yaml by xc train or its budget: {', '.join(unused)}"
        report(f"tune: {recipe}: {listed}; give them with --set to use them")
    if changed := tuning.reset():
        report(f"tune: {recipe}: {sentence(changed)}")
    trials = options["trials"] or len(tuning.plan) or _TRIALS
    record = run(tuning.prepared(), StudyLimits(trials, seconds, options["keep"]), _watchers(workspace))
    click.echo(summary(record))
    if out := options["out"]:
        artifacts.write_file(followed(out), note(record, _command(dataset, recipe, space, settings, options)))
        report(f"tune: {out} written")


def _prunes(options: dict[str, Any]) -> bool:
    """Return whether trials are pruned; raise UsageError if that is asked for and each is to have figures."""
    planned, pruner = options["sampler"] == _ONE_AT_A_TIME, options["pruner"]
    if planned and pruner == "quarter":
        raise UsageError(
            f"--pruner quarter with --sampler {_ONE_AT_A_TIME}",
            expected="trials that run to their end: one that is pruned has no difference from the recipe",
            do="drop --pruner",
        )
    return not planned and pruner != "none"


def _command(dataset: str, recipe: str, space: Path, settings: tuple[str, ...], options: dict[str, Any]) -> str:
    """Return the command line of this call, without what has its default."""
    parts = ["xc", "tune", "--dataset", dataset, "--recipe", recipe, "--space", str(space)]
    parts += [part for setting in settings for part in ("--set", setting)]
    context = click.get_current_context()
    for name, value in options.items():
        source = context.get_parameter_source(name)
        if value is not None and name != "out" and source is not click.core.ParameterSource.DEFAULT:
            parts += [f"--{name}", str(value)]
    return shlex.join(parts)


def _watchers(workspace: Workspace) -> list[Watcher]:
    """Return the functions of other packages that show a study; one that cannot start is reported and left out."""
    watchers = []
    for entry in metadata.entry_points(group=GROUP):
        try:
            watchers.append(entry.load()(workspace))
        except XCError as error:
            report(f"tune: the study is not shown by {entry.name}: {error}")
    return watchers
