"""Names and settings that are refused before anything runs."""

from __future__ import annotations

import pytest

from tests.cli.conftest import NGAME, TOY, Xc
from xc_core.chain import Workspace
from xc_core.data.ingest import IngestConfig


def test_a_folder_that_is_a_link_to_itself_is_no_fault_of_xc(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = fresh.root / "loop"
    loop.symlink_to(loop)
    xc("ingest", loop, "--dataset", "new").refused(73, "a symbolic link that leads to itself")
    monkeypatch.setenv("XC_ROOT", str(loop))
    xc("status").refused(73, "a symbolic link that leads to itself")


@pytest.mark.parametrize(
    ("arguments", "code", "found", "do"),
    [
        (["run", "corpus", "--dataset", "toyy"], 66, "no dataset 'toyy' in params.yaml (nearest: 'toy')", "xc ingest"),
        (["leaderboard", "--dataset", "tay"], 66, "(nearest: 'toy')", "xc ingest PATH --dataset tay"),
        (["predict", "--dataset", "tyo", "a"], 66, "(nearest: 'toy')", "xc ingest"),
        (["drift", "--dataset", "tyo"], 66, "no dataset 'tyo' in params.yaml (nearest: 'toy')", "xc ingest"),
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
        (["run", "encodr", *NGAME], 64, "stage 'encodr' (nearest: 'encoder')", "fix the name"),
        (["run", "", *TOY], 64, "stage ''", "fix the name"),
        (["train", *TOY, "--until", "fusoin"], 64, "stage 'fusoin' (nearest: 'fusion')", "fix the name"),
        (["train", *TOY, "--until", "leaderboard"], 64, "stage 'leaderboard'", "fix the name"),
        (["run", "encoder", *TOY], 64, "no recipe for encoder", "name the recipe"),
        (["run", "index", *NGAME], 64, "stage 'index'", "fix the name"),
        (["run", "tokens", *TOY], 66, "no artefact at", "make it first: xc run corpus --dataset toy"),
        (["run", "fusion", *NGAME], 66, "no artefact at", "xc run corpus --dataset toy"),
        (["predict", *NGAME, "a"], 66, "no packed model at", "xc train --dataset toy --recipe ngame"),
        (["predict", "a"], 64, "neither --dataset nor --bundle", "name the dataset"),
        (["predict", *TOY, "--bundle", "x", "a"], 64, "--bundle with --dataset or --recipe", "drop the other"),
        (["predict", "--bundle", "nowhere", "a"], 66, "no artefact at nowhere", ""),
        (["predict", *TOY, "--column", "body", "a"], 64, "--column without files", "drop --column"),
        (["predict", *TOY, "--part", "1/2", "a"], 64, "--part without files", "drop --part"),
        (["predict", *TOY, "--input", "a.csv", "--output", "b.jsonl", "--json"], 64, "--json with files", "drop"),
        # the value of a variable that is not set, in a script
        (["predict", *TOY, "--part", "", "a"], 64, "--part without files", "drop --part"),
        (["train", *TOY, "--base", ""], 78, "recipe ''", ""),
        (["train", *TOY, "--budget", ""], 64, "--budget ", ""),
        (["status", "--dataset", ""], 64, "the dataset name ''", "another name"),
        (["status", *TOY, "--recipe", ""], 64, "the recipe name ''", "another name"),
        (["drift", *TOY, "--recipe", ""], 64, "the recipe name ''", "another name"),
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
        ("fusion.rule=forest", 78, "fusion 'forest'"),
        ("fusion.rule.kind=forest", 78, "fusion 'forest'"),
        ("encoder.loss=tripelt", 78, "(nearest: 'triplet')"),
        ("scores.classifier.index=hsnw", 78, "(nearest: 'hnsw')"),
        ("encoder.epochs=2001-99-99", 64, "month must be in 1..12"),
        ("encoder.epochs=!!int foo", 64, "the tag"),
        (f"encoder.epochs={'[' * 5000}", 64, "more than 32 levels"),
        (f"encoder.epochs={'9' * 5000}", 64, "invalid YAML"),
        (f"encoder.epochs=0x{'f' * 5000}", 78, "too large to print"),
        (f"encoder{'.a' * 5000}=1", 64, "--set encoder.a.a"),
        (f"encoder.seed={10**20}", 78, f"ngame.encoder.seed = {10**20}"),
        (f"encoder.encoder.width={10**9}", 78, "width 1000000000"),
        ("encoder.loss.margin=1e300", 78, "ngame.encoder.loss.margin = 1e+300"),
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
    one, other = "scores.lexical.trees=3", "scores.lexical=null"
    for first, second in ((one, other), (other, one)):
        xc("train", *NGAME, "--set", first, "--set", second).refused(64, f"--set {second}", "drop one of the two")


def test_a_budget_that_is_no_duration_is_refused_before_anything_runs(xc: Xc, fresh: Workspace) -> None:
    before = (fresh.root / "params.yaml").read_bytes()
    xc("train", *NGAME, "--budget", "ten minutes").refused(64, "--budget ten minutes")
    assert (fresh.root / "params.yaml").read_bytes() == before


def test_a_dataset_without_experiments_has_no_model_for_drift(xc: Xc, fresh: Workspace) -> None:
    fresh.params.declare_dataset("bare", IngestConfig())
    xc("drift", "--dataset", "bare").refused(66, "no experiment of bare", "xc train --dataset bare --recipe words")
