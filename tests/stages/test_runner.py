"""A stage runs once for the same parameters and inputs, keeps nothing where they moved, and gives the same bytes."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xc_core import artifacts
from xc_core.errors import BusyError, ConfigError, MissingError, MovedError, UsageError
from xc_core.stages import STAGES, Workspace, run_stage
from xc_core.stages.memory import forget_peak_memory, peak_memory_mb
from xc_core.stages.registry import downstream
from xc_core.stages.runner import (
    Context,
    code,
    find_stage,
    fingerprint,
    read_costs,
)

Edit = Callable[[Workspace, dict[str, Any]], None]
EXPERIMENT = "experiments/toy_ngame"
NAMES = [name for name in STAGES if name != "leaderboard"]


def print_of(workspace: Workspace, name: str) -> str:
    stage = STAGES[name]
    return fingerprint(workspace, stage, "toy", "ngame" if stage.scope == "experiment" else None)


def prints(workspace: Workspace) -> dict[str, str]:
    return {name: print_of(workspace, name) for name in NAMES}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


# what a fingerprint depends on


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_of_a_trained_chain_is_up_to_date(trained: Workspace, name: str) -> None:
    folder = trained.folder(name, "toy", "ngame")
    assert artifacts.verify(folder, kind=name).facts["fingerprint"] == print_of(trained, name)


SETTINGS = {
    "encoder/epochs": (3.0, {"encoder"}),
    "encoder/encoder/max_length": (12, {"encoder"}),
    "clusters/size": (6, {"clusters"}),
    "negatives/k": (5, {"negatives"}),
    "classifier/epochs": (2.0, {"classifier"}),
    "classifier/order/batch_size": (64, {"classifier", "negatives"}),
    "classifier/seed": (5, {"classifier", "negatives"}),
    "index/queries": (7, {"index"}),
    "fusion/depth": (3, {"fusion"}),
    "evaluation/examples": (2, {"evaluation"}),
    "model/min_P_at_1": (1.0, {"model"}),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_changes_the_stages_that_read_it_and_no_other(copied: Workspace, edit: Edit, setting: str) -> None:
    value, stages = SETTINGS[setting]
    before = prints(copied)
    edit(copied, {f"{EXPERIMENT}/stages/{setting}": value})
    assert changed(before, prints(copied)) == stages


@pytest.mark.parametrize(
    ("setting", "value", "stages"),
    [("corpus/validation_fraction", 0.2, {"corpus"}), ("tokens/vocabulary", 500, {"tokens"})],
)
def test_a_setting_of_the_dataset_changes_its_stage(
    copied: Workspace, edit: Edit, setting: str, value: float, stages: set[str]
) -> None:
    before = prints(copied)
    edit(copied, {f"datasets/toy/{setting}": value})
    assert changed(before, prints(copied)) == stages


@pytest.mark.parametrize("name", NAMES)
def test_an_artefact_changes_the_stages_that_read_it_and_no_other(copied: Workspace, name: str) -> None:
    before = prints(copied)
    folder = copied.folder(name, "toy", "ngame")
    places = [folder] if name != "tokens" else [folder / "wordpiece"]
    for place in places:
        manifest = artifacts.read_manifest(place)
        other = dataclasses.replace(manifest, facts={**manifest.facts, "another": "content"})
        (place / artifacts.MANIFEST).write_text(other.to_json())
    assert changed(before, prints(copied)) == {s.name for s in STAGES.values() if name in s.deps} - {"leaderboard"}


def test_a_source_file_changes_the_corpus_by_its_content_and_its_name(copied: Workspace) -> None:
    seen = {print_of(copied, "corpus")}
    raw = copied.raw("toy")
    os.utime(raw / "trn.json.gz", (1, 1))
    assert print_of(copied, "corpus") in seen, "a date is no content"
    (raw / "filter_labels_test.txt").write_text("0 0\n")
    seen.add(print_of(copied, "corpus"))
    (raw / "filter_labels_test.txt").rename(raw / "other.txt")
    seen.add(print_of(copied, "corpus"))
    assert len(seen) == 3


def test_the_code_version_of_a_stage_changes_its_fingerprint(trained: Workspace) -> None:
    stage = STAGES["clusters"]
    later = dataclasses.replace(stage, code_version="99")
    assert fingerprint(trained, stage, "toy", "ngame") != fingerprint(trained, later, "toy", "ngame")


def test_nothing_else_changes_any_fingerprint(copied: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prints(copied)
    text = (copied.root / "params.yaml").read_text()
    (copied.root / "params.yaml").write_text("# a comment\n" + text)
    edit(copied, {"datasets/second": {"corpus": {}, "tokens": {}}, f"{EXPERIMENT}/source": "elsewhere.py"})
    copied.declare_experiment("toy", "ngame-short", "ngame", {"encoder": {"epochs": 1}})
    shutil.rmtree(copied.state)
    monkeypatch.setenv("XC_CHECKPOINT_SECONDS", "1")
    moved = copied.root.with_name("moved")
    copied.root.rename(moved)
    assert prints(Workspace(moved)) == before


def test_the_leaderboard_is_stale_when_an_evaluation_comes_or_changes(copied: Workspace) -> None:
    def board() -> str:
        return fingerprint(copied, STAGES["leaderboard"], "toy", None)

    seen = [board()]
    copied.declare_experiment("toy", "ngame-short", "ngame", {"encoder": {"encoder": {"name": "bag"}}})
    seen.append(board())
    shutil.copytree(copied.folder("evaluation", "toy", "ngame"), copied.folder("evaluation", "toy", "ngame-short"))
    seen.append(board())
    assert len(set(seen)) == 3


# running, and not running


def test_a_stage_that_is_up_to_date_is_skipped_and_one_by_force_is_not(copied: Workspace, lines: list[str]) -> None:
    folder = copied.folder("clusters", "toy", "ngame")
    before = folder.stat().st_ino
    ran = run_stage(copied, "clusters", "toy", "ngame")
    assert ran.skipped
    assert ran.costs == read_costs(copied, STAGES["clusters"], "toy", "ngame") != {}
    assert ran.facts["clusters"] > 1
    assert folder.stat().st_ino == before
    assert lines == ["clusters: up to date, nothing to do"]
    assert not run_stage(copied, "clusters", "toy", "ngame", force=True).skipped
    assert folder.stat().st_ino != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "order.npy").unlink(),
        lambda folder: os.truncate(folder / "order.npy", 10),
        lambda folder: shutil.rmtree(folder),
    ],
)
def test_an_artefact_that_is_damaged_to_see_is_made_anew(copied: Workspace, damage: Callable[[Path], object]) -> None:
    folder = copied.folder("clusters", "toy", "ngame")
    whole = artifacts.read_manifest(folder)
    damage(folder)
    assert not run_stage(copied, "clusters", "toy", "ngame").skipped
    assert artifacts.verify(folder) == whole


def test_costs_lie_outside_the_artefact(trained: Workspace) -> None:
    for name in NAMES:
        recipe = "ngame" if STAGES[name].scope == "experiment" else None
        costs = read_costs(trained, STAGES[name], "toy", recipe)
        assert costs["seconds"] > 0 and costs["peak_memory_mb"] > 1
        folder = trained.folder(name, "toy", "ngame")
        text = "".join(path.read_text() for path in sorted(folder.rglob("*.json")) if "tokenizer" not in path.name)
        assert "seconds" not in text and "latency" not in text.replace("latency_queries", ""), name
    assert read_costs(trained, STAGES["encoder"], "toy", "ngame")["train_seconds"] > 0
    assert read_costs(trained, STAGES["evaluation"], "toy", "ngame")["latency_p50_ms"] > 0
    assert not list((trained.state / "run").glob("*")), "a training that ended leaves no checkpoint"


def files_of(workspace: Workspace) -> dict[str, bytes]:
    """Return all files of all artefacts but the leaderboard, which shows times."""
    found = (path for path in workspace.data.rglob("*") if path.is_file() and "leaderboard" not in path.parts)
    return {path.relative_to(workspace.data).as_posix(): path.read_bytes() for path in found}


def beside(trained: Workspace, root: Path, stages: tuple[str, ...]) -> Workspace:
    """Return a second workspace with the same source files and parameters, and copies of ``stages``."""
    other = Workspace(root)
    for folder in (trained.raw("toy"), *(trained.folder(name, "toy", "ngame") for name in stages)):
        shutil.copytree(folder, other.root / folder.relative_to(trained.root))
    shutil.copyfile(trained.root / "params.yaml", other.root / "params.yaml")
    return other


def test_two_workspaces_make_the_same_tokens_to_the_byte(trained: Workspace, tmp_path: Path) -> None:
    """A vocabulary made from the corpus included."""
    other = beside(trained, tmp_path, ())
    for name in ("corpus", "tokens"):
        run_stage(other, name, "toy")
    expected = files_of(trained)
    assert [name for name, data in files_of(other).items() if data != expected[name]] == []


def test_two_workspaces_with_the_same_tokens_make_the_same_of_them_to_the_byte(
    trained: Workspace, tmp_path: Path
) -> None:
    """Weights, vectors, trees, pictures and manifests."""
    other = beside(trained, tmp_path, ("corpus", "tokens"))
    for name in NAMES[2:]:
        assert not run_stage(other, name, "toy", "ngame").skipped
    expected, found = files_of(trained), files_of(other)
    assert set(found) == set(expected)
    assert len(found) > 40
    assert [name for name in found if found[name] != expected[name]] == []


# moved, missing, busy


def set_rows(workspace: Workspace) -> None:
    path = workspace.root / "params.yaml"
    path.write_text(path.read_text().replace("sample: 50", "sample: 51"))


def touch_input(workspace: Workspace) -> None:
    path = workspace.folder("clusters", "toy", "ngame") / artifacts.MANIFEST
    path.write_text(path.read_text().replace('"cohesion"', '"another"'))


MOVES: dict[str, Callable[[Workspace], object]] = {
    "a parameter": set_rows,
    "an input": touch_input,
    "an input goes": lambda workspace: shutil.rmtree(workspace.folder("clusters", "toy", "ngame")),
    "the experiment goes": lambda workspace: (workspace.root / "params.yaml").write_text("datasets: {toy: {}}\n"),
    "the file breaks": lambda workspace: (workspace.root / "params.yaml").write_text("datasets: ["),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_while_a_stage_runs_is_noticed_and_nothing_kept(
    name: str, copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("xc_core.stages.negatives")
    run = module.run

    def moving(context: Context) -> None:
        run(context)
        MOVES[name](copied)

    folder = copied.folder("negatives", "toy", "ngame")
    before, cost = artifacts.read_manifest(folder), (copied.state / "cost" / "negatives@toy_ngame").read_text()
    monkeypatch.setattr(module, "run", moving)
    with pytest.raises(MovedError, match="the result was not kept") as caught:
        run_stage(copied, "negatives", "toy", "ngame", force=True)
    assert caught.value.exit_code == 76
    assert artifacts.verify(folder) == before
    assert (copied.state / "cost" / "negatives@toy_ngame").read_text() == cost
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", [name for name in NAMES if STAGES[name].deps])
def test_a_missing_input_names_the_command_that_makes_it(copied: Workspace, name: str) -> None:
    for dep in STAGES[name].deps:
        folder = copied.folder(dep, "toy", "ngame")
        aside = folder.with_name("aside")
        folder.rename(aside)
        with pytest.raises(MissingError) as caught:
            run_stage(copied, name, "toy", "ngame")
        aside.rename(folder)
        flags = "--dataset toy" + (" --recipe ngame" if STAGES[dep].scope == "experiment" else "")
        assert caught.value.do == f"make it first: xc run {dep} {flags}"
        assert str(folder) in caught.value.found


def test_a_workspace_without_anything_is_told_to_begin_at_the_beginning(workspace: Workspace) -> None:
    for name in NAMES[1:]:
        with pytest.raises(MissingError, match="xc run corpus --dataset toy"):
            run_stage(workspace, name, "toy", "ngame")
    shutil.rmtree(workspace.raw("toy"))
    with pytest.raises(MissingError, match="xc ingest PATH --dataset toy"):
        run_stage(workspace, "corpus", "toy")


def test_an_encoder_whose_tokenizer_the_dataset_does_not_list_says_where_to_add_it(
    copied: Workspace, edit: Edit
) -> None:
    """Making tokens again would not help: params.yaml does not ask for these."""
    edit(copied, {"datasets/toy/tokens": {}})
    with pytest.raises(ConfigError) as caught:
        run_stage(copied, "encoder", "toy", "ngame")
    assert "datasets.toy.tokens.tokenizers" in caught.value.expected
    assert caught.value.do == "add 'wordpiece' there in params.yaml, then: xc run tokens --dataset toy"


def test_a_second_run_of_a_stage_is_refused_and_others_are_not(copied: Workspace) -> None:
    with artifacts.locked(copied.scratch("lock", STAGES["clusters"], "toy", "ngame"), "x"):
        with pytest.raises(BusyError, match=f"clusters of toy/ngame being run by process {os.getpid()}"):
            run_stage(copied, "clusters", "toy", "ngame")
        assert run_stage(copied, "negatives", "toy", "ngame").skipped
        command = [sys.executable, "-m", "xc_core.cli.main", "run", "clusters", "--dataset", "toy", "--recipe", "ngame"]
        environment = {**os.environ, "XC_ROOT": str(copied.root)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert f"being run by process {os.getpid()}" in done.stderr


# names


def test_unknown_stages_and_impossible_refreshes_are_refused(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match=r"stage 'clustrs' \(nearest: 'clusters'\)"):
        find_stage("clustrs")
    with pytest.raises(UsageError, match="--refresh for index") as caught:
        run_stage(workspace, "index", "toy", "ngame", refresh=True)
    assert "classifier" in caught.value.expected
    with pytest.raises(UsageError, match="no recipe for index"):
        run_stage(workspace, "index", "toy")


def test_the_interval_of_checkpoints_is_set_by_the_machine(copied: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    module = importlib.import_module("xc_core.stages.clusters")
    monkeypatch.setattr(module, "run", lambda context: seen.append(context.checkpoint_seconds))
    for value in (None, "0.5"):
        if value is not None:
            monkeypatch.setenv("XC_CHECKPOINT_SECONDS", value)
        run_stage(copied, "clusters", "toy", "ngame", force=True)
    assert seen == [60.0, 0.5]
    monkeypatch.setenv("XC_CHECKPOINT_SECONDS", "often")
    with pytest.raises(ConfigError, match="XC_CHECKPOINT_SECONDS=often"):
        run_stage(copied, "clusters", "toy", "ngame", force=True)


def test_a_stage_reads_only_what_it_has_declared(copied: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("xc_core.stages.clusters")
    monkeypatch.setattr(module, "run", lambda context: context.input("fusion"))
    with pytest.raises(ConfigError, match="clusters reading fusion"):
        run_stage(copied, "clusters", "toy", "ngame", force=True)


# the registry


def test_stages_come_after_what_they_need_and_have_code() -> None:
    seen: set[str] = set()
    for name, stage in STAGES.items():
        assert set(stage.deps) <= seen
        assert stage.name == name and stage.does.endswith(".")
        assert callable(code(stage, "run"))
        seen.add(name)
    assert downstream("fusion") == ("evaluation", "model", "leaderboard")
    assert downstream("corpus") == (*NAMES[1:], "leaderboard")
    assert downstream("leaderboard") == ()


def test_manifests_say_what_was_made_with_which_config(trained: Workspace) -> None:
    manifest = artifacts.verify(trained.folder("clusters", "toy", "ngame"), kind="clusters")
    assert manifest.facts["config"] == {"size": 4, "radius": 0.8, "seed": 0}
    assert json.loads(manifest.to_json())["kind"] == "clusters"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a peak")
def test_the_peak_memory_of_a_stage_is_not_that_of_the_stage_before() -> None:
    block = bytearray(200 << 20)
    block[:: 1 << 12] = b"1" * (len(block) >> 12)
    high = peak_memory_mb()
    del block
    forget_peak_memory()
    assert peak_memory_mb() < high - 150
