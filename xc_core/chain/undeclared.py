"""What ``data/`` has and params.yaml does not, for instance after an older version of the file was restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xc_core.artifacts import MADE
from xc_core.chain.names import is_name
from xc_core.chain.params_file import declaring_command, nested
from xc_core.chain.recorded import with_earlier_values
from xc_core.chain.registry import STAGES, versioned_stages
from xc_core.chain.status import Status, states
from xc_core.chain.workspace import Workspace
from xc_core.errors import ConfigError
from xc_core.manifests import MANIFEST
from xc_core.params import KIND, dotted, plain
from xc_core.plugins import GROUP, UnknownPartError
from xc_core.root import FILE

if TYPE_CHECKING:
    from xc_core.chain.experiment import Experiment


def undeclared_datasets(workspace: Workspace, *stages: str) -> list[str]:
    """Return the folders of ``data/`` that have files of one of these stages and are no dataset of params.yaml."""
    names = {folder.parent.name for stage in stages for folder in workspace.data.glob(f"[!.]*/{stage}/")}
    return sorted(names - set(workspace.params.datasets()))


def undeclared_recipes(workspace: Workspace, dataset: str) -> list[str]:
    """Return the recipes that have artefacts of a dataset and no experiment in params.yaml.

    A folder such as ``ngame.old``, which somebody copied, has no name of a recipe and is left out.
    """
    stages = versioned_stages("experiment")
    files = [file for stage in stages for file in workspace.home(dataset).glob(f"[!.]*/{stage.name}/{MANIFEST}")]
    names = {file.parents[1].name for file in files}
    return sorted(filter(is_name, names - set(workspace.params.recipes(dataset))))


@dataclass(frozen=True)
class Restoration:
    """How an experiment of ``undeclared_recipes`` is declared again with the settings that its artefacts record."""

    command: str | None
    """None if no recipe can have these settings, as those of another version of this software, or if none is known."""
    base: str = ""
    """The recipe that the command changes: the one with the nearest settings."""
    unknown: tuple[str, ...] = ()
    """Stages that have an artefact whose settings cannot be read."""
    first: str = ""
    """What must be done before there can be a command."""

    def lines(self) -> Iterator[str]:
        """Yield what to do, in words."""
        if self.command is None:
            yield f"  to get it back: restore its lines of {FILE}, for instance from git"
            if self.first:
                yield f"  before that:    {self.first}; xc status then shows a command too"
            return
        yield f"  to get it back: {self.command}"
        if not self.unknown:
            yield "  (this has the recorded settings, and runs only what is out of date)"
            return
        stages, those = " and ".join(self.unknown), "those" if len(self.unknown) > 1 else "it"
        yield f"  (this has the recorded settings but for {stages}: {MADE} of {those} is missing or damaged. If they"
        yield f"  differed from those of {self.base}, add them with --set; stages that are out of date run again)"


def advice(workspace: Workspace, dataset: str, recipe: str) -> list[str]:
    """Return lines that say what to do about an experiment of ``undeclared_recipes``."""
    return [
        f"{dataset} / {recipe}: not in {FILE}, but data/{dataset}/{recipe} has artefacts of it",
        *restoration(workspace, dataset, recipe).lines(),
        f"  to delete it:   xc delete --dataset {dataset} --recipe {recipe}",
    ]


def restoration(workspace: Workspace, dataset: str, recipe: str) -> Restoration:
    """Return how to declare an experiment with the settings that its artefacts record."""
    from xc_core.recipes import RECIPES, Recipe

    recorded = _recorded(workspace, dataset, recipe)
    unknown = [stage for stage in Recipe.stages() if stage not in recorded]
    unknown = [stage for stage in unknown if (workspace.folder(stage, dataset, recipe) / MANIFEST).exists()]
    try:
        bases = [recipe] * (recipe in RECIPES) + RECIPES.names()
    except ConfigError as error:
        return Restoration(None, first=f"{error.do} ({error.found})")
    recorded = with_earlier_values(RECIPES[bases[0]], recorded)
    changes = {base: _changes(base, recorded) for base in bases}
    possible = [base for base in changes if _gives(base, changes[base], recorded)]
    if not recorded or not possible:
        return Restoration(None, first=_missing_part(changes))
    base = min(possible, key=lambda base: len(dotted(changes[base])))
    command = declaring_command(dataset, recipe, base, _needed(base, changes[base], recorded))
    return Restoration(command, base, tuple(unknown))


def _missing_part(changes: Mapping[str, dict[str, Any]]) -> str:
    """Return what to install if recorded settings name a part that no table has; "" if they do not."""
    from xc_core.chain.experiment import resolve

    for base, of_base in changes.items():
        try:
            resolve(base, base, of_base)
        except UnknownPartError as error:
            name = error.found.partition(" (nearest")[0]  # which was no slip of a hand
            return f"install the package that registers the {name} (entry point {GROUP})"
        except ConfigError:
            continue
    return ""


def replaced(workspace: Workspace, experiment: Experiment, stages: Sequence[str]) -> str | None:
    """Return a warning if artefacts of ``experiment`` have other settings, before a run of ``stages``; None if not.

    The warning says whether the run replaces them, or leaves them out of date. Settings that are not used do not count.
    """
    dataset, recipe = experiment.dataset.name, experiment.recipe.name
    recorded = with_earlier_values(experiment.recipe, _recorded(workspace, dataset, recipe))
    if all(not _difference(plain(experiment.settings(stage)), settings) for stage, settings in recorded.items()):
        return None
    home, found = f"data/{dataset}/{recipe}", states(workspace, experiment)
    old = [name for name, state in found.items() if state.status in (Status.STALE, Status.DAMAGED)]
    old = [name for name in old if STAGES[name].scope == "experiment"]
    if not old:
        return None
    run = [name for name in old if name in stages]
    effect, stop = f"its artefacts in {home} are replaced now ({', '.join(run)})", "To stop here and get it back"
    if not run:
        effect = f"its artefacts in {home} are out of date now, and the next training replaces them"
        stop = "To get it back"
    again = restoration(workspace, dataset, recipe)
    return (
        f"warning: {dataset} / {recipe} was trained with other settings and is not in {FILE}; {effect}"
        + (f". {stop}: {again.command}" if again.command else "")
        + (f" (but for {', '.join(again.unknown)}, whose settings are not known)" if again.unknown else "")
    )


def _recorded(workspace: Workspace, dataset: str, recipe: str) -> dict[str, Any]:
    """Return the settings of each stage that the artefacts of an experiment record."""
    from xc_core.recipes import Recipe

    made = {stage: workspace.made(stage, dataset, recipe).settings for stage in Recipe.stages()}
    return {stage: settings for stage, settings in made.items() if isinstance(settings, dict)}


def _changes(base: str, recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the changes of a recipe that should give it the recorded settings of stages."""
    from xc_core.recipes import RECIPES

    changes = {stage: _difference(plain(getattr(RECIPES[base], stage)), recorded[stage]) for stage in recorded}
    return {stage: different for stage, different in changes.items() if different}


def _difference(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return the changes that make plain settings ``theirs``; a part that they lack is dropped."""
    if ours.get(KIND) != theirs.get(KIND):
        return theirs
    changes: dict[str, Any] = {
        name: None for name, value in ours.items() if name not in theirs and isinstance(value, dict)
    }
    for name, value in theirs.items():
        present = ours.get(name)
        if isinstance(present, dict) and isinstance(value, dict):
            if deeper := _difference(present, value):
                changes[name] = deeper
        elif name not in ours or present != value:
            changes[name] = value
    return changes


def _gives(base: str, changes: dict[str, Any], recorded: dict[str, Any]) -> bool:
    """Return True if a recipe with these changes has the recorded settings."""
    from xc_core.chain.experiment import resolve

    try:
        resolved = resolve(base, base, changes)
    except ConfigError:
        return False
    return not any(_difference(plain(getattr(resolved, stage)), record) for stage, record in recorded.items())


def _needed(base: str, changes: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the changes without those that make no difference, such as the defaults of a part that was added."""
    flat = dotted(changes)
    for name in list(flat):
        fewer = {other: value for other, value in flat.items() if other != name}
        if _gives(base, nested(fewer), recorded):
            flat = fewer
    return nested(flat)
