"""What ``data/`` has and params.yaml does not, for instance after an older version of the file was restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xc_core.chain.names import is_name
from xc_core.chain.params_file import declaring_command, nested
from xc_core.chain.registry import versioned_stages
from xc_core.chain.workspace import Workspace
from xc_core.errors import ConfigError
from xc_core.manifests import MANIFEST
from xc_core.params import KIND, dotted, plain
from xc_core.root import FILE

if TYPE_CHECKING:
    from xc_core.recipes import Recipe


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


def advice(workspace: Workspace, dataset: str, recipe: str) -> list[str]:
    """Return lines that say what to do about an experiment of ``undeclared_recipes``."""
    lines = [f"{dataset} / {recipe}: not in {FILE}, but data/{dataset}/{recipe} has artefacts of it"]
    if command := restoring_command(workspace, dataset, recipe):
        lines += [
            f"  to get it back: {command}",
            "  (this has the recorded settings, and runs only what is out of date)",
        ]
    else:
        lines.append(f"  to get it back: restore its lines of {FILE}, for instance from git")
    return [*lines, f"  to delete it:   xc delete --dataset {dataset} --recipe {recipe}"]


def restoring_command(workspace: Workspace, dataset: str, recipe: str) -> str | None:
    """Return the command that declares an experiment with the settings that its artefacts record.

    It changes the recipe to which the settings are nearest. None if they cannot be had from any, as those of another
    version of this software.
    """
    from xc_core.recipes import RECIPES

    recorded = _recorded(workspace, dataset, recipe)
    try:
        bases = [recipe] * (recipe in RECIPES) + RECIPES.names()
    except ConfigError:  # of a plug-in that cannot be imported, which xc doctor names
        return None
    changes = {base: _changes(base, recorded) for base in bases}
    possible = [base for base in changes if _gives(base, changes[base], recorded)]
    if not recorded or not possible:
        return None
    base = min(possible, key=lambda base: len(dotted(changes[base])))
    return declaring_command(dataset, recipe, base, _needed(base, changes[base], recorded))


def replaced(workspace: Workspace, dataset: str, recipe: Recipe) -> str | None:
    """Return a warning if a training of ``recipe`` replaces artefacts of other settings; None if there are none."""
    recorded = _recorded(workspace, dataset, recipe.name)
    if all(not _difference(plain(getattr(recipe, stage)), settings) for stage, settings in recorded.items()):
        return None
    command = restoring_command(workspace, dataset, recipe.name)
    return (
        f"warning: {dataset} / {recipe.name} was trained with other settings and is not in {FILE}; its artefacts in "
        f"data/{dataset}/{recipe.name} are replaced now"
        + (f". To stop here and get it back: {command}" if command else "")
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
