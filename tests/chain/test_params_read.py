"""Reading params.yaml: datasets and experiments with their settings, or an error that names the place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from xc_core.chain import Workspace
from xc_core.data.ingest import IngestConfig
from xc_core.errors import ConfigError, MissingError
from xc_core.params import put
from xc_core.recipes import find_recipe
from xc_core.recipes.base import _REMOVED_SETTINGS
from xc_core.sampling import ORDERS
from xc_core.sampling.base import Order


def write(workspace: Workspace, text: str) -> Workspace:
    (workspace.root / "params.yaml").write_text(text)
    return workspace


def test_an_experiment_is_the_recipe_with_its_changes(bare: Workspace) -> None:
    found = bare.params.experiment("toy", "ngame")
    assert found.recipe == find_recipe("ngame").changed({"encoder": {"epochs": 2}})
    assert found.dataset.corpus == IngestConfig(validation_fraction=0.2)
    assert found.settings("encoder").epochs == 2.0
    assert found.settings("corpus").validation_fraction == 0.2
    assert found.settings("leaderboard") is None
    assert (found.key, found.tokenizer) == (("toy", "ngame"), "minilm")
    dataset = bare.params.dataset("toy")
    assert dataset == found.dataset == dataset.dataset
    assert (dataset.key, dataset.tokenizer) == (("toy", None), None)
    assert dataset.settings("encoder") is None


def test_every_reading_is_that_of_the_present_file_and_a_copy(bare: Workspace) -> None:
    bare.params.read()["datasets"].clear()
    assert bare.params.datasets() == ["toy"]
    write(bare, bare.params.path.read_text().replace("0.2", "0.3"))
    assert bare.params.dataset("toy").corpus.validation_fraction == 0.3


def test_a_partition_is_a_dataset_or_an_experiment(bare: Workspace) -> None:
    assert bare.params.partition("toy", None) == bare.params.dataset("toy")
    assert bare.params.partition("toy", "ngame") == bare.params.experiment("toy", "ngame")


def test_a_variant_is_another_recipe_under_its_own_name(bare: Workspace) -> None:
    found = bare.params.declare_experiment("toy", "ngame-short", "ngame", {"encoder": {"epochs": 1}}).recipe
    assert (found.name, found.encoder.epochs, found.module) == ("ngame-short", 1.0, "xc_core.recipes.ngame")
    assert bare.params.experiments() == [("toy", "ngame"), ("toy", "ngame-short")]
    assert bare.params.recipes("toy") == ["ngame", "ngame-short"]
    assert bare.params.recipes("another") == []
    assert bare.params.declared("toy", "ngame-short") == ("ngame", {"encoder": {"epochs": 1}})
    assert bare.params.declared("toy", "absent") is None


@pytest.mark.parametrize(
    ("dataset", "recipe", "found", "do"),
    [
        ("tay", "ngame", "no dataset 'tay' in params.yaml (nearest: 'toy')", "xc ingest PATH --dataset tay"),
        ("toy", "ngames", "no experiment 'toy_ngames' in params.yaml (nearest: 'toy_ngame')",
         "xc train --dataset toy --recipe ngames, with --base KNOWN for a variant"),
    ],
)  # fmt: skip
def test_what_params_does_not_have_is_missing_and_the_error_says_how_to_create_it(
    dataset: str, recipe: str, found: str, do: str, bare: Workspace
) -> None:
    with pytest.raises(MissingError) as caught:
        bare.params.experiment(dataset, recipe)
    assert caught.value.found == found
    assert caught.value.do == f"fix the name, or create it: {do}"


def test_in_place_of_a_missing_experiment_only_those_of_its_dataset_are_named(bare: Workspace) -> None:
    for other in ("another", "zoo"):
        bare.params.declare_dataset(other, IngestConfig())
        bare.params.declare_experiment(other, "ngames", "ngame", {})
    with pytest.raises(MissingError, match="nearest: 'toy_ngame'") as caught:
        bare.params.experiment("toy", "ngames")
    assert caught.value.expected == "one of toy_ngame"


WRONG = {
    "no YAML": ("datasets: [", "invalid YAML ("),
    "a tab": ("datasets:\n\ttoy: {}\n", "invalid YAML ("),
    "a list": ("- a\n", "a list"),
    "false": ("false\n", "a bool"),
    "a misspelt mapping": ("datsets: {toy: {}}\n", "datsets (nearest: 'datasets')"),
    "datasets false": ("datasets: false\n", "datasets = False"),
    "a tag": ("datasets: !!set {toy}\n", "the tag"),
    "an experiment of nothing": ("experiments: {None_None: {}}\n", "None_None with dataset None"),
    "an experiment's base a list": (
        "experiments: {toy_ngame: {dataset: toy, recipe: ngame, base: [ngame]}}\n", "toy_ngame.base = ['ngame']"),
    "an experiment's stages a list": (
        "experiments: {toy_ngame: {dataset: toy, recipe: ngame, stages: [1]}}\n", "toy_ngame.stages = [1]"),
    "datasets a list": ("datasets: [toy]\n", "datasets = ['toy']"),
    "a dataset's name a number": ("datasets: {7: {}}\n", "datasets.7"),
    "a dataset a text": ("datasets: {toy: yes please}\n", "datasets.toy = 'yes please'"),
    "a misspelt part": ("datasets: {toy: {corpos: {}}}\n", "datasets.toy.corpos (nearest: 'corpus')"),
    "an unknown setting": ("datasets: {toy: {corpus: {filter: none}}}\n", "corpus.filter (nearest: 'filters')"),
    "a setting of the wrong type": ("datasets: {toy: {tokens: {max_tokens: many}}}\n", "tokens.max_tokens = 'many'"),
    "an encoder among the tokenizers": (
        "datasets: {toy: {tokens: {tokenizers: [minilm, bag]}}}\n", "bag among the tokenizers, the name of an encoder"),
    "a setting that is no mapping": ("datasets: {toy: {corpus: 7}}\n", "datasets.toy.corpus = 7"),
    "an experiment without names": ("datasets: {toy: }\nexperiments: {toy_ngame: {base: ngame}}\n", "toy_ngame with"),
    "an experiment of another name": (
        "datasets: {toy: }\nexperiments: {toy_x: {dataset: toy, recipe: ngame}}\n", "toy_x with dataset 'toy'"),
    "an unknown stage": (
        "datasets: {toy: }\nexperiments: {toy_ngame: {dataset: toy, recipe: ngame, stages: {encodr: {}}}}\n",
        "ngame.encodr (nearest: 'encoder')"),
    "an unknown base": (
        "datasets: {toy: }\nexperiments: {toy_ngame: {dataset: toy, recipe: ngame, base: game}}\n",
        "recipe 'game' (nearest: 'ngame')"),
    "a value out of range": (
        "datasets: {toy: }\nexperiments: {toy_ngame: {dataset: toy, recipe: ngame, stages: {clusters: {size: 0}}}}\n",
        "size 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_params_file_is_a_config_error_that_names_the_place(name: str, bare: Workspace) -> None:
    text, found = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        write(bare, text).params.experiment("toy", "ngame")
    assert found in caught.value.found
    assert caught.value.exit_code == 78


def test_an_entry_of_the_stage_that_version_0_1_had_is_to_be_deleted(bare: Workspace) -> None:
    with pytest.raises(ConfigError, match="delete the entry") as caught:
        write(bare, WRONG["an unknown stage"][0].replace("encodr", "index")).params.experiment("toy", "ngame")
    assert "ngame.index" in caught.value.found


@pytest.mark.parametrize("name", sorted(_REMOVED_SETTINGS - {"index"}))
def test_a_setting_that_version_0_1_had_is_to_be_deleted_or_moved(name: str) -> None:
    """Only `index` was called one of that version; the advice for all others was to fix the name."""
    changes: dict[str, Any] = {}
    put(changes, name, 1)
    with pytest.raises(ConfigError, match=r"delete the entry, which is of version 0\.1, or move it") as caught:
        find_recipe("ngame").changed(changes)
    assert caught.value.found.startswith(f"ngame.{name}")


def test_another_name_than_one_of_version_0_1_is_to_be_fixed() -> None:
    for changes in (
        {"encoder": {"radiu": 1}},
        {"audit": {"radis": 1}},
        {"encoder": {"epochs": "x"}},
        {"encoder": {"cache": 1}},
    ):
        with pytest.raises(ConfigError, match="do this:  fix the"):
            find_recipe("ngame").changed(changes)


def test_a_wrong_value_of_a_plug_ins_setting_is_no_setting_of_version_0_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """``encoder.order.cluster_size`` was one; the order of a plug-in may have a setting of that name."""

    @dataclass(frozen=True, kw_only=True)
    class Own(Order):
        cluster_size: int = 8

    monkeypatch.setattr(ORDERS, "_parts", {**ORDERS._parts})
    ORDERS.register("own")(Own)
    with pytest.raises(ConfigError, match="do this:  fix the value") as caught:
        find_recipe("ngame").changed({"encoder": {"order": {"kind": "own", "cluster_size": "x"}}})
    assert caught.value.found.startswith("ngame.encoder.order.cluster_size")


def test_bytes_that_are_no_text_are_a_config_error(bare: Workspace) -> None:
    (bare.root / "params.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="that cannot be read"):
        bare.params.read()


def test_an_empty_params_file_has_no_datasets(bare: Workspace) -> None:
    for text in ("", "datasets:\nexperiments:\n"):
        write(bare, text)
        assert bare.params.datasets() == []
        assert bare.params.experiments() == []
        with pytest.raises(MissingError) as caught:
            bare.params.dataset("toy")
        assert (caught.value.found, caught.value.expected) == (
            "no dataset 'toy' in params.yaml", "a known dataset; there is none yet")  # fmt: skip
    write(bare, "datasets: {toy: {}}\n")
    with pytest.raises(MissingError, match="expected: a known experiment; there is none yet"):
        bare.params.experiment("toy", "ngame")


def test_the_file_of_a_project_that_was_moved_is_where_the_project_is(tmp_path: Path) -> None:
    """A training that was cut off so advised to set XC_ROOT."""
    root = tmp_path / "project"
    with pytest.raises(MissingError, match="which was moved or deleted since this command began"):
        Workspace(root).params.read()
    root.mkdir()
    with pytest.raises(MissingError, match="set XC_ROOT"):
        Workspace(root).params.read()


def test_an_unknown_base_is_named_with_its_place(workspace: Workspace) -> None:
    """xc status did not say which experiment has it, nor that the file does."""
    file = workspace.root / "params.yaml"
    file.write_text(file.read_text().replace("base: ngame", "base: ngmae"))
    with pytest.raises(ConfigError, match="recipe 'ngmae'") as caught:
        workspace.params.experiment("toy", "ngame")
    assert caught.value.where == "params.yaml, experiments.toy_ngame.base"
    assert caught.value.do.startswith("fix the entry: ")


def test_a_wrong_setting_is_named_with_its_experiment(workspace: Workspace) -> None:
    """After an upgrade that refuses a value, several datasets may have the recipe."""
    workspace.params.declare_experiment("toy", "ngame", "ngame", {"model": {"min_P_at_1": 50.0}})
    file = workspace.root / "params.yaml"
    file.write_text(file.read_text().replace("min_P_at_1: 50.0", "min_P_at_1: 101"))
    with pytest.raises(ConfigError, match="min_P_at_1 101") as caught:
        workspace.params.experiment("toy", "ngame")
    assert caught.value.where == "params.yaml, experiments.toy_ngame: ngame.model"
