"""Running a stage: once for the same parameters and inputs, again if the artefact is damaged, never twice at a time."""

from __future__ import annotations

import importlib
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import forks
from tests.chain.toy import NAMES, folder_of, parts_of, print_of, read_json, reads, recipe_of
from xc_core import artifacts, manifests
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.chain.adopt import share
from xc_core.chain.context import Context
from xc_core.chain.costs import forget_peak_memory, gigabytes, machine, peak_memory_mb, processor, read_costs
from xc_core.cluster import Clusters
from xc_core.errors import BusyError, ConfigError, MissingError, StorageError, UnavailableError, UsageError
from xc_core.fusion import FittedFusion
from xc_core.locks import locked
from xc_core.params import plain


def stage_code(name: str, run: Callable[[Context[Any]], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stage run other code."""
    monkeypatch.setattr(importlib.import_module(f"xc_core.stages.{name}"), "run", run)


# up to date, forced, damaged


def test_a_stage_that_is_up_to_date_is_skipped_and_one_by_force_is_not(copied: Workspace, lines: list[str]) -> None:
    folder = folder_of(copied, "clusters")
    before = folder.stat().st_ino
    ran = run_stage(copied, "clusters", "toy", "ngame")
    assert ran.skipped
    assert ran.costs == read_costs(copied, "clusters", "toy", "ngame") != {}
    assert ran.facts["clusters"] > 1
    assert folder.stat().st_ino == before
    assert lines == ["clusters: up to date"]
    assert not run_stage(copied, "clusters", "toy", "ngame", force=True).skipped
    assert folder.stat().st_ino != before


def test_a_stage_that_is_due_does_not_run_without_its_lock(copied: Workspace) -> None:
    """One that is up to date needs none."""
    lock, folder = copied.scratch("lock", "clusters", "toy", "ngame"), folder_of(copied, "clusters")
    lock.unlink(missing_ok=True)
    lock.mkdir(parents=True)
    assert run_stage(copied, "clusters", "toy", "ngame").skipped
    shutil.rmtree(folder)
    with pytest.raises(StorageError, match="clusters@toy_ngame"):
        run_stage(copied, "clusters", "toy", "ngame")
    assert not folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "order.npy").unlink(),
        lambda folder: os.truncate(folder / "order.npy", 10),
        lambda folder: shutil.rmtree(folder),
    ],
)
def test_an_artefact_whose_damage_shows_is_made_again(
    copied: Workspace, damage: Callable[[Path], object], lines: list[str]
) -> None:
    folder = folder_of(copied, "clusters")
    whole = manifests.read_manifest(folder)
    damage(folder)
    there = folder.exists()
    assert not run_stage(copied, "clusters", "toy", "ngame").skipped
    assert artifacts.verify(folder) == whole
    said = "clusters: rebuilding, the existing artefact is damaged ("
    assert any(line.startswith(said) for line in lines) == there


def test_the_stages_before_and_after_a_damaged_artefact_still_run(copied: Workspace) -> None:
    (folder_of(copied, "clusters") / "manifest.json").write_text("{")
    for name in ("embeddings", "negatives", "fusion"):
        assert run_stage(copied, name, "toy", "ngame").skipped


def test_an_artefact_records_what_it_was_made_from_beside_its_content(trained: Workspace) -> None:
    for name in NAMES:
        folder, partition = folder_of(trained, name), trained.params.partition("toy", recipe_of(name))
        made = artifacts.read_made(folder)
        assert made.fingerprint == print_of(trained, name)
        assert made.depends == parts_of(trained, name)
        assert (made.settings, made.refreshed) == (plain(partition.settings(name)), False)
        assert read_json(folder / manifests.MANIFEST).keys() == {"kind", "format", "files", "digest"}
        assert artifacts.verify(folder).kind == name
    assert artifacts.read_made(folder_of(trained, "clusters")).settings == {"size": 4, "seed": 0}


# costs


def test_costs_lie_outside_the_artefact(trained: Workspace) -> None:
    for name in NAMES:
        costs = read_costs(trained, name, "toy", recipe_of(name))
        assert costs["seconds"] > 0 and costs["peak_memory_mb"] > 1
        folder = folder_of(trained, name)
        text = "".join(path.read_text() for path in sorted(folder.rglob("*.json")) if "tokenizer" not in path.name)
        assert "seconds" not in text and "latency" not in text.replace("latency_queries", ""), name
    assert read_costs(trained, "encoder", "toy", "ngame")["train_seconds"] > 0
    assert read_costs(trained, "evaluation", "toy", "ngame")["latency_p50_ms"] > 0
    assert not list((trained.state / "run").glob("*")), "a training that ended leaves no checkpoint"


def test_costs_name_the_machine_apart_from_the_figures(trained: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads(trained.scratch("cost", "encoder", "toy", "ngame").read_text("utf-8"))
    assert "machine" not in read_costs(trained, "encoder", "toy", "ngame")
    assert content["machine"] == machine()
    for asked, words in (("1", "1 thread,"), ("3", "3 threads,")):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert words in machine()


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b"1", b"\xff", b'{"seconds": "x"}'])
def test_a_record_of_costs_that_is_damaged_counts_as_none(workspace: Workspace, content: bytes) -> None:
    """A report of the model, and a stage that is up to date, ended with a fault of xc."""
    artifacts.write_file(workspace.scratch("cost", "corpus", "toy", None), content)
    assert read_costs(workspace, "corpus", "toy", None) == {}


def test_a_processor_has_the_name_that_the_system_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    content = "processor\t: 0\nmodel name\t: A Processor 9\nmodel name\t: Another\n"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda *_: content)
        assert processor() == "A Processor 9"
        patch.setattr(Path, "read_text", lambda *_: "processor\t: 0\n")
        assert processor() == (platform.processor() or platform.machine())


def test_checkpoints_stay_if_nothing_is_taken_over(copied: Workspace) -> None:
    """A training that was stopped goes on from them."""
    stopped = copied.scratch("run", "encoder", "toy", "ngame")
    stopped.mkdir(parents=True)
    assert share(copied, "encoder", "toy", "ngame") is None
    assert stopped.is_dir()


def test_a_stage_that_never_ran_here_has_no_costs(workspace: Workspace) -> None:
    assert read_costs(workspace, "encoder", "toy", "ngame") == {}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux can reset the peak")
def test_the_peak_memory_of_a_stage_is_not_that_of_the_stage_before() -> None:
    block = bytearray(200 << 20)
    block[:: 1 << 12] = b"1" * (len(block) >> 12)
    high = peak_memory_mb()
    del block
    forget_peak_memory()
    assert peak_memory_mb() < high - 150


@pytest.mark.parametrize(("system", "unit"), [("linux", 1 << 10), ("darwin", 1)])
def test_without_proc_the_peak_is_what_the_system_counts_in_its_own_unit(
    system: str, unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> str:
        raise OSError("no /proc")

    monkeypatch.setattr(Path, "read_text", fail)
    monkeypatch.setattr(sys, "platform", system)
    used = SimpleNamespace(ru_maxrss=(300 << 20) // unit)
    monkeypatch.setattr(resource, "getrusage", lambda who: used)
    assert peak_memory_mb() == 300


@pytest.mark.parametrize(("size", "shown"), [(1e9, "1.0 GB"), (1.2e12, "1,200.0 GB"), (9.99e8, "999 MB"), (0, "0 MB")])
def test_bytes_are_shown_in_units_of_a_thousand(size: float, shown: str) -> None:
    assert gigabytes(size) == shown


# missing, busy, wrong


@pytest.mark.parametrize("name", [name for name in NAMES if STAGES[name].deps])
def test_a_missing_input_names_the_command_that_makes_it(copied: Workspace, name: str) -> None:
    for dep in reads(STAGES[name]):
        folder = folder_of(copied, dep)
        aside = folder.with_name("aside")
        folder.rename(aside)
        with pytest.raises(MissingError) as caught:
            run_stage(copied, name, "toy", "ngame")
        aside.rename(folder)
        flags = "--dataset toy" + (" --recipe ngame" if STAGES[dep].scope == "experiment" else "")
        assert caught.value.do == f"make it first: xc run {dep} {flags}"
        assert caught.value.expected == f"the artefact of {dep}"
        assert str(folder) in caught.value.found


def test_if_several_inputs_are_missing_the_command_makes_all(copied: Workspace) -> None:
    """`xc evaluate` of what was never trained named one stage after the other."""
    for name in ("encoder", "embeddings"):
        artifacts.remove(folder_of(copied, name))
    with pytest.raises(MissingError) as caught:
        run_stage(copied, "evaluation", "toy", "ngame")
    assert caught.value.do == f"make it first: {copied.params.train_command('toy', 'ngame')}"


def test_in_a_workspace_without_artefacts_every_stage_asks_for_the_first(workspace: Workspace) -> None:
    for name in NAMES[1:]:
        with pytest.raises(MissingError, match="xc run corpus --dataset toy"):
            run_stage(workspace, name, "toy", "ngame")
    shutil.rmtree(workspace.raw("toy"))
    with pytest.raises(MissingError, match="xc ingest PATH --dataset toy"):
        run_stage(workspace, "corpus", "toy")


def test_a_second_run_of_a_stage_is_refused_and_others_are_not(copied: Workspace) -> None:
    with locked(copied.scratch("lock", "clusters", "toy", "ngame"), "x"):
        with pytest.raises(BusyError, match=f"clusters of toy/ngame, which process {os.getpid()} is running"):
            run_stage(copied, "clusters", "toy", "ngame")
        assert run_stage(copied, "negatives", "toy", "ngame").skipped
        command = ("run", "clusters", "--dataset", "toy", "--recipe", "ngame")
        done = forks.run(forks.XC, *command, env={**os.environ, "XC_ROOT": str(copied.root)})
    assert done.returncode == 75
    assert f"which process {os.getpid()} is running" in done.stderr


def test_an_unknown_stage_and_a_stage_without_its_recipe_are_refused(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match=r"stage 'clustrs' \(nearest: 'clusters'\)"):
        run_stage(workspace, "clustrs", "toy", "ngame")
    with pytest.raises(UsageError, match="no recipe for scores"):
        run_stage(workspace, "scores", "toy")


# what a stage is given


def test_the_interval_of_checkpoints_is_set_by_the_machine(copied: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from xc_core.environment import checkpoint_seconds

    seen: list[float] = []
    stage_code("clusters", lambda context: seen.append(checkpoint_seconds()), monkeypatch)
    for value in (None, "", "0.5"):
        if value is not None:
            monkeypatch.setenv("XC_CHECKPOINT_SECONDS", value)
        run_stage(copied, "clusters", "toy", "ngame", force=True)
    assert seen == [60.0, 60.0, 0.5]


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("XC_CHECKPOINT_SECONDS", "nan", "a number from -1 to 1,000,000,000"),
        ("XC_DEVICE", "gpu", "auto, cpu, cuda or cuda:N, for instance cuda:0"),
        ("XC_DEVICE", "cuda:99", "a GPU that torch can use"),
    ],
)
def test_a_wrong_variable_of_the_machine_is_refused_before_the_stage_starts(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    """The stage fusion uses neither. It was refused when its artefact was complete, or not at all."""
    started: list[Context[Any]] = []
    stage_code("fusion", started.append, monkeypatch)
    monkeypatch.setenv(variable, value)
    with pytest.raises((ConfigError, UnavailableError)) as caught:
        run_stage(copied, "fusion", "toy", "ngame", force=True)
    assert (caught.value.expected, started) == (expected, [])


def test_a_stage_reads_only_what_it_declares(copied: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    stage_code("clusters", lambda context: context.read(FittedFusion), monkeypatch)
    with pytest.raises(ConfigError, match="a stage that reads fusion, which it does not declare") as caught:
        run_stage(copied, "clusters", "toy", "ngame", force=True)
    assert caught.value.expected == "one of its inputs: corpus, embeddings"


def test_a_stage_gets_its_settings_its_place_and_its_inputs(copied: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Context[Any]] = []
    stage_code("audit", lambda context: seen.append(context), monkeypatch)
    run_stage(copied, "audit", "toy", "ngame", force=True)
    [context] = seen
    assert context.settings == copied.params.experiment("toy", "ngame").recipe.audit
    assert (context.run.dataset, context.run.recipe, context.run.title) == ("toy", "ngame", "toy / ngame")
    assert context.run.checkpoints == copied.state / "run" / "audit@toy_ngame"
    assert context.run.fingerprint == print_of(copied, "audit")
    assert context.inputs == {dep: folder_of(copied, dep) for dep in STAGES["audit"].deps}
    assert len(context.read(Clusters).sizes) > 1
    assert context.experiments is None


def test_a_stage_of_the_encoder_reads_the_tokens_of_its_tokenizer(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    stage_code("encoder", lambda context: seen.append(context.inputs["tokens"]), monkeypatch)
    run_stage(copied, "encoder", "toy", "ngame", force=True)
    assert seen == [copied.folder("tokens", "toy") / "wordpiece"]


def test_a_stage_starts_without_the_free_memory_of_the_one_before(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    runner = importlib.import_module("xc_core.chain.runner")
    monkeypatch.setattr(runner, "give_back", lambda: calls.append("returned"))
    monkeypatch.setattr(runner, "forget_peak_memory", lambda: calls.append("peak forgotten"))
    run_stage(workspace, "corpus", "toy", force=True)
    assert calls == ["returned", "peak forgotten"]
