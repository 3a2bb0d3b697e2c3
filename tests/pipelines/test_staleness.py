"""Staleness in Dagster: the states of ``xc status``, and the sensor that reports those that have changed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import StepMaterializationData
from dagster._core.test_utils import create_run_for_test

from assets import staleness
from assets.dagster_internals import WILL_RETRY, CancelledError
from assets.staleness import PartitionState, mark, partition_states
from pipelines.launcher import end_lost_runs
from tests.pipelines.recorded import Recorded
from tests.pipelines.recorded import record as record
from tests.pipelines.recorded import silent_mlflow as silent_mlflow
from tests.pipelines.ticker import Ticker
from xc_core.chain import STAGES, Workspace
from xc_core.chain.status import Status
from xc_core.errors import UnavailableError

pytestmark = pytest.mark.filterwarnings("ignore")

PASSED = {
    Status.FRESH: True,
    Status.KEPT: True,
    Status.UNKNOWN: True,
    Status.STALE: False,
    Status.DAMAGED: False,
    Status.MISSING: False,
}


# one state


@pytest.mark.parametrize("status", Status)
def test_the_check_fails_if_an_artefact_is_out_of_date_damaged_or_missing(status: Status) -> None:
    found = PartitionState("encoder", "toy|ngame", status, "settings changed").evaluation
    assert found.passed is PASSED[status]
    assert found.metadata == {
        "status": dg.MetadataValue.text(str(status)),
        "why": dg.MetadataValue.text("settings changed"),
    }


def test_a_state_is_a_warning_for_its_partition_that_stops_nothing() -> None:
    found = PartitionState("corpus", "toy", Status.FRESH, "").evaluation
    assert (found.asset_key, found.check_name) == (dg.AssetKey("corpus"), "up_to_date")
    assert (found.partition, found.severity, found.blocking) == ("toy", dg.AssetCheckSeverity.WARN, False)
    assert found.metadata["why"] == dg.MetadataValue.text("-")


KILLED = """
import os, signal
import dagster as dg
from assets import staleness

class State:
    @property
    def evaluation(self):
        os.kill(os.getpid(), signal.SIGKILL)

staleness.report(dg.DagsterInstance.get(), [State()])
"""


def test_a_report_whose_process_is_killed_ends_as_failed_and_is_not_retried(tmp_path: Path) -> None:
    """The code server makes it: a run that nobody ends would be started for ever."""
    (tmp_path / "dagster.yaml").write_text("run_retries: {enabled: true, max_retries: 1}\n", "utf-8")
    ended = subprocess.run(
        [sys.executable, "-c", KILLED], env={**os.environ, "DAGSTER_HOME": str(tmp_path)}, check=False, timeout=120
    )
    assert ended.returncode == -signal.SIGKILL
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        (run,) = instance.get_runs()
        assert run.status is dg.DagsterRunStatus.STARTED
        assert end_lost_runs(instance) == [run.run_id]
        (run,) = instance.get_runs()
        assert run.status is dg.DagsterRunStatus.FAILURE
        assert run.tags[WILL_RETRY] == "false"


# the states of a project


@pytest.fixture
def own(trained: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the trained toy project, to be changed."""
    return Workspace(Path(shutil.copytree(trained.root, tmp_path / "own")))


@pytest.mark.usefixtures("starting")
def test_states_are_those_of_xc_status(own: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_ROOT", "/another/project")
    shutil.rmtree(own.folder("audit", "toy", "ngame"))
    own.params.declare_experiment("toy", "other", "ngame", {})
    found = {state.key: state.status for state in partition_states(own)}
    per_dataset, of_recipe = (
        [name for name, stage in STAGES.items() if stage.scope == scope and stage.versioned]
        for scope in ("dataset", "experiment")
    )
    expected = {f"{name}@toy": "up to date" for name in per_dataset}
    expected |= {f"{name}@toy|other": "missing" for name in of_recipe}
    assert {key: status for key, status in found.items() if "|ngame" not in key} == expected
    assert {key for key in found if "|ngame" in key} == {f"{name}@toy|ngame" for name in of_recipe}
    assert found["audit@toy|ngame"] == "missing"


def test_a_failure_of_xc_status_is_an_error_with_its_message(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("experiments: [1]")
    with pytest.raises(UnavailableError, match=r"xc status failing: (.|\n)*experiments = \[1\]"):
        partition_states(Workspace(tmp_path))


def test_xc_status_is_stopped_after_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert staleness._SECONDS == 60
    monkeypatch.setattr(staleness, "_SECONDS", 0.01)
    with pytest.raises(UnavailableError, match="xc status still running after") as caught:
        partition_states(Workspace(tmp_path))
    assert "run xc status by hand" in caught.value.do


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("is_early", [True, False])
def test_a_stopped_xc_status_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal_: signal.Signals, is_early: bool
) -> None:
    """Stopping xc ui during a tick stops both. Before its handlers are set, the command ends by the signal itself."""
    code = -signal_ if is_early else 128 + signal_
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, code, "", ""))
    with pytest.raises(CancelledError, match="xc status stopped"):
        partition_states(Workspace(tmp_path))


# what makes the sensor look


def put(path: Path, text: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (1_000_000, 1_000_000))


PLACES = {
    "params.yaml": "params.yaml",
    "a raw file": "data/toy/raw/train.csv",
    "a raw file in a folder": "data/toy/raw/deep/train.csv",
    "a manifest of a dataset": "data/toy/corpus/manifest.json",
    "a manifest of an experiment": "data/toy/ngame/encoder/manifest.json",
    "a manifest of a token store": "data/toy/tokens/minilm/manifest.json",
    "the source of a recipe": "recipes/ngame.yaml",
    "the source of a dataset": "recipes/dataset.yaml",
    "the weights of a local model": "models/tiny/model.safetensors",
    "the tokenizer of a local model": "models/tiny/tokenizer.json",
}
UNWATCHED = (
    "data/toy/ngame/encoder/model.bin",
    "data/toy/settings/corpus.json",
    ".xc/cost/corpus",
    "recipes/a.yaml",
    "models/tiny/notes.md",
)


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    """A project with each kind of file that the sensor watches."""
    pair = {"dataset": "toy", "recipe": "ngame", "source": "recipes/ngame.yaml"}
    tokens = {"tokenizers": ["minilm", str(tmp_path / "models" / "tiny")]}
    content = {
        "datasets": {"toy": {"source": "recipes/dataset.yaml", "tokens": tokens}, "bare": None},
        "experiments": {"toy_ngame": pair},
    }
    for place in PLACES.values():
        put(tmp_path / place)
    put(tmp_path / "params.yaml", json.dumps(content))
    return Workspace(tmp_path)


@pytest.mark.parametrize("what", PLACES)
def test_the_mark_changes_with_every_watched_file(project: Workspace, what: str) -> None:
    before, path = mark(project), project.root / PLACES[what]
    assert mark(project) == before
    content = path.read_text()
    put(path, f"{content} ")
    longer = mark(project)
    put(path, content)
    assert mark(project) == before
    os.utime(path, (1_000_001, 1_000_001))
    assert len({before, longer, mark(project)}) == 3, "another size, another time"


@pytest.mark.parametrize("what", [what for what in PLACES if what != "params.yaml"])
def test_the_mark_changes_if_a_watched_file_is_deleted(project: Workspace, what: str) -> None:
    before = mark(project)
    (project.root / PLACES[what]).unlink()
    assert mark(project) != before


@pytest.mark.parametrize("place", ["data/toy/raw/new.csv", "data/toy/ngame/fusion/manifest.json"])
def test_the_mark_changes_with_a_new_file(project: Workspace, place: str) -> None:
    before = mark(project)
    put(project.root / place)
    assert mark(project) != before


@pytest.mark.parametrize("place", UNWATCHED)
def test_the_mark_does_not_change_with_other_files(project: Workspace, place: str) -> None:
    before = mark(project)
    put(project.root / place)
    assert mark(project) == before


def test_there_is_no_mark_while_a_watched_file_is_deleted(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness, "plugin_files", lambda: [project.root / "gone"])
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    assert mark(project) == ""


# the sensor


class Reported:
    """The sensor on stand-ins for the states, and the checks that it reports."""

    def __init__(self, project: Workspace, instance: dg.DagsterInstance) -> None:
        self.project, self.instance, self.states = project, instance, dict[str, str]()
        self.ticker, self.calls = Ticker(project, instance, "staleness"), 0

    def partition_states(self, workspace: Workspace) -> list[PartitionState]:
        assert workspace == self.project
        self.calls += 1
        return [
            PartitionState(stage, "toy|ngame", Status(status), "settings changed" if status == "out of date" else "")
            for stage, status in self.states.items()
        ]

    def tick(self, **states: str) -> str:
        """Set the status of stages, change params.yaml, evaluate the sensor; return its message."""
        self.states |= {name: status.replace("_", " ") for name, status in states.items()}
        with self.project.params.path.open("a") as stream:
            stream.write("\n")
        return self.look()

    def look(self) -> str:
        found = self.ticker.tick()
        assert found.run_requests == []
        return str(found.skip_message)

    def of(self, stage: str) -> list[tuple[bool, str]]:
        """Return passed and status of every report on a stage, the last one first."""
        key = dg.AssetCheckKey(dg.AssetKey(stage), "up_to_date")
        records = self.instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
        events = [record.event.dagster_event for record in records if record.event is not None]
        found = [event.asset_check_evaluation_data for event in events if event is not None]
        assert all(one.partition == "toy|ngame" for one in found)
        return [(one.passed, str(one.metadata["status"].value)) for one in found]


@pytest.fixture
def reported(project: Workspace, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Reported:
    found = Reported(project, instance)
    monkeypatch.setattr(staleness, "partition_states", found.partition_states)
    return found


def test_the_first_tick_reports_every_artefact_that_exists(reported: Reported) -> None:
    message = reported.tick(encoder="up to date", clusters="out of date", fusion="missing")
    assert message == "2 of 2 artefacts reported"
    (run,) = reported.instance.get_runs()
    assert (run.job_name, run.tags["dagster/sensor_name"]) == ("staleness", "staleness"), "no person launched it"
    assert [reported.of(stage) for stage in ("encoder", "clusters", "fusion")] == [
        [(True, "up to date")], [(False, "out of date")], [],
    ]  # fmt: skip


def test_nothing_is_asked_if_no_watched_file_has_changed(reported: Reported) -> None:
    reported.tick(encoder="up to date")
    assert (reported.look(), reported.look(), reported.calls) == ("nothing has changed", "nothing has changed", 1)
    assert len(reported.of("encoder")) == 1


def test_only_states_that_have_changed_are_reported(reported: Reported) -> None:
    reported.tick(encoder="up to date", clusters="up to date")
    assert reported.tick() == "0 of 2 artefacts reported"
    assert reported.tick(clusters="out of date") == "1 of 2 artefacts reported"
    assert reported.tick(clusters="up to date") == "1 of 2 artefacts reported"
    assert reported.of("encoder") == [(True, "up to date")]
    assert reported.of("clusters") == [(True, "up to date"), (False, "out of date"), (True, "up to date")]


def test_another_reason_is_reported_too(reported: Reported, monkeypatch: pytest.MonkeyPatch) -> None:
    reported.tick(encoder="out of date")
    other = [PartitionState("encoder", "toy|ngame", Status.STALE, "corpus changed")]
    monkeypatch.setattr(staleness, "partition_states", lambda workspace: other)
    assert reported.tick() == "1 of 1 artefacts reported"
    assert reported.of("encoder") == [(False, "out of date")] * 2


def test_an_artefact_that_is_deleted_fails_once_and_passes_when_it_is_made_again(reported: Reported) -> None:
    reported.tick(encoder="up to date")
    assert reported.tick(encoder="missing") == "1 of 1 artefacts reported"
    assert reported.tick() == "0 of 1 artefacts reported"
    reported.tick(encoder="up to date")
    assert reported.of("encoder") == [(True, "up to date"), (False, "missing"), (True, "up to date")]


def test_a_tick_that_fails_is_repeated(reported: Reported, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(workspace: Workspace) -> list[PartitionState]:
        raise UnavailableError("xc status failing", expected="exit code 0", do="run xc doctor")

    with monkeypatch.context() as failing:
        failing.setattr(staleness, "partition_states", fail)
        with pytest.raises(UnavailableError):
            reported.tick(encoder="up to date")
    assert reported.of("encoder") == []
    assert reported.look() == "1 of 1 artefacts reported"


def test_a_tick_that_is_stopped_shows_no_error_and_is_repeated(
    reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It showed 50 lines of stack."""

    def stopped(workspace: Workspace) -> list[PartitionState]:
        raise CancelledError("xc status stopped")

    with monkeypatch.context() as stopping:
        stopping.setattr(staleness, "partition_states", stopped)
        assert reported.tick(encoder="up to date") == "xc status stopped"
    assert reported.of("encoder") == []
    assert reported.look() == "1 of 1 artefacts reported"


def test_what_changes_while_the_sensor_looks_is_seen_by_the_next_tick(
    reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(workspace: Workspace) -> list[PartitionState]:
        found = reported.partition_states(workspace)
        put(workspace.root / PLACES["a manifest of an experiment"], "of the encoder that has just been made")
        return found

    with monkeypatch.context() as changing:
        changing.setattr(staleness, "partition_states", meanwhile)
        reported.tick(encoder="out of date")
    reported.states["encoder"] = "up to date"
    assert reported.look() == "1 of 1 artefacts reported"


def at_work(instance: dg.DagsterInstance, partition: str = "toy|ngame", *chosen: str) -> str:
    """Return the id of a started run of the job retrain, or of ``chosen`` assets of it."""
    selection = frozenset(map(dg.AssetKey, chosen)) or None
    tags = {"dagster/partition": partition}
    status = dg.DagsterRunStatus.STARTED
    return create_run_for_test(instance, "retrain", tags=tags, asset_selection=selection, status=status).run_id


def recorded(instance: dg.DagsterInstance, run: str, stage: str) -> None:
    """Record an artefact as a run does at the end of its stage."""
    made = StepMaterializationData(dg.AssetMaterialization(stage, partition="toy|ngame"))
    event = dg.DagsterEvent("ASSET_MATERIALIZATION", "retrain", event_specific_data=made)
    instance.report_dagster_event(event, run)


@pytest.mark.parametrize("before", ["", "out of date"])
@pytest.mark.parametrize("chosen", [(), ("encoder", "model")])
def test_an_artefact_that_a_run_has_yet_to_record_is_reported_afterwards(
    reported: Reported, before: str, chosen: tuple[str, ...]
) -> None:
    """Dagster showed "Not Evaluated" at the model after each release during which the sensor looked."""
    earlier = [(False, before)] if before else []
    if before:
        reported.tick(model=before)
    run = at_work(reported.instance, "toy|ngame", *chosen)
    recorded(reported.instance, run, "encoder")
    assert reported.tick(encoder="up to date", model="up to date") == "1 of 2 artefacts reported"
    assert [reported.of(stage) for stage in ("encoder", "model")] == [[(True, "up to date")], earlier]
    assert reported.look() == "0 of 2 artefacts reported", "it looks again although no file has changed"
    recorded(reported.instance, run, "model")
    assert reported.look() == "1 of 2 artefacts reported"
    assert reported.of("model") == [(True, "up to date"), *earlier]
    assert reported.look() == "nothing has changed"


def test_an_artefact_that_is_deleted_before_its_run_has_recorded_it_is_reported(reported: Reported) -> None:
    """The last report is still the one of before the run: that there was one."""
    reported.tick(model="out of date")
    at_work(reported.instance)
    assert reported.tick(model="up to date") == "0 of 1 artefacts reported"
    assert reported.tick(model="missing") == "1 of 1 artefacts reported"
    assert reported.of("model") == [(False, "missing"), (False, "out of date")]


def test_a_run_that_ends_without_a_record_leaves_the_report_to_the_sensor(reported: Reported) -> None:
    run = at_work(reported.instance)
    assert reported.tick(model="up to date") == "0 of 1 artefacts reported"
    found = reported.instance.get_run_by_id(run)
    assert found is not None
    reported.instance.report_run_failed(found, "the tracking server does not answer")
    assert reported.look() == "1 of 1 artefacts reported"


@pytest.mark.parametrize(("partition", "chosen"), [("toy|other", ()), ("toy", ()), ("toy|ngame", ("encoder",))])
def test_a_run_of_something_else_delays_no_report(reported: Reported, partition: str, chosen: tuple[str, ...]) -> None:
    at_work(reported.instance, partition, *chosen)
    assert reported.tick(model="up to date") == "1 of 1 artefacts reported"


def test_what_is_out_of_date_or_missing_is_reported_during_a_run(reported: Reported) -> None:
    reported.tick(encoder="up to date")
    at_work(reported.instance)
    assert reported.tick(encoder="missing", clusters="out of date") == "2 of 2 artefacts reported"


# the check of a run


@pytest.mark.parametrize(("stage", "job", "passed"), [("tokens", "prepare", [True]), ("leaderboard", "compare", [])])
def test_a_run_passes_the_check_of_an_artefact_it_has_made(
    record: Callable[[Workspace], Recorded], trained: Workspace, stage: str, job: str, passed: list[bool]
) -> None:
    result = record(trained).run(job, "toy", asset_selection=[dg.AssetKey(stage)])
    found = [one for one in result.get_asset_check_evaluations() if one.check_name == "up_to_date"]
    assert [one.passed for one in found] == passed
    assert all(one.metadata == {"status": dg.MetadataValue.text("up to date")} for one in found)
