"""The command line: what each command says and does, the exit code of each failure, and that each failure helps."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended, Xc, entry, offered
from tests.conftest import TOPICS, TOY_CHANGES, ToyWorld
from xc_core import artifacts
from xc_core.cli.doctor import Finding
from xc_core.cli.ingest import ingest as ingest_command
from xc_core.data.ingest import IngestConfig
from xc_core.errors import ConfigError, XCError
from xc_core.recipes import RECIPES
from xc_core.stages import STAGES, Experiment, Workspace, run_stage

COMMANDS = (
    "ingest", "run", "train", "evaluate", "predict", "leaderboard", "compare", "promote", "rollback", "ui", "doctor",
    "demo",
)  # fmt: skip
TOY = ("--dataset", "toy")
NGAME = (*TOY, "--recipe", "ngame")


def settings_of(changes: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield nested changes as what --set takes."""
    for name, value in changes.items():
        if isinstance(value, dict):
            yield from settings_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={value}"


TOY_SETTINGS = [part for setting in settings_of(TOY_CHANGES) for part in ("--set", setting)]


# help


def test_help_lists_every_command_once_with_a_sentence(xc: Xc) -> None:
    ended = xc("--help")
    assert ended.code == 0
    listed = re.findall(r"^  ([a-z]+)  +([A-Z].+\.)$", ended.out, re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_of_its_own(xc: Xc, command: str) -> None:
    ended = xc(command, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: xc {command}")
    assert re.search(r"^  [A-Z].+", ended.out, re.MULTILINE), "a sentence that says what it does"


def test_the_exit_codes_of_the_help_are_those_of_the_errors(xc: Xc) -> None:
    text = xc("--help").out.split("Exit codes:")[1]
    listed = sorted(map(int, re.findall(r"\b\d+\b", text)))
    kinds = [kind for kind in (XCError, *XCError.__subclasses__()) if kind.__module__ == "xc_core.errors"]
    assert listed == sorted([0, 2, 130, 141, *(kind.exit_code for kind in kinds)])


@pytest.mark.parametrize("kind", [XCError, *XCError.__subclasses__()])
def test_an_error_of_any_kind_ends_with_its_code(xc: Xc, kind: type[XCError], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise kind("a", expected="b", do="c", where="here")

    monkeypatch.setattr(Workspace, "find", classmethod(lambda cls: fail()))
    xc("leaderboard", *TOY).refused(kind.exit_code, "here: found a", "c")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RuntimeError("odd"), 70, "RuntimeError: odd\n  a fault of xc; `xc --debug ...` shows where; please report it"),
        (OSError(28, "No space left on device"), 73, "found a full disk"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_nobody_gave_words_to_has_a_code_too(
    xc: Xc, error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(Workspace, "find", classmethod(lambda cls: fail()))
    ended = xc("leaderboard", *TOY)
    assert ended.code == code
    assert said in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "module",
    [f"xc_core.cli.{name}" for name in ("chain", "compare", "doctor", "ingest", "predict")] + ["assets.commands"],
)
def test_help_and_wrong_names_do_not_wait_for_torch(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'faiss', 'mlflow', 'sklearn') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stdout == "[]\n", told.stderr


@pytest.mark.parametrize(
    ("wrong", "near"), [("trian", "train"), ("predit", "predict"), ("leaderbord", "leaderboard"), ("Doctor", "doctor")]
)
def test_an_unknown_command_names_the_nearest(xc: Xc, wrong: str, near: str) -> None:
    ended = xc(wrong)
    assert ended.code == 2
    assert f"no command {wrong!r} (nearest: {near!r})" in ended.err


def test_commands_of_other_packages_join_the_one_table(xc: Xc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without such packages the library's own commands are all there is."""
    offered(monkeypatch, "xc.commands")
    listed = re.findall(r"^  ([a-z]+)  +[A-Z].+\.$", xc("--help").out, re.MULTILINE)
    assert set(COMMANDS) - set(listed) == {"promote", "rollback", "ui", "demo"}


# names and settings that cannot be


@pytest.mark.parametrize(
    ("arguments", "code", "found", "do"),
    [
        (["run", "corpus", "--dataset", "toyy"], 66, "no dataset 'toyy' in params.yaml (nearest: 'toy')", "xc ingest"),
        (["leaderboard", "--dataset", "tay"], 66, "(nearest: 'toy')", "xc ingest PATH --dataset tay"),
        (["predict", "--dataset", "tyo", "a"], 66, "(nearest: 'toy')", "xc ingest"),
        (["evaluate", *TOY, "--recipe", "ngme"], 66, "no experiment 'toy_ngme' in params.yaml (nearest: 'toy_ngame')",
         "xc train --dataset toy --recipe ngme"),
        (["predict", *TOY, "--recipe", "ngme", "a"], 66, "(nearest: 'toy_ngame')", "xc train"),
        (["train", *TOY, "--recipe", "ngme"], 78, "recipe 'ngme' (nearest: 'ngame')", ""),
        (["train", *TOY, "--recipe", "mine", "--base", "ngam"], 78, "recipe 'ngam' (nearest: 'ngame')", ""),
        (["train", "--dataset", "toyy"], 66, "no dataset 'toyy' in params.yaml (nearest: 'toy')", "xc ingest"),
        (["train", *TOY, "--recipe", "../x"], 64, "the recipe name '../x'", "another name"),
        (["run", "encoder", *TOY, "--recipe", "a/b"], 64, "the recipe name 'a/b'", "another name"),
        (["run", "encoder", *TOY, "--recipe", "encoder"], 64, "the recipe name 'encoder'", "another name"),
        (["run", "corpus", "--dataset", ".."], 64, "the dataset name '..'", "another name"),
        (["run", "encodr", *NGAME], 64, "stage 'encodr' (nearest: 'encoder')", "mend the name"),
        (["run", "", *TOY], 64, "stage ''", "mend the name"),
        (["train", *TOY, "--until", "fusoin"], 64, "stage 'fusoin' (nearest: 'fusion')", "mend the name"),
        (["train", *TOY, "--until", "leaderboard"], 64, "stage 'leaderboard'", "mend the name"),
        (["run", "encoder", *TOY], 64, "no recipe for encoder", "name the recipe"),
        (["run", "index", *NGAME, "--refresh"], 64, "--refresh for index", "leave it out"),
        (["run", "tokens", *TOY], 66, "no artefact at", "make it first: xc run corpus --dataset toy"),
        (["run", "fusion", *NGAME], 66, "no artefact at", "xc run corpus --dataset toy"),
        (["predict", *NGAME, "a"], 66, "no packed model at", "xc train --dataset toy --recipe ngame"),
        (["predict", "a"], 64, "neither --dataset nor --bundle", "name the dataset"),
        (["predict", *TOY, "--bundle", "x", "a"], 64, "--bundle with --dataset or --recipe", "drop the other"),
        (["predict", "--bundle", "nowhere", "a"], 66, "no artefact at nowhere", ""),
    ],
)  # fmt: skip
def test_a_wrong_name_is_refused_and_the_nearest_named(
    xc: Xc, fresh: Workspace, arguments: list[str], code: int, found: str, do: str
) -> None:
    before = (fresh.root / "params.yaml").read_bytes()
    xc(*arguments).refused(code, found, do)
    assert (fresh.root / "params.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("setting", "code", "found"),
    [
        ("encoder.epochs", 64, "--set encoder.epochs"),
        ("epochs=3", 64, "--set epochs=3"),
        (".epochs=3", 64, "--set .epochs=3"),
        ("encoder..epochs=3", 64, "--set encoder..epochs=3"),
        ("encoder.epochs=[1", 64, "--set encoder.epochs=[1"),
        ("encodr.epochs=3", 78, "ngame.encodr (nearest: 'encoder')"),
        ("encoder.epoch=3", 78, "ngame.encoder.epoch (nearest: 'epochs')"),
        ("encoder.order.batchsize=3", 78, "ngame.encoder.order.batchsize (nearest: 'batch_size')"),
        ("encoder.epochs=many", 78, "ngame.encoder.epochs = 'many'"),
        ("encoder.epochs=-1", 78, "epochs -1"),
        ("encoder.epochs=.nan", 78, "ngame.encoder.epochs = nan"),
        ("encoder.order=5", 78, "ngame.encoder.order = 5"),
        ("fusion.kind=forest", 78, "fusion 'forest'"),
        ("index.rows.kind=hsnw", 78, "(nearest: 'hnsw')"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_anything_runs(
    xc: Xc, fresh: Workspace, setting: str, code: int, found: str
) -> None:
    before = (fresh.root / "params.yaml").read_bytes()
    xc("train", *NGAME, "--set", setting).refused(code, found)
    assert (fresh.root / "params.yaml").read_bytes() == before
    assert not fresh.folder("corpus", "toy").exists()


def test_two_settings_that_exclude_each_other_are_refused(xc: Xc, fresh: Workspace) -> None:
    ended = xc("train", *NGAME, "--set", "encoder.epochs=1", "--set", "encoder.epochs.x=2")
    ended.refused(64, "--set encoder.epochs.x=2", "drop one of the two")


ANY = ("--set", "encoder.encoder.name=bag", "--set", "encoder.epochs=0", "--until", "encoder")
"""What makes the first stages of any recipe quick."""


def test_all_recipes_are_trained_one_after_the_other(xc: Xc, fresh: Workspace) -> None:
    assert xc("train", "--dataset", "toy", "--recipe", "all", *ANY).code == 0
    assert [recipe for _, recipe in fresh.experiments("toy")] == RECIPES.names()
    for name in RECIPES.names():
        assert artifacts.verify(fresh.folder("encoder", "toy", name), kind="encoder").facts["steps"] == 0


def test_one_recipe_that_fails_does_not_keep_the_others_from_being_trained(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(workspace: Workspace, name: str, dataset: str, recipe: str | None = None, *, force: bool = False) -> Any:
        if name == "encoder" and recipe == "dpr":
            raise ConfigError("a broken recipe", expected="one that works", do="mend it")
        return run_stage(workspace, name, dataset, recipe, force=force)

    monkeypatch.setattr("xc_core.cli.chain.run_stage", run)
    ended = xc("train", "--dataset", "toy", "--recipe", "all", *ANY)
    assert ended.code == 78
    assert "xc: found recipes that are not trained: dpr (a broken recipe)\n  expected: one that works" in ended.err
    for name in RECIPES.names():
        assert fresh.folder("encoder", "toy", name).is_dir() == (name != "dpr")


def test_all_recipes_are_no_variant_of_one(xc: Xc, fresh: Workspace) -> None:
    xc("train", "--dataset", "toy", "--recipe", "v1").refused(78, "recipe 'v1'", "--base KNOWN")
    xc("train", "--dataset", "toy", "--recipe", "all", "--base", "ngame").refused(64, "--recipe all", "drop --base")


def test_a_budget_that_is_no_duration_is_refused_before_anything_runs(xc: Xc, fresh: Workspace) -> None:
    before = (fresh.root / "params.yaml").read_bytes()
    xc("train", *NGAME, "--budget", "ten minutes").refused(64, "--budget ten minutes")
    assert (fresh.root / "params.yaml").read_bytes() == before


def test_a_budget_shortens_the_training_and_stands_in_the_parameters(xc: Xc, fresh: Workspace) -> None:
    quick = ("--set", "encoder.encoder.name=bag", "--until", "encoder")
    assert xc("train", *NGAME, *quick, "--budget", "0.001s").code == 0
    recipe = fresh.experiment("toy", "ngame").recipe
    assert recipe is not None
    assert 0 < recipe.encoder.epochs < RECIPES["ngame"].encoder.epochs
    assert recipe.encoder.encoder.name == "bag"


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ((), 2880.0),
        (("--budget", "10m"), 600.0),
        (("--budget", "none"), None),
        (("--set", "encoder.epochs=1"), None),
        (("--set", "encoder.epochs=1", "--budget", "2h"), 7200.0),
        (("--set", "encoder.optim.lr=0.1"), 2880.0),
    ],
)
def test_a_training_has_its_part_of_an_hour_unless_told_otherwise(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], allowed: float | None
) -> None:
    asked: list[float] = []

    def scaled(workspace: Workspace, experiment: Experiment, seconds: float, *, anew: bool) -> dict[str, Any]:
        asked.append(seconds)
        return {"encoder": {"epochs": 0.25}}

    monkeypatch.setattr("xc_core.stages.budget.scaled_epochs", scaled)
    quick = ("--set", "encoder.encoder.name=bag", "--until", "encoder")
    assert xc("train", *NGAME, *quick, *options).code == 0
    assert asked == ([] if allowed is None else [allowed])
    recipe = fresh.experiment("toy", "ngame").recipe
    assert recipe is not None
    assert (recipe.encoder.epochs == 0.25) == bool(asked)


def test_nothing_is_timed_for_stages_before_the_training(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("xc_core.stages.budget.scaled_epochs")
    assert xc("train", *NGAME, "--until", "corpus").code == 0


def test_a_package_that_the_classifier_needs_is_asked_for_before_the_encoder_is_trained(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "omikuji", None)
    words = ("--set", "encoder.encoder.name=bag", "--set", "classifier.lexical.use=true")
    told = xc("train", *NGAME, *words)
    assert told.code == 66, told.err
    assert "no installed package omikuji" in told.err
    assert not fresh.folder("encoder", "toy", "ngame").exists()
    assert xc("train", *NGAME, *words, "--until", "encoder").code == 0


def test_compare_prints_paired_differences_of_recipes_and_scores(xc: Xc, ready: Workspace) -> None:
    same = xc("compare", *TOY, "ngame", "ngame:fusion")
    assert same.code == 0, same.err
    assert "P@1        +0.00   [+0.00, +0.00]   not clear" in same.out
    other = xc("compare", *TOY, "ngame", "ngame:label_text").out.splitlines()
    assert other[0] == "toy: ngame minus ngame:label_text, points of percent"
    assert [line.split()[0] for line in other[1:]] == [
        "P@1", "P@3", "P@5", "nDCG@1", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10",
    ]  # fmt: skip
    xc("compare", *TOY, "ngame", "ngame:classifer").refused(64, "nearest: 'classifier'", "mend the name")
    xc("compare", *TOY, "ngame", "npr").refused(66, "no evaluation of 'npr' on toy", "xc train --dataset toy")
    xc("compare", "--dataset", "tay", "ngame", "ngame").refused(66, "no dataset 'tay' in params.yaml (nearest: 'toy')")


def test_compare_refuses_figures_of_documents_that_were_replaced(xc: Xc, own: Workspace) -> None:
    ToyWorld.make(documents=200).write(own.raw("toy"))
    run_stage(own, "corpus", "toy")
    xc("compare", *TOY, "ngame", "ngame:classifier").refused(76, "on another corpus", "xc train --dataset toy")


# ingest


def ingest(xc: Xc, folder: Path, name: str = "new", *more: str) -> Ended:
    return xc("ingest", folder, "--dataset", name, *more)


def test_ingest_makes_a_dataset_and_says_what_is_next(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    source = ToyWorld.make(documents=60, tests=10).write(tmp_path / "drop")
    ended = ingest(xc, source)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        "new: 54 train, 6 validation, 10 test documents, 10 labels",
        "next: xc train --dataset new --recipe ngame",
    ]
    assert fresh.datasets() == ["new", "toy"]
    assert artifacts.verify(fresh.folder("corpus", "new"), kind="corpus").facts["rows"]["train"] == 54
    again = xc("run", "corpus", "--dataset", "new")
    assert again.out == f"corpus: up to date, {fresh.folder('corpus', 'new')}\n"


def test_ingest_says_that_test_texts_stand_in_train(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    world = ToyWorld.make(documents=60, tests=10)
    for known, test in zip(world.train[:3], world.test[:3], strict=True):
        test["title"], test["content"] = known["title"], known["content"]
    source = world.write(tmp_path / "drop")
    assert "3 of 10 test texts (30%) stand in train word for word" in ingest(xc, source).err
    assert "stand in train" not in ingest(xc, source, "allowed", "--allow", "shared-texts").err
    assert "stand in train" not in ingest(xc, ToyWorld.make(60, 10).write(tmp_path / "clean"), "clean").err


def test_ingest_says_that_labels_look_like_lists(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    rows = [f"text {i},a{i % 3}|b{i % 2}" for i in range(60)]
    (tmp_path / "drop").mkdir()
    (tmp_path / "drop" / "train.csv").write_text("\n".join(["text,labels", *rows]) + "\n", "utf-8")
    told = ingest(xc, tmp_path / "drop").err
    assert "most labels hold '|', for instance 'a0|b0'" in told
    assert "--label-separator '|'" in told
    right = ingest(xc, tmp_path / "drop", "right", "--label-separator", "|")
    assert "most labels" not in right.err
    assert "5 labels" in right.out


@pytest.mark.parametrize("name", ["../x", "a/b", "UPPER", "", ".", "raw", "corpus", "a..b", "-x", "x" * 65, "ü"])
def test_ingest_refuses_a_name_that_is_no_name(xc: Xc, fresh: Workspace, name: str) -> None:
    before = sorted(fresh.root.rglob("*"))
    ingest(xc, fresh.raw("toy"), name).refused(64, f"the dataset name {name!r}", "choose another name")
    assert sorted(fresh.root.rglob("*")) == before


def test_ingest_leaves_a_dataset_of_that_name_alone_unless_told(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    source = ToyWorld.make(documents=60, tests=10).write(tmp_path / "drop")
    ingest(xc, source, "toy").refused(64, "a dataset 'toy' at", "--replace")
    assert ingest(xc, source, "toy", "--replace").code == 0
    assert artifacts.read_manifest(fresh.folder("corpus", "toy")).facts["rows"]["test"] == 10


def test_ingest_names_file_and_line_and_writes_nothing(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    world = ToyWorld.make(documents=60, tests=10)
    world.train[6] |= {"target_ind": [99], "target_rel": [1.0]}
    source = world.write(tmp_path / "drop")
    before = {p: p.read_bytes() for p in fresh.data.rglob("*") if p.is_file()}
    ended = ingest(xc, source)
    ended.refused(65, "99")
    assert ended.err.startswith("xc: trn.json.gz, line 7: found ")
    assert {p: p.read_bytes() for p in fresh.data.rglob("*") if p.is_file()} == before
    assert fresh.datasets() == ["toy"]


@pytest.mark.parametrize(
    ("make", "code", "found"),
    [
        (lambda path: None, 66, "no folder"),
        (lambda path: path.mkdir(), 66, "no known layout"),
        (lambda path: path.write_text("a"), 66, "a file"),
    ],
)
def test_ingest_refuses_what_is_no_dataset(
    xc: Xc, fresh: Workspace, tmp_path: Path, make: Any, code: int, found: str
) -> None:
    make(tmp_path / "drop")
    ingest(xc, tmp_path / "drop").refused(code, found)


def test_every_setting_of_an_ingest_has_an_option_with_its_default(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    """Else a dataset with that setting could not be taken in again from its inbox."""
    options = {option.name: option for option in ingest_command.params}
    default = IngestConfig()
    assert {f.name for f in fields(IngestConfig)} <= set(options)
    assert ingest(xc, ToyWorld.make(documents=60, tests=10).write(tmp_path / "drop")).code == 0
    assert fresh.experiment("new", None).corpus == default
    assert fresh.params()["datasets"]["new"]["corpus"] == {}
    changes = {"validation_fraction": 0.3, "filters": "none", "propensity": "amazon", "allow": ("clean-text",),
               "max_line_bytes": 9999, "label_separator": "#", "test_fraction": 0.4, "layout": "xc-json"}  # fmt: skip
    assert set(changes) == {f.name for f in fields(IngestConfig)}
    plain = {name: value[0] if isinstance(value, tuple) else value for name, value in changes.items()}
    settings = [part for name, value in plain.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert ingest(xc, tmp_path / "drop", "new", "--replace", *settings).code == 0
    assert fresh.experiment("new", None).corpus == IngestConfig(**changes)


# run, train, evaluate, leaderboard


def test_run_says_what_it_did_and_that_all_is_up_to_date(xc: Xc, fresh: Workspace) -> None:
    folder = fresh.folder("corpus", "toy")
    said = [xc("run", "corpus", *TOY, *more).out for more in ([], [], ["--force"])]
    assert [re.sub(r"\d+\.\d s", "S", line) for line in said] == [
        f"corpus: done in S, {folder}\n", f"corpus: up to date, {folder}\n", f"corpus: done in S, {folder}\n",
    ]  # fmt: skip


def test_a_second_run_of_the_same_stage_is_refused(xc: Xc, fresh: Workspace) -> None:
    with artifacts.locked(fresh.scratch("lock", STAGES["corpus"], "toy", None), "corpus of toy"):
        xc("run", "corpus", *TOY).refused(75, "corpus of toy being run by process", "wait for it to end")
    assert xc("run", "corpus", *TOY).code == 0


def test_train_puts_its_settings_into_params_and_drops_those_of_an_earlier_call(xc: Xc, fresh: Workspace) -> None:
    chosen = ["encoder.epochs=2", "encoder.encoder.name=bag", "index.texts=false", "fusion.add=[classifier]"]
    ended = xc("train", *TOY, "--recipe", "mine", "--base", "ngame", "--until", "corpus",
               *(part for setting in chosen for part in ("--set", setting)))  # fmt: skip
    assert ended.code == 0, ended.err
    recipe = fresh.experiment("toy", "mine").recipe
    assert recipe is not None
    assert (recipe.encoder.epochs, recipe.encoder.encoder.name, recipe.index.texts) == (2.0, "bag", False)
    assert recipe.fusion.add == ("classifier",)
    assert xc("train", *TOY, "--recipe", "mine", "--base", "ngame", "--until", "corpus").code == 0
    assert fresh.params()["experiments"]["toy_mine"]["stages"]["encoder"] == {}
    assert fresh.folder("corpus", "toy").is_dir()
    assert not fresh.folder("tokens", "toy").exists()


def test_a_variant_is_known_by_its_name_once_it_is_declared(xc: Xc, fresh: Workspace) -> None:
    short = ("--until", "corpus")
    assert xc("train", *TOY, "--recipe", "mine", *short).code == 78, "no recipe, and nothing says what it is"
    assert xc("train", *TOY, "--recipe", "mine", "--base", "dpr", "--set", "encoder.epochs=2", *short).code == 0
    declared = fresh.params()["experiments"]["toy_mine"]
    again = xc("train", *TOY, "--recipe", "mine", *short)
    assert again.code == 0, again.err
    assert "mine: as params.yaml has it, a variant of dpr" in again.err
    assert fresh.params()["experiments"]["toy_mine"] == declared
    assert xc("train", *TOY, "--recipe", "mine", "--set", "encoder.seed=7", *short).code == 0
    changed = fresh.params()["experiments"]["toy_mine"]
    assert changed["base"] == "dpr"
    assert changed["stages"]["encoder"] == {"seed": 7}


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


def test_evaluate_prints_the_metrics_of_every_score(xc: Xc, ready: Workspace) -> None:
    metrics = json.loads((ready.folder("evaluation", "toy", "ngame") / "metrics.json").read_text())
    lines = xc("evaluate", *NGAME).out.splitlines()
    assert lines[1].split() == ["P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10"]
    rows = {line[:12].strip(): line[12:].split() for line in lines[2:]}
    assert set(rows) == {"label_text", "classifier", "sum", "fusion", "95 % from", "to"}
    assert rows["fusion"][0] == f"{metrics['P_at_1']:.2f}"
    assert rows["fusion"][6] == f"{metrics['PSP_at_5']:.2f}"


def test_leaderboard_prints_one_row_a_recipe(xc: Xc, ready: Workspace) -> None:
    ended = xc("leaderboard", *TOY)
    assert ended.code == 0, ended.err
    table = [line for line in ended.out.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in table[0].split("|")[1:4]] == ["recipe", "P@1", "P@3"]
    assert [row.split("|")[1].strip() for row in table[2:]] == ["ngame"]


# predict


def test_predict_prints_each_text_with_its_labels(xc: Xc, ready: Workspace) -> None:
    ended = xc("predict", *NGAME, "-k", "2", "falcon", "castle0 castle1")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert [lines[0], lines[3]] == ["falcon", "castle0 castle1"]
    assert re.fullmatch(r"  +-?\d+\.\d{3}  falcon  \[L5\]", lines[1])
    assert re.fullmatch(r"  +-?\d+\.\d{3}  castle  \[L1\]", lines[4])
    assert len(lines) == 6


def test_a_model_that_was_packed_before_the_last_evaluation_answers_with_a_note(xc: Xc, own: Workspace) -> None:
    assert xc("predict", *NGAME, "falcon").err == ""
    other = [*TOY_SETTINGS, "--set", "fusion.depth=2"]
    assert xc("train", *NGAME, *other, "--until", "evaluation").code == 0
    ended = xc("predict", *NGAME, "falcon")
    assert ended.code == 0
    assert ended.err.startswith("note: this model was packed from other artefacts than there are now")
    assert xc("run", "model", *NGAME).code == 0
    assert xc("predict", *NGAME, "falcon").err == ""
    shutil.rmtree(own.folder("fusion", "toy", "ngame"))
    assert xc("predict", *NGAME, "falcon").err == "", "a machine that serves need not have the rest"


def test_predict_prints_json_that_has_the_same_labels(xc: Xc, ready: Workspace) -> None:
    ended = xc("predict", *NGAME, "--json", "-k", "3", *TOPICS)
    answers = [json.loads(line) for line in ended.out.splitlines()]
    assert [answer[0]["title"] for answer in answers] == list(TOPICS)
    assert all(set(label) == {"label", "uid", "title", "score"} for answer in answers for label in answer)
    assert [len(answer) for answer in answers] == [3] * len(TOPICS)


def test_no_answer_has_a_minus_before_zero(xc: Xc, ready: Workspace) -> None:
    assert "-0.000" not in xc("predict", *NGAME, "").out


@pytest.mark.parametrize("stdin", ["falcon\ncastle\n", "falcon\r\ncastle", "falcon\ncastle"])
def test_predict_reads_lines_of_the_standard_input(xc: Xc, ready: Workspace, stdin: str) -> None:
    ended = xc("predict", *NGAME, "--json", stdin=stdin.encode())
    assert [json.loads(line)[0]["title"] for line in ended.out.splitlines()] == ["falcon", "castle"]


def test_predict_asks_any_bundle(xc: Xc, ready: Workspace) -> None:
    ended = xc("predict", "--bundle", ready.folder("model", "toy", "ngame"), "--json", "falcon")
    assert json.loads(ended.out)[0]["title"] == "falcon"


def test_predict_asks_the_champion_where_no_recipe_is_named(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ready.folder("model", "toy", "ngame")
    offered(monkeypatch, "xc.champions", entry("none", lambda *_: None),
            entry("one", lambda workspace, dataset: folder if dataset == "toy" else None))  # fmt: skip
    assert json.loads(xc("predict", *TOY, "--json", "falcon").out)[0]["title"] == "falcon"


def test_predict_says_that_there_is_no_champion(xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.champions", entry("none", lambda *_: None))
    xc("predict", *TOY, "falcon").refused(66, "no champion of toy", "xc promote --dataset toy")


@pytest.mark.parametrize(
    ("arguments", "stdin", "found"),
    [
        (["-k", "0", "a"], b"", "k 0"),
        (["-k", "-3", "a"], b"", "k -3"),
        ([], b"", "no text"),
        ([], b"ok\nf\xfcr\n", "bytes that are no UTF-8 in line 2 of the standard input"),
        (["ab\udcff"], b"", "half a character (U+DCFF) at place 2 of text 0"),
    ],
)
def test_predict_refuses_what_it_cannot_answer(
    xc: Xc, ready: Workspace, arguments: list[str], stdin: bytes, found: str
) -> None:
    ended = xc("predict", *NGAME, *arguments, stdin=stdin)
    ended.refused(64, found)
    assert not ended.out


def test_predict_refuses_a_spoilt_model(xc: Xc, own: Workspace) -> None:
    spoil(own)
    ended = xc("predict", *NGAME, "falcon")
    ended.refused(74, "vectors.safetensors with another content than was written", "xc run model --force")


# doctor


def spoil(workspace: Workspace) -> Path:
    path = workspace.folder("model", "toy", "ngame") / "vectors.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


def test_doctor_finds_a_healthy_project_well(xc: Xc, own: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.checks", entry("other", lambda: iter([Finding("ok", "other is fine")])))
    ended = xc("doctor")
    assert ended.code == 0, ended.out
    assert "   ok  params.yaml: 1 datasets, 1 experiments" in ended.out
    assert f"   ok  {len(STAGES)} artefacts whole" in ended.out
    assert "   ok  other is fine" in ended.out
    assert ended.out.splitlines()[-1] == "all well"


@pytest.mark.parametrize("fault", ["content", "missing file", "manifest"])
def test_doctor_finds_a_broken_artefact(xc: Xc, own: Workspace, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    offered(monkeypatch, "xc.checks")
    path = spoil(own)
    if fault == "missing file":
        path.unlink()
    elif fault == "manifest":
        path.with_name("manifest.json").write_text("{")
    ended = xc("doctor")
    assert ended.code == 78
    (line,) = [line for line in ended.out.splitlines() if line.startswith("fault")]
    assert str(path if fault != "manifest" else path.with_name("manifest.json")) in line
    assert "do this:  make it anew: xc run model --force" in ended.out
    assert f"{len(STAGES) - 1} artefacts whole" in ended.out
    assert ended.out.splitlines()[-1] == "1 fault"


def test_doctor_finds_wrong_parameters_and_checks_that_cannot_run(
    xc: Xc, own: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, "xc.checks", entry("broken", lambda: 1 / 0))
    params = (own.root / "params.yaml").read_text()
    (own.root / "params.yaml").write_text(params.replace("epochs: 6.0", "epoch: 6.0"))
    ended = xc("doctor")
    assert ended.code == 78
    assert "fault  found ngame.classifier.epoch (nearest: 'epochs')" in ended.out
    assert "fault  a check that cannot run (ZeroDivisionError: division by zero)" in ended.out
    assert ended.out.splitlines()[-1] == "2 faults"


def test_doctor_compares_versions_with_the_pins(xc: Xc, own: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.checks")
    (own.root / "constraints.txt").write_text("# pins\nnumpy==0.1\nnot-installed-here==1.0\n")
    said = xc("doctor").out
    assert re.search(r"^ note  versions differ from constraints.txt: numpy \S+ instead of 0\.1$", said, re.MULTILINE)


def test_doctor_outside_a_project_says_so_once(xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.checks")
    monkeypatch.delenv("XC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    ended = xc("doctor")
    assert ended.code == 78
    assert ended.out.count("no params.yaml in") == 1
