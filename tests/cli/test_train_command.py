"""``xc train``: what it declares, runs, times and prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from typing import Any

import pytest

from tests.cli.conftest import NGAME, TOY, TOY_SETTINGS, Xc
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.chain.adopt import share
from xc_core.chain.costs import read_costs
from xc_core.chain.experiment import Experiment
from xc_core.chain.runner import Ran
from xc_core.chain.workspace import at_rest, training
from xc_core.errors import BusyError, ConfigError, MissingError
from xc_core.locks import locked
from xc_core.recipes import RECIPES
from xc_core.scores import Frequency

ANY = ("--set", "encoder.encoder.name=bag", "--set", "encoder.epochs=0", "--until", "encoder")
"""Makes the first stages of any recipe quick."""


def test_all_recipes_are_trained_one_after_the_other(xc: Xc, fresh: Workspace) -> None:
    assert xc("train", "--dataset", "toy", "--recipe", "all", *ANY).code == 0
    assert fresh.params.recipes("toy") == RECIPES.names()
    for name in RECIPES.names():
        assert artifacts.read_made(fresh.folder("encoder", "toy", name)).facts["steps"] == 0


def test_one_recipe_that_fails_does_not_keep_the_others_from_being_trained(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(workspace: Workspace, name: str, dataset: str, recipe: str | None = None, *, force: bool = False) -> Any:
        if name == "encoder" and recipe == "dpr":
            raise ConfigError("a broken recipe", expected="one that works", do="fix it")
        return run_stage(workspace, name, dataset, recipe, force=force)

    monkeypatch.setattr(RECIPES, "names", lambda: ["ngame", "dpr", "house", "renee"])
    monkeypatch.setattr("xc_core.cli.train.run_stage", run)
    monkeypatch.setattr("xc_core.cli.train.share", lambda *_: None)  # without a training all encoders are the same
    ended = xc("train", "--dataset", "toy", "--recipe", "all", *ANY)
    assert ended.code == 78
    assert "xc: found recipes that are not trained: dpr (a broken recipe)\n  expected: one that works" in ended.err
    for name in RECIPES.names():
        assert fresh.folder("encoder", "toy", name).is_dir() == (name != "dpr")


@pytest.mark.parametrize(
    ("failing", "options", "shown"),
    [
        ((), (), [False]),
        ((), ("--force",), [True]),
        ((), ("--until", "fusion"), []),
        (("dpr",), ("--until", "evaluation"), [False]),
        (("dpr", "ngame"), (), []),
    ],
)
def test_all_recipes_end_with_the_leaderboard_if_one_was_evaluated(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...], options: tuple[str, ...],
    shown: list[bool],
) -> None:  # fmt: skip
    def train(workspace: Workspace, wanted: Any) -> None:
        if wanted.recipe in failing:
            raise ConfigError("a broken recipe", expected="one that works", do="fix it")

    def run(workspace: Workspace, name: str, dataset: str, *, force: bool = False) -> None:
        ran.extend([force] if name == "leaderboard" else [])

    ran: list[bool] = []
    monkeypatch.setattr(RECIPES, "names", lambda: ["dpr", "ngame"])
    monkeypatch.setattr("xc_core.cli.train._train_one", train)
    monkeypatch.setattr("xc_core.cli.train.run_stage", run)
    monkeypatch.setattr("xc_core.cli.train.show_leaderboard", lambda workspace, dataset: None)
    assert xc("train", *TOY, "--recipe", "all", *options).code == (78 if failing else 0)
    assert ran == shown


def test_all_recipes_end_at_once_if_the_project_is_moved_and_leave_nothing_at_its_old_place(
    xc: Xc, fresh: Workspace, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each recipe failed in turn, and left its locks in a new folder."""
    new, trained = tmp_path_factory.mktemp("elsewhere") / "project", list[str]()

    def train(workspace: Workspace, wanted: Any) -> None:
        trained.append(wanted.recipe)
        fresh.root.rename(new)

    monkeypatch.setattr("xc_core.cli.train._declare_and_run", train)
    ended = xc("train", *TOY, "--recipe", "all", "--until", "tokens")
    assert ended.code == 66 and f"xc: found no folder {fresh.root} any more\n" in ended.err
    assert trained == RECIPES.names()[:1]
    assert not fresh.root.exists()


def test_all_recipes_are_no_variant_of_one(xc: Xc, fresh: Workspace) -> None:
    xc("train", "--dataset", "toy", "--recipe", "v1").refused(78, "recipe 'v1'", "--base KNOWN")
    xc("train", "--dataset", "toy", "--recipe", "all", "--base", "ngame").refused(64, "--recipe all", "drop --base")


@pytest.mark.parametrize(
    ("recipe", "documents", "refit"),
    [
        ("ngame", "train", (False, False)),
        ("ngame", "published", (False, True)),
        ("unidec", "train", (False, False)),
        ("unidec", "published", (True, True)),
    ],
)
def test_recipes_can_be_made_to_learn_from_the_same_documents(
    xc: Xc, fresh: Workspace, recipe: str, documents: str, refit: tuple[bool, bool]
) -> None:
    own = ("--set", "classifier.refit=true", "--until", "corpus", "--learn-from", documents)
    assert xc("train", "--dataset", "toy", "--recipe", "mine", "--base", recipe, *own).code == 0
    found = fresh.params.experiment("toy", "mine").recipe
    assert (found.encoder.refit, found.classifier.refit) == refit


def test_a_fusion_of_the_command_line_decides_what_can_be_learnt_from(xc: Xc, fresh: Workspace) -> None:
    own = ("--set", "fusion.rule=sum", "--until", "corpus", "--learn-from", "published")
    assert xc("train", *NGAME, *own).code == 0
    assert fresh.params.experiment("toy", "ngame").recipe.encoder.refit


def test_a_budget_shortens_the_training_and_stands_in_the_parameters(xc: Xc, fresh: Workspace) -> None:
    quick = ("--set", "encoder.encoder.name=bag", "--until", "encoder")
    assert xc("train", *NGAME, *quick, "--budget", "0.001s").code == 0
    recipe = fresh.params.experiment("toy", "ngame").recipe
    assert 0 < recipe.encoder.epochs < RECIPES["ngame"].encoder.epochs
    assert recipe.encoder.encoder.name == "bag"


def test_with_a_budget_no_stage_is_reported_twice(xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xc_core.planning.budget.scaled_epochs", lambda *given, again: {"encoder": {"epochs": 0.5}})
    asked = (*NGAME, "--set", "encoder.encoder.name=bag", "--until", "encoder", "--budget", "10m")
    for options in ((), ("--force",), ()):
        said = xc("train", *asked, *options).err
        ends = re.findall(r"^(corpus|tokens|encoder): ([\d.]+ s|up to date)$", said, re.MULTILINE)
        assert [stage for stage, _ in ends] == ["corpus", "tokens", "encoder"]
    assert {end for _, end in ends} == {"up to date"}


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ((), 2880.0),
        (("--budget", "10m"), 600.0),
        (("--budget", "none"), None),
        (("--set", "encoder.epochs=1"), None),
        (("--set", "encoder.epochs=1", "--budget", "2h"), 7200.0),
        (("--set", "encoder.optim.lr=0.1"), 2880.0),
        (("--force",), 2880.0),
    ],
)
def test_a_training_has_its_part_of_an_hour_unless_told_otherwise(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], allowed: float | None
) -> None:
    asked: list[float] = []

    def scaled(workspace: Workspace, experiment: Experiment, seconds: float, *, again: bool) -> dict[str, Any]:
        asked.append(seconds)
        assert again == ("--force" in options), "the steps are timed again"
        return {"encoder": {"epochs": 0.25}}

    monkeypatch.setattr("xc_core.planning.budget.scaled_epochs", scaled)
    quick = ("--set", "encoder.encoder.name=bag", "--until", "encoder")
    assert xc("train", *NGAME, *quick, *options).code == 0
    assert asked == ([] if allowed is None else [allowed])
    recipe = fresh.params.experiment("toy", "ngame").recipe
    assert (recipe.encoder.epochs == 0.25) == bool(asked)


@pytest.mark.parametrize(("options", "allowed"), [((), []), (("--budget", "10m"), [600.0])])
def test_a_variant_of_params_yaml_keeps_its_epochs_unless_a_budget_is_given(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], allowed: list[float]
) -> None:
    asked: list[float] = []
    monkeypatch.setattr("xc_core.planning.budget.scaled_epochs", lambda *given, again: asked.append(given[2]) or {})
    fresh.params.declare_experiment("toy", "mine", "ngame", {"encoder": {"encoder": {"name": "bag"}, "epochs": 0.0}})
    assert xc("train", *TOY, "--recipe", "mine", "--until", "encoder", *options).code == 0
    assert asked == allowed


def test_nothing_is_timed_for_stages_before_the_training(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("xc_core.planning.budget.scaled_epochs")
    assert xc("train", *NGAME, "--until", "corpus").code == 0


def test_a_package_that_a_score_needs_is_looked_for_before_the_encoder_is_trained(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    words = ("--set", "encoder.encoder.name=bag", "--set", "scores.lexical=lexical")
    ended = xc("train", *NGAME, *words)
    assert ended.code == 66, ended.err
    assert "no installed package numba" in ended.err
    assert not fresh.folder("encoder", "toy", "ngame").exists()
    assert xc("train", *NGAME, *words, "--until", "encoder").code == 0


def test_train_puts_its_settings_into_params_and_drops_those_of_an_earlier_call(xc: Xc, fresh: Workspace) -> None:
    chosen = ["encoder.epochs=2", "encoder.encoder.name=bag", "scores.label_text=null", "fusion.rule.add=[classifier]"]
    ended = xc("train", *TOY, "--recipe", "mine", "--base", "ngame", "--until", "corpus",
               *(part for setting in chosen for part in ("--set", setting)))  # fmt: skip
    assert ended.code == 0, ended.err
    recipe = fresh.params.experiment("toy", "mine").recipe
    assert (recipe.encoder.epochs, recipe.encoder.encoder.name) == (2.0, "bag")
    assert (tuple(recipe.scores), recipe.fusion.rule.add) == (("classifier", "frequency"), ("classifier",))
    assert xc("train", *TOY, "--recipe", "mine", "--base", "ngame", "--until", "corpus").code == 0
    assert fresh.params.read()["experiments"]["toy_mine"]["stages"] == {}
    assert fresh.folder("corpus", "toy").is_dir()
    assert not fresh.folder("tokens", "toy").exists()


def test_a_variant_is_known_by_its_name_once_it_is_declared(xc: Xc, fresh: Workspace) -> None:
    short = ("--until", "corpus")
    assert xc("train", *TOY, "--recipe", "mine", *short).code == 78, "no recipe, and nothing says what it is"
    assert xc("train", *TOY, "--recipe", "mine", "--base", "dpr", "--set", "encoder.epochs=2", *short).code == 0
    declared = fresh.params.read()["experiments"]["toy_mine"]
    again = xc("train", *TOY, "--recipe", "mine", *short)
    assert again.code == 0, again.err
    assert "mine: as params.yaml has it, a variant of dpr" in again.err
    assert fresh.params.read()["experiments"]["toy_mine"] == declared
    other = xc("train", *TOY, "--recipe", "mine", "--set", "encoder.seed=7", *short)
    assert other.code == 0, other.err
    assert "mine: dropped, set by an earlier call or its budget: encoder.epochs; give them again with" in other.err
    changed = fresh.params.read()["experiments"]["toy_mine"]
    assert changed["base"] == "dpr"
    assert changed["stages"]["encoder"] == {"seed": 7}


def test_settings_that_another_kind_does_not_keep_are_named(xc: Xc, fresh: Workspace) -> None:
    order = ("--set", "classifier.order=random")
    ended = xc("train", *NGAME, *order, "--until", "corpus")
    assert ended.code == 0, ended.err
    named = (
        "ngame: another kind has its own defaults: classifier.order.batch_size 128 instead of 1024; --set keeps a value"
    )
    assert named in ended.err.splitlines()
    ended = xc("train", *NGAME, *order, "--set", "classifier.order.batch_size=1024", "--until", "corpus")
    assert ended.code == 0 and "another kind" not in ended.err


def test_settings_of_a_recipe_that_a_training_drops_are_named(xc: Xc, fresh: Workspace) -> None:
    ended = xc("train", *NGAME, "--set", "encoder.seed=7", "--until", "corpus")
    assert ended.code == 0, ended.err
    dropped = [line for line in ended.err.splitlines() if line.startswith("ngame: dropped, set by an earlier ")]
    assert len(dropped) == 1
    assert "encoder.encoder.name" in dropped[0]
    assert "encoder.seed" not in dropped[0]
    assert "dropped" not in xc("train", *NGAME, "--set", "encoder.seed=8", "--until", "corpus").err


def test_what_a_training_that_ends_earlier_says_is_next_can_be_done(xc: Xc, own: Workspace) -> None:
    ended = xc("train", *NGAME, *TOY_SETTINGS, "--until", "evaluation")
    assert ended.out.splitlines()[-1] == "pack it:     xc run model --dataset toy --recipe ngame"
    assert "xc predict" not in ended.out
    assert xc("run", "model", *NGAME).code == 0


def test_train_again_skips_all_and_shows_table_and_next_steps(xc: Xc, own: Workspace) -> None:
    ended = xc("train", *NGAME, *TOY_SETTINGS)
    assert ended.code == 0, ended.err
    skipped = [line for line in ended.err.splitlines() if line.endswith(": up to date")]
    assert skipped == [f"{name}: up to date" for name in STAGES if name != "leaderboard"]
    assert ended.out.splitlines()[0] == "toy / ngame: 40 test documents"
    assert ended.out.splitlines()[-2:] == [
        'ask it:      xc predict --dataset toy --recipe ngame "some text"',
        "release it:  xc promote --dataset toy --recipe ngame",
    ]


@pytest.mark.parametrize("until", ["classifier", "scores", "fusion"])
def test_a_score_that_cannot_be_fitted_is_reported_before_anything_is_trained(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    def absent(score: Any) -> None:
        raise MissingError("no installed package abacus", expected="it", do="install it")

    ran: list[str] = []
    done = Ran(fresh.root, True, 0.0, {}, {})
    monkeypatch.setattr(Frequency, "check", absent)
    monkeypatch.setattr("xc_core.cli.train.run_stage", lambda workspace, name, *_, **__: ran.append(name) or done)
    ended = xc("train", *NGAME, "--until", until, "--budget", "none")
    if until == "classifier":
        assert (ended.code, ran[-1]) == (0, "classifier")
    else:
        ended.refused(66, "no installed package abacus", "install it")
        assert ran == []


def test_a_package_of_the_fusion_is_looked_for_only_if_a_fusion_is_fitted(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    done = Ran(fresh.root, True, 0.0, {}, {})
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    monkeypatch.setattr("xc_core.cli.train.run_stage", lambda workspace, name, *_, **__: ran.append(name) or done)
    trees = ("train", *NGAME, "--set", "fusion.rule=lightgbm", "--budget", "none", "--until")
    ended = xc(*trees, "fusion")
    assert (ended.code, ran) == (66, [])
    assert "no installed package lightgbm" in ended.err
    assert xc(*trees, "scores").code == 0
    assert ran[-1] == "scores"


@pytest.mark.parametrize("force", [True, False])
def test_force_makes_every_stage_again(xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    asked: dict[str, bool] = {}
    done = Ran(fresh.root, True, 0.0, {}, {})

    def run(workspace: Workspace, name: str, dataset: str, recipe: str | None = None, *, force: bool = False) -> Ran:
        asked[name] = force
        return done

    monkeypatch.setattr("xc_core.cli.train.run_stage", run)
    options = ("--force",) if force else ()
    assert xc("train", *NGAME, "--until", "fusion", "--budget", "none", *options).code == 0
    assert list(asked) == list(STAGES)[: list(STAGES).index("fusion") + 1]
    assert set(asked.values()) == {force}


def test_what_another_experiment_has_made_is_used(xc: Xc, fresh: Workspace) -> None:
    assert xc("train", *NGAME, *TOY_SETTINGS, "--until", "scores").code == 0
    for record in (fresh.state / "cost").iterdir():  # two runs of a stage may take the same milliseconds
        record.write_text(json.dumps({**json.loads(record.read_text("utf-8")), "of_ngame": 1.0}), "utf-8")
    mine = ("train", *TOY, "--recipe", "mine", "--base", "ngame", *TOY_SETTINGS, "--set", "classifier.epochs=2")
    stopped = fresh.scratch("run", "encoder", "toy", "mine")
    stopped.mkdir(parents=True)
    ended = xc(*mine, "--until", "scores")
    assert ended.code == 0
    assert not stopped.exists(), "the checkpoints of a training that was stopped are of no use"
    told = [line for line in ended.err.splitlines() if "has the same" in line]
    shared = ("encoder", "embeddings", "clusters", "negatives")
    assert told == [f"{name}: ngame has the same, which is used" for name in shared]
    for stage in ("encoder", "embeddings", "clusters", "negatives", "classifier", "scores"):
        own, other = (fresh.folder(stage, "toy", recipe) / "manifest.json" for recipe in ("mine", "ngame"))
        assert own.samefile(other) == (stage in shared), stage
        costs = [read_costs(fresh, stage, "toy", recipe) for recipe in ("mine", "ngame")]
        assert costs[0]
        assert costs[1]["of_ngame"]
        assert (costs[0] == costs[1]) == (stage in shared), stage
    assert "has the same" not in xc(*mine, "--until", "scores").err, "it is up to date"
    shutil.rmtree(fresh.folder("encoder", "toy", "mine"))
    assert "has the same" not in xc(*mine, "--until", "encoder", "--force").err
    assert not (fresh.folder("encoder", "toy", "mine") / "manifest.json").samefile(
        fresh.folder("encoder", "toy", "ngame") / "manifest.json"
    )


def test_a_damaged_artefact_of_another_experiment_is_not_used(xc: Xc, fresh: Workspace) -> None:
    assert xc("train", *NGAME, *TOY_SETTINGS, "--until", "encoder").code == 0
    (fresh.folder("encoder", "toy", "ngame") / "encoder.safetensors").write_bytes(b"short")
    ended = xc("train", *TOY, "--recipe", "mine", "--base", "ngame", *TOY_SETTINGS, "--until", "encoder")
    assert (ended.code, "has the same" in ended.err) == (0, False)
    artifacts.verify(fresh.folder("encoder", "toy", "mine"), kind="encoder")


def test_nothing_is_taken_over_while_rows_are_removed(own: Workspace) -> None:
    """A link to an artefact that is being deleted would keep what was learnt from the rows."""
    declared = own.params.declared("toy", "ngame")
    assert declared is not None
    own.params.declare_experiment("toy", "mine", *declared)
    with at_rest(own, "toy"), pytest.raises(BusyError, match="a removal from the dataset toy"):
        share(own, "encoder", "toy", "mine")
    assert share(own, "encoder", "toy", "mine") == "ngame"


def test_a_training_that_runs_keeps_its_settings(xc: Xc, fresh: Workspace) -> None:
    """A second command changed them before it was refused, so the result of the first one was discarded at its end."""
    before, command = fresh.params.path.read_bytes(), ("train", *NGAME, "--set", "encoder.epochs=9")
    with locked(fresh.scratch("lock", "encoder", "toy", "ngame"), "encoder"):
        xc(*command).refused(75, f"encoder of toy/ngame, which process {os.getpid()} is running")
    with training(fresh, "toy", "ngame"):
        xc(*command).refused(75, f"a training of toy/ngame, which process {os.getpid()} is running")
    assert fresh.params.path.read_bytes() == before
