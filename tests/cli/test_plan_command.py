"""``xc plan``: pilots of a real recipe, the table, what is refused; the warnings of ``xc train``."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests import forks
from tests.cli.conftest import NGAME, Xc
from tests.unprivileged import bound, read_only, writable
from xc_core import memory
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.cli.main import main
from xc_core.cli.plan import _recipe, _time, table
from xc_core.params import deep_merged
from xc_core.planning import on_gpu, pilots, planned
from xc_core.planning.data_size import DataSize
from xc_core.planning.estimator import Cost, Estimator
from xc_core.planning.on_gpu import GPU_RATES
from xc_core.planning.pilots import Rates
from xc_core.planning.stage_costs import Case, searches
from xc_core.recipes import RECIPES

SIZES = ("--documents", "3000", "--labels", "200", "--tokens", "12")
BAG = ("--set", "encoder.encoder.name=bag", "--dim", "16")


FEW = {"SIZES": (60, 120), "_FEW": 64, "_MANY": 256, "_RUNS": {"corpus": 2}, "_GRAPH": 128, "_QUERIES": 16}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run pilots of a few documents."""
    for name, value in FEW.items():
        monkeypatch.setattr(pilots, name, value)


def unprivileged() -> None:
    """Run ``xc`` with pilots of a few documents, as a user whom permissions bind."""
    for name, value in FEW.items():
        setattr(pilots, name, value)
    bound()
    main()


@pytest.mark.usefixtures("quick")
def test_every_stage_of_made_up_data_is_planned_and_rates_are_kept(xc: Xc, fresh: Workspace) -> None:
    ended = xc("plan", *SIZES, *BAG, "--json")
    assert ended.code == 0
    content = json.loads(ended.out)
    rows = {row["stage"]: row for row in content["stages"]["cpu"]}
    assert list(rows) == [name for name in STAGES if name != "leaderboard"]
    assert all(row["seconds"] > 0 and row["memory"] > 100e6 for row in rows.values())
    assert rows["embeddings"]["disk"] == pytest.approx(3200 * 16 * 4, rel=0.05)
    assert not [path for path in fresh.state.iterdir() if path.name.startswith(".pilot.")]
    again = xc("plan", *SIZES, *BAG)
    assert "using the rates of an earlier call" in again.err
    assert "ngame with changes: 3,000 documents of 12 tokens, 200 labels of 6; one process on cpu" in again.out


def test_a_project_that_may_only_be_read_is_planned(own: Workspace) -> None:
    """The rates are measured among the temporary files, and not kept."""
    shutil.rmtree(own.state / "lock", ignore_errors=True)
    read_only(own.root)
    ended = forks.run("tests.cli.test_plan_command:unprivileged", "plan", *NGAME, env=dict(os.environ))
    writable(own.root)
    assert ended.returncode == 0, ended.stderr
    assert "note: the rates are not kept: no permission" in ended.stderr
    assert not (own.state / "plan").exists()


@pytest.mark.parametrize(
    ("recipe", "changes", "title"),
    [
        ("ngame", {}, "ngame"),
        ("ngame", {"encoder": {"epochs": 2}}, "ngame with changes"),
        ("quick", {"encoder": {"epochs": 2}}, "quick, ngame with changes"),
    ],
)
def test_the_table_names_the_recipe_that_was_asked_for(recipe: str, changes: dict[str, Any], title: str) -> None:
    subject = planned.Subject("ngame", changes, DataSize.of_sizes(100, 10, 12, 6, 2))
    head = table(subject, recipe, "cpu", [Cost("corpus", 1.0, 1 << 20, 1 << 20)]).splitlines()[0]
    assert head == f"{title}: 100 documents of 12 tokens, 10 labels of 6; one process on cpu"


@pytest.mark.usefixtures("quick")
def test_several_processes_share_the_work_of_the_stages_that_can_be_distributed(xc: Xc) -> None:
    ended = xc("plan", *SIZES, *BAG, "--devices", "cpu,4xcpu", "--json")
    alone, shared = ({row["stage"]: row for row in rows} for rows in json.loads(ended.out)["stages"].values())
    differ = {name for name in alone if alone[name] != shared[name]}
    assert {"encoder", "classifier"} <= differ <= {"encoder", "embeddings", "classifier"}, "pilots may be too quick"
    assert "200 labels of 6; each process of 4xcpu" in xc("plan", *SIZES, *BAG, "--devices", "4xcpu").out


@pytest.mark.usefixtures("quick")
def test_a_dataset_is_planned_as_params_has_the_recipe(xc: Xc, fresh: Workspace) -> None:
    ended = xc("plan", "--dataset", "toy", "--json")
    assert ended.code == 0
    world = json.loads(ended.out)["world"]
    assert world["labels"] == 10
    (rates,) = (Rates.from_json(path.read_text("utf-8")) for path in (fresh.state / "plan").glob("*.json"))
    assert asdict(rates.timed.world) == world, "steps are timed on the dataset itself"


@pytest.mark.usefixtures("quick")
def test_a_gpu_is_planned_from_recorded_rates_alone(xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = xc("plan", *SIZES, *BAG, "--devices", "cuda:1")
    assert ended.code == 0
    assert ended.out.strip() == (
        "cuda:1: no rates of a GPU are recorded here, so nothing is estimated; record them: make gpu-proof"
    )
    recorded: dict[str, Any] = {
        "device": "a card", "date": "2026-11-22", "encoder": "bag", "tokens_per_second": 1000.0,
        "step_seconds": 1.0, "step_documents": 100, "step_width": 16, "pairs_per_second": 1e9,
    }  # fmt: skip
    (fresh.state / GPU_RATES).write_text(json.dumps(recorded))
    rows = json.loads(xc("plan", *SIZES, *BAG, "--devices", "cpu, cuda,8xcuda", "--json").out)["stages"]
    card, cpu, shared = ({row["stage"]: row["seconds"] for row in rows[name]} for name in ("cuda", "cpu", "8xcuda"))
    assert shared["embeddings"] == pytest.approx(card["embeddings"] / 8)
    whole, part = (next(row["memory"] for row in rows[n] if row["stage"] == "classifier") for n in ("cuda", "8xcuda"))
    assert whole - part == pytest.approx(7 / 8 * 1.75 * 200 * 16 * 4)
    assert card["embeddings"] == pytest.approx((3000 * 14 + 200 * 8) / 3 / 1000)
    assert card["corpus"] == cpu["corpus"]
    monkeypatch.setattr(Estimator, "refresh", lambda *_: 7.0)
    rows = json.loads(xc("plan", *SIZES, *BAG, "--devices", "cuda", "--json").out)["stages"]["cuda"]
    recipe = RECIPES["ngame"].changed({"encoder": {"encoder": {"name": "bag"}}})
    case = Case(recipe, DataSize.of_sizes(3000, 200, 12, 6, 2), 16)
    clustered = {row["stage"]: row["seconds"] for row in rows}["encoder"] - on_gpu._seconds(case, recorded)["encoder"]
    assert clustered == pytest.approx(7.0), "documents are clustered on the CPU"
    (fresh.state / GPU_RATES).write_text(json.dumps({**recorded, "encoder": "minilm"}))
    assert "the recorded rates are of minilm, not of bag" in xc("plan", *SIZES, *BAG, "--devices", "cuda").out
    for damaged in ("{", "[]", json.dumps({"device": "a card"}), json.dumps({**recorded, "step_width": 0})):
        (fresh.state / GPU_RATES).write_text(damaged)
        assert "cuda: no rates of a GPU are recorded here" in xc("plan", *SIZES, *BAG, "--devices", "cuda").out


def test_stages_on_a_gpu_take_what_their_work_takes_at_the_recorded_rates() -> None:
    """M1 reads all texts before its first step if that step needs their vectors; every search is exact."""
    world, labels, train, published = DataSize.of_sizes(1_000_000, 1_000, 12, 6, 2), 1_000, 810_000, 900_000
    recorded: dict[str, Any] = {
        "tokens_per_second": 1e4, "step_seconds": 1.0, "step_documents": 100, "step_width": 16, "pairs_per_second": 1e9,
    }  # fmt: skip
    names = ("dpr", "ngame", "ance", "adversarial-pretrained")
    dpr, ngame, ance, frozen = (on_gpu._seconds(Case(RECIPES[name], world, 32), recorded) for name in names)
    steps = 3 * train * (12 + 2 + 6 + 2) / 1e4
    assert dpr["encoder"] == pytest.approx(steps)
    assert ngame["encoder"] == pytest.approx(steps + (train * 14 + labels * 8) / 2 / 1e4), (
        "half of the layers are trained"
    )
    assert ance["encoder"] == pytest.approx(steps + 2 * train * labels * 32 / 1e9)
    assert frozen["encoder"] == 0
    assert ngame["embeddings"] == pytest.approx((1_000_000 * 14 + labels * 8) / 2 / 1e4)
    house = on_gpu._seconds(Case(RECIPES["house"], world, 32), recorded)
    assert house["encoder"] == pytest.approx(steps * (3 - 2 / 6) / 2), "five layers of six are trained, not three"
    augmented = RECIPES["dpr"].changed({"encoder": {"augment": True}})
    with_texts = on_gpu._seconds(Case(augmented, world, 32), recorded)["encoder"]
    assert with_texts == pytest.approx(steps + 3 * labels * (6 + 2 + 6 + 2) / 1e4), "label texts are read as documents"
    assert ngame["classifier"] == pytest.approx(30 * (855_000 + published) / 100 * 32 / 16)
    assert [own["negatives"] for own in (ngame, ance)] == pytest.approx([0, published * labels * 32 / 1e9])
    one, four = (on_gpu._seconds(Case(RECIPES["ance"], world, 32, processes), recorded) for processes in (1, 4))
    searched = 2 * train * labels * 32 / 1e9
    assert four.pop("encoder") - searched == pytest.approx((one.pop("encoder") - searched) / 4), "M1 searches alone"
    assert four == pytest.approx({name: seconds / 4 for name, seconds in one.items()})


def test_a_table_that_m1_trains_along_takes_time_on_a_gpu_too() -> None:
    """A row per label, as wide as one head; each process computes it whole."""
    world, labels, train = DataSize.of_sizes(1_000_000, 1_000, 12, 6, 2), 1_000, 810_000
    recorded: dict[str, Any] = {
        "tokens_per_second": math.inf, "step_seconds": 1.0, "step_documents": 100, "step_width": 16,
        "pairs_per_second": 1e9,
    }  # fmt: skip
    for processes in (1, 4):
        cases = (Case(RECIPES[name], world, 32, processes) for name in ("renee", "unidec", "astra"))
        renee, unidec, astra = (on_gpu._seconds(case, recorded)["encoder"] for case in cases)
        assert renee == pytest.approx(RECIPES["renee"].encoder.epochs * 3 * (train + labels) * labels * 32 / 1e9)
        searched = [searches(Case(RECIPES[name], world, 32))["encoder"][0].queries for name in ("unidec", "astra")]
        unidec, astra = (own - asked * labels * 32 / 1e9 for own, asked in zip((unidec, astra), searched, strict=True))
        assert unidec == pytest.approx(RECIPES["unidec"].encoder.epochs * train / 100 * 32 / 2 / 16)
        assert astra == pytest.approx(RECIPES["astra"].encoder.epochs * (train + labels) / 100 * 32 / 16)


def test_an_unknown_encoder_is_refused_before_the_dataset_is_tokenised(xc: Xc, fresh: Workspace) -> None:
    ended = xc("plan", "--dataset", "toy", "--set", "encoder.encoder.name=some/encoder")
    ended.refused(69, "'some/encoder'", "give its folder")
    assert not fresh.folder("tokens", "toy").exists()


def test_an_encoder_that_no_recipe_of_the_dataset_has_used_is_planned(
    xc: Xc, fresh: Workspace, edit: Callable[[Workspace, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(fresh, {"datasets/toy/tokens": {}, "experiments": {}})
    monkeypatch.setattr(planned, "rates_of", lambda *_, **__: None)  # pilots do not depend on it
    monkeypatch.setattr(planned, "costs_of", lambda *_: [Cost("corpus", 1.0, 1 << 20, 1 << 20)])
    ended = xc("plan", "--dataset", "toy", *BAG)
    assert (ended.code, fresh.params.dataset("toy").tokens.tokenizers) == (0, ("minilm", "wordpiece"))


@pytest.mark.usefixtures("quick")
def test_a_missing_package_is_named_before_the_first_stage(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    monkeypatch.setattr(pilots, "run_stage", None)
    ended = xc("plan", *SIZES, *BAG, "--set", "fusion.rule=lightgbm")
    ended.refused(66, "no installed package lightgbm", "pip install")


def test_what_is_planned_must_be_clear(xc: Xc, fresh: Workspace) -> None:
    xc("plan").refused(64, "neither data nor sizes", "--documents")
    xc("plan", "--documents", "100").refused(64, "xc plan with --documents", "--documents 1000000 --labels 100000")
    xc("plan", "--test-documents", "5").refused(64, "xc plan with --test-documents")
    xc("plan", "--dataset", "toy", *SIZES).refused(64, "--dataset and --documents", "xc plan --documents")
    xc("plan", "--dataset", "toy", "--test-documents", "9").refused(
        64, "--dataset and --test-documents", "xc plan --documents"
    )
    for option in ("--label-tokens", "--labels-per-document"):
        xc("plan", "--dataset", "toy", option, "6").refused(64, f"xc plan with --dataset and {option}", "xc plan --doc")
    xc("plan", *SIZES, "--test-documents", "3000").refused(
        64, "--test-documents 3000 of --documents 3000", "fewer test"
    )
    xc("plan", *SIZES, "--devices", "tpu,cpu,npu").refused(64, "--devices tpu,cpu,npu", "fix 'tpu'")
    for wrong in ("0xcpu", "4xcuda:1", "1" + 6 * "0" + "xcpu", "9" * 5000 + "xcuda", "1\u0663xcpu"):
        xc("plan", *SIZES, "--devices", wrong).refused(64, f"--devices {wrong[:9]}", "fix ")


@pytest.mark.parametrize("again", [False, True])
def test_what_is_asked_for_reaches_the_estimate(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    asked: list[Any] = []
    costs = [Cost("corpus", 59.5, 2e9, 1e6), Cost("encoder", 3_540.5, 3e9, 1e9)]
    monkeypatch.setattr(planned, "rates_of", lambda _, subject, *, again: asked.append((subject.world, again)))
    monkeypatch.setattr(planned, "costs_of", lambda *_: costs)
    monkeypatch.setattr(memory, "total_bytes", lambda: 2.5e9)
    sizes = ("--test-documents", "500", "--label-tokens", "4", "--labels-per-document", "3")
    ended = xc("plan", *SIZES, *sizes, *(["--force"] if again else []))
    assert ended.code == 0, ended.err
    world = DataSize(
        train=2250, validation=250, test=500, labels=200, document_tokens=12.0, label_tokens=4.0, pairs=3.0
    )  # fmt: skip
    assert asked == [(world, again)]
    assert [line.split()[:3] for line in ended.out.splitlines()[2:5]] == [
        ["corpus", "59.50", "s"], ["encoder", "59.0", "min"], ["all", "1.0", "h"],
    ]  # fmt: skip
    assert len({len(line) for line in ended.out.splitlines()[1:5]}) == 1, "columns are aligned"
    assert ended.out.splitlines()[5:] == ["warning: encoder needs more memory than this machine has (2.5 GB)"]
    monkeypatch.setattr(memory, "total_bytes", lambda: 11.5e9)
    assert "warning" not in xc("plan", *SIZES, "--devices", "3xcpu").out
    ended = xc("plan", *SIZES, "--devices", "4xcpu")  # all of them here; the stage corpus runs in one process
    (warning,) = [line for line in ended.out.splitlines() if line.startswith("warning")]
    assert warning == "warning: encoder in 4 processes (12.0 GB) needs more memory than this machine has (11.5 GB)"
    costs[0] = Cost("corpus", 59.5, 8e9, 1e6)
    assert "warning" not in xc("plan", *SIZES, "--devices", "2xcpu").out


def test_the_smallest_data_can_be_planned_and_nothing_smaller(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    least = {"--documents": 10, "--labels": 1, "--tokens": 1, "--test-documents": 1, "--label-tokens": 1,
             "--labels-per-document": 1, "--dim": 1}  # fmt: skip
    worlds: list[Any] = []
    monkeypatch.setattr(planned, "rates_of", lambda _, subject, *, again: worlds.append(subject.world))
    monkeypatch.setattr(planned, "costs_of", lambda *_: [Cost("corpus", 1.0, 2e9, 1e6)])
    ended = xc("plan", *(part for size in least.items() for part in size))
    assert ended.code == 0, ended.err
    assert worlds == [DataSize(train=9, validation=0, test=1, labels=1, document_tokens=1, label_tokens=1, pairs=1)]
    for option, number in least.items():
        assert xc("plan", *(part for size in {**least, option: number - 1}.items() for part in size)).code in (2, 64)
    assert len(worlds) == 1


def test_an_unknown_dataset_is_refused_before_anything_is_imported_for_the_plan(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xc_core.planning.planned", None)
    xc("plan", "--dataset", "tyo").refused(66, "no dataset 'tyo' in params.yaml (nearest: 'toy')", "xc ingest")


@pytest.mark.parametrize(
    ("seconds", "text"), [(60, "1.0 min"), (3_600, "1.0 h"), (86_400, "1.0 days"), (31_557_600, "1.0 years")]
)
def test_a_time_has_the_largest_unit_that_is_not_below_1(seconds: float, text: str) -> None:
    assert _time(seconds) == text
    assert not _time(seconds * 0.9).endswith(text.split()[1])


@pytest.mark.parametrize(("name", "field"), [("bag", "width"), ("minilm", "projection")])
def test_the_width_is_that_of_the_encoder_that_params_has(fresh: Workspace, name: str, field: str) -> None:
    declared = {"encoder": {"encoder": {"name": name, "max_length": 16}}}
    for recipe in ("ngame", "mine"):
        fresh.params.declare_experiment("toy", recipe, "ngame", declared)
        changes = deep_merged(declared, {"encoder": {"epochs": 2, "encoder": {field: 8}}})
        assert _recipe(fresh, "toy", recipe, ("encoder.epochs=2",), 8) == ("ngame", changes)
        assert _recipe(fresh, "toy", recipe, (), None) == ("ngame", declared)


def test_a_training_that_cannot_end_is_warned_of_before_it_starts(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("corpus", "tokens"):
        run_stage(fresh, stage, "toy")
    experiment = fresh.params.experiment("toy", "ngame")
    assert planned.obstacles(fresh, experiment) == []
    monkeypatch.setattr(memory, "total_bytes", lambda: 100 << 20)
    (line,) = planned.obstacles(fresh, experiment)
    assert "of memory, and this machine has 105 MB" in line
    free = {fresh.home("toy"): 1000}  # the folder of the dataset may be on a disk of its own
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Disk", (), {"free": free.get(path, 1 << 40)})())
    assert "of the disk are free" in planned.obstacles(fresh, experiment)[1]
    ended = xc("train", "--dataset", "toy", "--recipe", "ngame", "--until", "tokens")
    assert "warning" not in ended.err
    ended = xc(
        "train",
        "--dataset",
        "toy",
        "--set",
        "encoder.encoder.name=bag",
        "--set",
        "encoder.epochs=0",
        "--until",
        "encoder",
    )
    assert "warning: ngame may not end: the stage" in ended.err
