"""Experiments and datasets that ``data/`` has and params.yaml lost."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import TOY_CHANGES
from xc_core.artifacts import Made
from xc_core.chain import Workspace
from xc_core.chain.registry import STAGES
from xc_core.chain.status import Status, states
from xc_core.chain.undeclared import advice, replaced, restoration, undeclared_recipes
from xc_core.cli.train import changes_of
from xc_core.errors import ConfigError
from xc_core.params import plain
from xc_core.recipes import RECIPES


def lose(workspace: Workspace, *experiments: str) -> None:
    """Take experiments out of params.yaml, as an older version of the file lacks them."""
    workspace.params.remove("toy", experiments, whole=False)


def declared_again(workspace: Workspace, recipe: str) -> None:
    """Declare an experiment as the command does that restores it."""
    command = shlex.split(restoration(workspace, "toy", recipe).command or "")
    options = dict(zip(command[2::2], command[3::2], strict=True))
    settings = [value for name, value in zip(command[2::2], command[3::2], strict=True) if name == "--set"]
    assert command[:2] == ["xc", "train"]
    assert (options["--dataset"], options["--recipe"], options["--budget"]) == ("toy", recipe, "none")
    workspace.params.declare_experiment("toy", recipe, options.get("--base", recipe), changes_of(settings))


def test_an_experiment_is_found_by_its_artefacts_alone(copied: Workspace) -> None:
    assert undeclared_recipes(copied, "toy") == []
    lose(copied, "ngame")
    for name in ("empty", "notes/texts"):
        (copied.home("toy") / name).mkdir(parents=True)
    for name in (".hidden", "ngame.old", "ngame copy", "inbox"):  # no recipe can have these names
        (copied.home("toy") / name / "encoder").mkdir(parents=True)
        (copied.home("toy") / name / "encoder" / "manifest.json").write_text("{}")
    (copied.home("toy") / "begun" / "settings").mkdir(parents=True)
    assert undeclared_recipes(copied, "toy") == ["ngame"]


@pytest.mark.parametrize("recipe", ["ngame", "mine"])
def test_the_command_of_an_experiment_makes_all_its_artefacts_up_to_date(copied: Workspace, recipe: str) -> None:
    lose(copied, "ngame")
    (copied.home("toy") / "ngame").rename(copied.home("toy") / recipe)
    declared_again(copied, recipe)
    found = states(copied, copied.params.experiment("toy", recipe))
    assert {state.status for state in found.values()} == {Status.FRESH}
    base, changes = copied.params.declared("toy", recipe) or ("", {})
    assert base == "ngame"
    rows = {name: value for name, value in TOY_CHANGES["classifier"].items() if name != "table"}  # as by default
    assert changes == TOY_CHANGES | {"classifier": rows}, "nothing but what was changed"


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": {"frequency": None}, "fusion": {"rule": "sum"}},
        {"scores": {"nearest": {"kind": "neighbours", "nearest": 7}}},
        {"encoder": {"loss": {"kind": "supcon", "temperature": 0.5}, "order": "random"}},
        {"model": {"max_drop": 3.0}},
    ],
    ids=["a score less", "a score more", "other parts", "a number"],
)
def test_changed_settings_come_back(workspace: Workspace, changes: dict[str, Any]) -> None:
    wanted = workspace.params.declare_experiment("toy", "other", "ngame", changes).recipe
    for stage in wanted.stages():
        folder = workspace.folder(stage, "toy", "other")
        folder.mkdir(parents=True)
        (folder / "made.json").write_text(Made(settings=plain(getattr(wanted, stage))).to_json())
        (folder / "manifest.json").write_text("{}")
    lose(workspace, "other")
    assert undeclared_recipes(workspace, "toy") == ["other"]
    declared_again(workspace, "other")
    assert "probes" not in str(workspace.params.declared("toy", "other")), "no default of a part that was added"
    found = workspace.params.experiment("toy", "other").recipe
    assert {stage: plain(getattr(found, stage)) for stage in found.stages()} == {
        stage: plain(getattr(wanted, stage)) for stage in wanted.stages()
    }


def without(settings: Any, *names: str) -> Any:
    """Return plain settings as a release recorded them that did not have these."""
    if isinstance(settings, dict):
        return {name: without(value, *names) for name, value in settings.items() if name not in names}
    return settings


def test_settings_that_a_release_did_not_have_come_back_as_they_were(workspace: Workspace) -> None:
    """The command gave them the defaults of today, so artefacts were made again, and its advice said otherwise."""
    before = {
        "fusion.fallback": False,
        "fusion.rule.linear": False,
        "fusion.rule.log_probabilities": False,
        "fusion.rule.penalty": 0.0,
        "scores.lexical.usual_terms": 0,
        "scores.lexical.passes": 20,
        "scores.lexical.tolerance": 0.0001,
    }
    dropped = {"scores": {"characters": None, "label_characters": None}}
    wanted = RECIPES["house"].changed(changes_of([f"{name}={value}" for name, value in before.items()]))
    wanted = wanted.changed(dropped)
    for stage in wanted.stages():
        folder = workspace.folder(stage, "toy", "other")
        folder.mkdir(parents=True)
        names = [name.rpartition(".")[2] for name in before]
        (folder / "made.json").write_text(Made(settings=without(plain(getattr(wanted, stage)), *names)).to_json())
        (folder / "manifest.json").write_text("{}")
    lose(workspace, "other")
    declared_again(workspace, "other")
    found = workspace.params.experiment("toy", "other").recipe
    assert {stage: plain(getattr(found, stage)) for stage in found.stages()} == {
        stage: plain(getattr(wanted, stage)) for stage in wanted.stages()
    }
    assert replaced(workspace, workspace.params.experiment("toy", "other"), tuple(STAGES)) is None
    lose(workspace, "other")
    today = workspace.params.declare_experiment("toy", "other", "house", dropped)
    assert "was trained with other settings" in str(replaced(workspace, today, tuple(STAGES)))


def test_a_setting_that_is_not_recorded_has_the_value_of_today(copied: Workspace) -> None:
    lose(copied, "ngame")
    file = copied.folder("classifier", "toy", "ngame") / "made.json"
    made = json.loads(file.read_text())
    del made["settings"]["seed"]
    file.write_text(json.dumps(made))
    command = str(restoration(copied, "toy", "ngame").command)
    assert "--recipe ngame" in command and "seed" not in command


@pytest.mark.parametrize("gone", [1, None])
def test_there_is_no_command_for_settings_that_no_recipe_can_have(copied: Workspace, gone: int | None) -> None:
    lose(copied, "ngame")
    file = copied.folder("encoder", "toy", "ngame") / "made.json"
    made = json.loads(file.read_text())
    file.write_text(json.dumps(made | {"settings": made["settings"] | {"gone": gone}}))
    assert restoration(copied, "toy", "ngame").command is None
    assert "before that" not in "\n".join(advice(copied, "toy", "ngame")), "nothing to install gives it"
    for path in (copied.home("toy") / "ngame").glob("*/made.json"):
        path.unlink()
    assert restoration(copied, "toy", "ngame").command is None, "nothing is recorded"


def test_a_plug_in_that_cannot_be_imported_takes_the_command_alone(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xc doctor names the plug-in, and goes on."""
    lose(copied, "ngame")

    def broken(self: object) -> list[str]:
        raise ConfigError("the plug-in 'bad'", expected="a module", do="fix the package")

    monkeypatch.setattr(type(RECIPES), "names", broken)
    assert undeclared_recipes(copied, "toy") == ["ngame"]
    assert advice(copied, "toy", "ngame")[1:3] == [
        "  to get it back: restore its lines of params.yaml, for instance from git",
        "  before that:    fix the package (the plug-in 'bad'); xc status then shows a command too",
    ]


@pytest.mark.parametrize(
    ("stage", "path", "found"),
    [
        ("encoder", ("loss",), "loss 'theirs'"),
        ("scores", ("parts", "theirs"), "score 'theirs'"),
        ("fusion", ("rule",), "fusion 'theirs'"),
    ],
)
def test_parts_of_a_plug_in_that_is_not_installed_are_named(
    copied: Workspace, stage: str, path: tuple[str, ...], found: str
) -> None:
    """The advice to restore the lines of params.yaml ended at the next error."""
    lose(copied, "ngame")
    file = copied.folder(stage, "toy", "ngame") / "made.json"
    made = json.loads(file.read_text())
    inner = made["settings"]
    for name in path[:-1]:
        inner = inner.get(name, inner)
    inner[path[-1]] = {"kind": "theirs", "strength": 2.0}
    file.write_text(json.dumps(made))
    assert advice(copied, "toy", "ngame")[2] == (
        f"  before that:    install the package that registers the {found} (entry point xc.parts); "
        "xc status then shows a command too"
    )


def test_a_recipe_of_a_plug_in_that_is_not_installed_is_restored_on_another_one(copied: Workspace) -> None:
    lose(copied, "ngame")
    (copied.home("toy") / "ngame").rename(copied.home("toy") / "theirs")
    assert "--recipe theirs --base ngame " in str(restoration(copied, "toy", "theirs").command)


@pytest.mark.parametrize("damage", ["{", "", "gone"])
def test_stages_whose_settings_cannot_be_read_are_named(copied: Workspace, damage: str) -> None:
    """The command had the defaults of these stages, and the line below it called them recorded."""
    lose(copied, "ngame")
    files = [copied.folder(stage, "toy", "ngame") / "made.json" for stage in ("encoder", "classifier")]
    for file in files:
        file.unlink()
        if damage != "gone":
            file.write_text(damage)
    _, command, *words, _ = advice(copied, "toy", "ngame")
    assert command.startswith("  to get it back: xc train --dataset toy --recipe ngame --set clusters.size=4 ")
    assert "encoder." not in command and "classifier." not in command
    assert "\n".join(words) == (
        "  (this has the recorded settings but for encoder and classifier: made.json of those is missing or damaged. If"
        " they\n  differed from those of ngame, add them with --set; stages that are out of date run again)"
    )
    for name in ("encoder", "classifier"):
        (copied.folder(name, "toy", "ngame") / "manifest.json").unlink()
    assert "the recorded settings, and runs only" in advice(copied, "toy", "ngame")[2], "they were not made at all"


def test_settings_that_change_no_artefact_replace_none(copied: Workspace) -> None:
    """An index that nothing searches is recorded too; the warning said that artefacts are out of date."""
    lose(copied, "ngame")
    changes = TOY_CHANGES | {"negatives": {"index": "exact"}}
    experiment = copied.params.declare_experiment("toy", "ngame", "ngame", changes)
    assert experiment.recipe.negatives.k == 0
    assert copied.made("negatives", "toy", "ngame").settings != plain(experiment.recipe.negatives)
    assert replaced(copied, experiment, tuple(STAGES)) is None


def test_artefacts_of_the_dataset_are_none_of_the_experiment(copied: Workspace) -> None:
    lose(copied, "ngame")
    copied.params.declare_dataset("toy", replace(copied.params.dataset("toy").corpus, validation_fraction=0.2))
    experiment = copied.params.declare_experiment("toy", "ngame", "ngame", TOY_CHANGES | {"model": {"max_drop": 3.0}})
    assert states(copied, experiment)["corpus"].status is Status.STALE
    warning = str(replaced(copied, experiment, ("corpus", "tokens")))
    assert "its artefacts in data/toy/ngame are out of date now, and the next training replaces them" in warning
