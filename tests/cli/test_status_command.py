"""``xc status`` and ``xc settings``: what they show; an exit code says whether something is not up to date."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cli.conftest import NGAME, TOY, Xc
from tests.conftest import ToyWorld
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace
from xc_core.cli import status
from xc_core.data.ingest import IngestConfig
from xc_core.lifecycle.delete import delete
from xc_core.locks import locked
from xc_core.params import plain
from xc_core.recipes import find_recipe

EXPECTED = {"nothing": "up to date", "out of date": "out of date", "missing": "missing", "damaged": "damaged"}


def test_an_experiment_that_is_deleted_meanwhile_is_not_shown(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xc status advised to fix the name of it, which nobody had given, and ended with 66."""
    fresh.params.declare_experiment("toy", "other", "ngame", {})
    listed = status._pairs

    def deleted_then(*arguments: Any) -> list[tuple[str, str | None]]:
        pairs = listed(*arguments)
        delete(fresh, "toy", ["ngame"])
        return pairs

    monkeypatch.setattr(status, "_pairs", deleted_then)
    shown = xc("status")
    assert (shown.code, shown.err) == (1, "")
    assert shown.out.startswith("toy / other\n") and "ngame" not in shown.out


@pytest.mark.parametrize("change", EXPECTED)
def test_the_exit_code_is_1_unless_every_artefact_is_up_to_date(xc: Xc, own: Workspace, change: str) -> None:
    folder = own.folder("model", "toy", "ngame")
    if change == "out of date":
        own.params.declare_experiment("toy", "ngame", "ngame", {"model": {"max_drop": 3.0}, "encoder": {"epochs": 1}})
    elif change == "missing":
        artifacts.remove(folder)
    elif change == "damaged":
        (folder / "encoder.safetensors").write_bytes(b"short")
    ended = xc("status", *NGAME)
    assert ended.code == (0 if change == "nothing" else 1)
    [line] = [line for line in ended.out.splitlines() if line.split()[:1] == ["model"]]
    assert EXPECTED[change] in line
    found = xc("status", *NGAME, "--json")
    assert found.code == 0
    states = {row["stage"]: row["status"] for row in map(json.loads, found.out.splitlines())}
    assert states["model"] == EXPECTED[change]


def test_a_recipe_without_a_dataset_is_shown_for_every_dataset_that_has_it(xc: Xc, fresh: Workspace) -> None:
    fresh.params.declare_experiment("toy", "dpr", "dpr", {})
    for dataset, recipe in (("other", "ngame"), ("bare", None)):
        fresh.params.declare_dataset(dataset, IngestConfig())
        if recipe:
            fresh.params.declare_experiment(dataset, recipe, recipe, {})

    def shown(*arguments: str) -> list[tuple[str, str | None]]:
        rows = [json.loads(line) for line in xc("status", "--json", *arguments).out.splitlines()]
        return list(dict.fromkeys((row["dataset"], row["recipe"]) for row in rows))

    assert shown() == [("bare", None), ("other", "ngame"), ("toy", "dpr"), ("toy", "ngame")]
    assert shown("--dataset", "toy") == [("toy", "dpr"), ("toy", "ngame")]
    assert shown("--recipe", "ngame") == [("other", "ngame"), ("toy", "ngame")]
    xc("status", "--recipe", "ngam").refused(66, "no experiment of recipe 'ngam' in params.yaml (nearest: 'ngame')",
                                             "xc train --dataset NAME --recipe ngam")  # fmt: skip


def test_an_empty_project_and_a_dataset_without_a_recipe_name_the_next_command(
    xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    (tmp_path / "params.yaml").write_text("datasets: {}\nexperiments: {}\n")
    empty = xc("status")
    assert (empty.code, empty.out) == (0, "no dataset yet; create one: xc ingest FOLDER --dataset NAME\n")
    assert xc("status", "--json").out == ""
    assert xc("ingest", ToyWorld.make().write(tmp_path / "drop"), "--dataset", "new").code == 0
    ingested = xc("status")
    assert ingested.code == 1, "the tokens are missing"
    assert ingested.out.splitlines()[-2:] == [
        "next: xc train --dataset new --recipe words",
        "      then, with an encoder: --recipe ngame",
    ]
    assert [json.loads(line)["stage"] for line in xc("status", "--json").out.splitlines()] == ["corpus", "tokens"]


def test_settings_of_a_recipe_that_is_not_trained_are_its_own(xc: Xc, fresh: Workspace) -> None:
    shown = YAML(typ="safe").load(xc("settings", *TOY, "--recipe", "dpr").out)
    assert shown["encoder"] == plain(find_recipe("dpr").encoder)
    assert not (fresh.data / "toy" / "dpr").exists()
    xc("settings", *TOY, "--recipe", "dqr").refused(66, "no experiment 'toy_dqr'")
    xc("settings", "--dataset", "tay", "--recipe", "dpr").refused(66, "no dataset 'tay'")


def test_settings_shows_all_settings_of_a_dataset_or_an_experiment_and_writes_those_that_dvc_compares(
    xc: Xc, fresh: Workspace
) -> None:
    fresh.params.declare_dataset("toy", IngestConfig(validation_fraction=0.2))
    shown = {scope: xc("settings", *asked) for scope, asked in (("dataset", TOY), ("experiment", NGAME))}
    dataset, experiment = (YAML(typ="safe").load(ended.out) for ended in shown.values())
    assert list(dataset) == ["corpus", "tokens", "release", "update", "drift", "schedule"]
    assert (dataset["release"]["policy"], dataset["drift"]["fewest"]) == ("auto", 50)
    assert list(experiment) == [name for name in STAGES if name not in ("corpus", "tokens", "leaderboard")]
    assert (dataset["corpus"]["validation_fraction"], dataset["corpus"]["label_separator"]) == (0.2, ";")
    assert (experiment["encoder"]["epochs"], experiment["encoder"]["refit"]) == (4.0, False)
    assert "  fields:\n    - title\n    - content\n" in shown["dataset"].out, "as in params.yaml"
    for content, recipe in ((dataset, None), (experiment, "ngame")):
        for name in STAGES.keys() & content.keys():
            assert fresh.settings_file(name, "toy", recipe).is_file()


@pytest.mark.parametrize("command", [("train", "--until", "corpus"), ("status",), ("settings",)])
def test_a_renamed_folder_of_a_dataset_can_be_renamed_back(xc: Xc, fresh: Workspace, command: tuple[str, ...]) -> None:
    """Commands on the old name made its folder again, for settings alone, and ``mv`` moved the other one into it."""
    name, *options = command
    home, renamed = fresh.home("toy"), fresh.home("other")
    home.rename(renamed)
    ended = xc(name, *TOY, *options)
    assert ended.code == {"train": 66, "status": 1, "settings": 0}[name]
    assert not home.exists()
    renamed.rename(home)
    assert xc("run", "corpus", *TOY).code == 0
    assert fresh.settings_file("corpus", "toy").is_file()


def test_datasets_that_an_empty_params_file_does_not_name_are_shown(xc: Xc, fresh: Workspace) -> None:
    (fresh.root / "params.yaml").write_text("")
    (fresh.data / "notes").mkdir()
    (fresh.data / ".new" / "raw").mkdir(parents=True)
    found = xc("status")
    assert found.code == 0
    assert found.out.startswith("no dataset in params.yaml, but data/ has toy; restore params.yaml")
    assert xc("status", "--json").out == ""
    assert xc("ingest", fresh.raw("toy"), *TOY).code == 0, "the command that it names"
    assert fresh.params.datasets() == ["toy"]


def test_a_dataset_that_params_file_lost_is_shown_in_one_line_after_the_others(xc: Xc, fresh: Workspace) -> None:
    """Nothing mentioned it if the file named another one."""
    file = fresh.root / "params.yaml"
    assert xc("run", "corpus", *TOY).code == 0
    fresh.params.declare_dataset("other", IngestConfig())
    assert "params.yaml" not in xc("status").out
    file.write_text("datasets: {other: {}}\n")
    (fresh.data / "only-files" / "raw").mkdir(parents=True)
    found = xc("status")
    last = found.out.splitlines()[-1]
    assert last.startswith("note: data/ has toy, not in params.yaml; restore its lines")
    assert found.code == 1, "the corpus of the other dataset is missing"
    assert all("toy" not in line for line in xc("status", "--dataset", "other").out.splitlines())
    assert [json.loads(line)["dataset"] for line in xc("status", "--json").out.splitlines()] == ["other", "other"]
    assert xc("ingest", fresh.raw("toy"), *TOY).code == 0, "the command that it names"
    assert "not in params.yaml" not in xc("status").out


def test_an_experiment_that_params_file_lost_is_shown_with_the_commands_that_restore_and_delete_it(
    xc: Xc, own: Workspace
) -> None:
    """Nothing mentioned it; `xc train` without its settings would have replaced its artefacts."""
    assert "not in params.yaml" not in xc("status").out
    own.params.remove("toy", ["ngame"], whole=False)
    for asked in ((), TOY):
        found = xc("status", *asked)
        assert found.code == 0
        [title, restore, _, delete] = found.out.splitlines()[-4:]
        assert title == "toy / ngame: not in params.yaml, but data/toy/ngame has artefacts of it"
        assert restore.startswith("  to get it back: xc train --dataset toy --recipe ngame --set ")
        assert delete == "  to delete it:   xc delete --dataset toy --recipe ngame"
    assert "not in params.yaml" not in xc("status", *TOY, "--json").out
    assert "toy / ngame: not in params.yaml" in xc("doctor").out
    assert "note: ngame is left out, which params.yaml lacks" in xc("leaderboard", *TOY).err
    xc("evaluate", *NGAME).refused(66, "no experiment 'toy_ngame'", "xc status --dataset toy shows how to get it back")
    made = own.made("encoder", "toy", "ngame")
    assert xc(*shlex.split(restore.partition("xc ")[2])).code == 0
    assert own.made("encoder", "toy", "ngame") == made, "nothing is trained"
    assert "not in params.yaml" not in xc("status").out


def test_a_training_that_replaces_a_lost_experiment_says_so_and_how_to_keep_it(xc: Xc, own: Workspace) -> None:
    own.params.remove("toy", ["ngame"], whole=False)
    restore = xc("status", *TOY).out.partition("to get it back: ")[2].partition("\n")[0]
    asked, other = ("train", *NGAME, "--until", "embeddings"), ("--set", "encoder.encoder.name=bag")
    warning = "was trained with other settings"
    assert warning not in xc(*asked, *shlex.split(restore)[6:]).err, "the same settings"
    own.params.remove("toy", ["ngame"], whole=False)
    warned = xc(*asked, *other, "--set", "encoder.epochs=0", "--budget", "none").err
    assert "warning: toy / ngame was trained with other settings and is not in params.yaml" in warned
    assert f"are replaced now (encoder, embeddings). To stop here and get it back: {restore}" in warned
    assert warning not in xc(*asked, *other, "--set", "encoder.epochs=0", "--budget", "none").err, "it is declared now"


@pytest.mark.parametrize("until", ["corpus", "tokens", "encoder"])
def test_a_training_that_ends_before_it_replaces_a_lost_experiment_says_that(
    xc: Xc, own: Workspace, until: str
) -> None:
    """It said that the artefacts were replaced now, and stayed without a way back if somebody believed it."""
    own.params.remove("toy", ["ngame"], whole=False)
    restore = xc("status", *TOY).out.partition("to get it back: ")[2].partition("\n")[0]
    made = own.made("classifier", "toy", "ngame")
    settings = [*shlex.split(restore)[6:], "--set", "fusion.candidates=7"]
    warned = xc("train", *NGAME, "--until", until, *settings).err
    assert (
        "artefacts in data/toy/ngame are out of date now, and the next training replaces them. To get it back: "
        f"{restore}\n" in warned
    )
    assert own.made("classifier", "toy", "ngame") == made


def test_a_stage_that_runs_is_shown_with_its_process(xc: Xc, fresh: Workspace) -> None:
    """It was missing, or out of date, whether or not somebody trained it."""
    with locked(fresh.scratch("lock", "encoder", "toy", "ngame"), "encoder of toy/ngame"):
        lines = {line.split()[0]: line for line in xc("status", *NGAME).out.splitlines()}
    assert lines["encoder"] == f"  encoder     missing (process {os.getpid()} runs it now)"
    assert lines["embeddings"] == "  embeddings  missing"
    assert "runs it now" not in xc("status", *NGAME).out
