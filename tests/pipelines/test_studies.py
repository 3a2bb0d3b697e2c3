"""Studies of ``xc tune`` in Dagster: the asset ``study``, a partition per study, reported by a sensor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from assets import studies
from tests.conftest import make_workspace
from tests.pipelines.ticker import Ticker
from tests.tune.records import BASE, CHANGES, changes, study, trial
from xc_core.chain import Workspace
from xc_core.tune import record
from xc_core.tune.record import StudyRecord, TrialRecord, record_file, study_folder

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as opened:
        yield opened


def write(workspace: Workspace, record: StudyRecord, when: int) -> None:
    folder = study_folder(workspace, record.dataset, record.name)
    record.write(folder)
    os.utime(record_file(folder), (when, when))


def test_each_new_state_of_a_study_is_shown_once(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    workspace = make_workspace(tmp_path)
    ticker = Ticker(workspace, instance, "studies")
    assert ticker.tick().asset_events == []
    first, other = study(trial(0, 50.0)), study(name="wide")
    write(workspace, first, 1_000)
    write(workspace, other, 1_000)
    events = {event.partition: event for event in ticker.tick().asset_events}
    assert set(events) == {"toy/ngame", "toy/wide"}
    shown = {name: value.value for name, value in events["toy/ngame"].metadata.items()}
    assert (shown["best"], shown["PSP_at_5"], shown["trials"], shown["state"]) == (50.0, 45.0, "1 done", "running")
    assert "| trial |" in str(shown["best trials"])
    assert str(shown["train it"]).startswith("xc train --dataset toy --recipe ngame-tuned")
    assert "best" not in events["toy/wide"].metadata
    assert ticker.tick().asset_events == []
    write(workspace, replace(first, trials=(*first.trials, trial(1, 70.0)), state="all trials done"), 2_000)
    (event,) = ticker.tick().asset_events
    assert (event.partition, event.metadata["best"].value) == ("toy/ngame", 70.0)


@pytest.mark.parametrize(("trials", "trained"), [(CHANGES, "--set encoder.loss.margin=0.5"), (CHANGES[:1], "")])
def test_a_study_of_single_changes_shows_the_differences(
    tmp_path: Path, instance: dg.DagsterInstance, trials: tuple[TrialRecord, ...], trained: str
) -> None:
    workspace = make_workspace(tmp_path)
    write(workspace, changes(BASE, *trials), 1_000)
    (event,) = Ticker(workspace, instance, "studies").tick().asset_events
    assert "+2.00 [+1.00, +3.00]" in str(event.metadata["best trials"].value)
    assert ("train it" in event.metadata) is bool(trained)
    assert not trained or trained in str(event.metadata["train it"].value), "the best is not clearly better"


def test_a_study_whose_record_cannot_be_read_hides_no_other(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """One is damaged, one is no file; both stay unread until they change."""
    workspace = make_workspace(tmp_path)
    ticker = Ticker(workspace, instance, "studies")
    write(workspace, study(name="damaged"), 1_000)
    record_file(study_folder(workspace, "toy", "damaged")).write_text("null")
    record_file(study_folder(workspace, "toy", "folder")).mkdir(parents=True)
    write(workspace, study(trial(0, 50.0)), 1_000)
    assert [event.partition for event in ticker.tick().asset_events] == ["toy/ngame"]
    assert ticker.tick().asset_events == []
    write(workspace, study(name="damaged"), 2_000)
    assert [event.partition for event in ticker.tick().asset_events] == ["toy/damaged"], "it was written again"


def test_a_study_that_is_deleted_while_the_sensor_looks_hides_no_other(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = make_workspace(tmp_path)
    write(workspace, study(trial(0, 50.0)), 1_000)
    found = [study_folder(workspace, "toy", "deleted"), *record.studies(workspace)]
    monkeypatch.setattr(studies, "studies", lambda workspace: found)
    assert [event.partition for event in Ticker(workspace, instance, "studies").tick().asset_events] == ["toy/ngame"]


def test_a_trial_that_ends_while_the_sensor_reads_is_shown_by_the_next_tick(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, read = make_workspace(tmp_path), StudyRecord.read
    first = study(trial(0, 50.0))
    write(workspace, first, 1_000)

    def meanwhile(folder: Path) -> StudyRecord:
        found = read(folder)
        write(workspace, replace(first, trials=(*first.trials, trial(1, 70.0))), 2_000)
        return found

    ticker = Ticker(workspace, instance, "studies")
    with monkeypatch.context() as ending:
        ending.setattr(StudyRecord, "read", meanwhile)
        assert [event.metadata["best"].value for event in ticker.tick().asset_events] == [50.0]
    assert [event.metadata["best"].value for event in ticker.tick().asset_events] == [70.0]


def test_the_daemon_stores_partitions_and_materialisations(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """What the sensor returns is handled as Dagster's daemon does it."""
    workspace = make_workspace(tmp_path)
    write(workspace, study(trial(0, 50.0)), 1_000)
    found = Ticker(workspace, instance, "studies").tick()
    (request,) = found.dynamic_partitions_requests
    instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
    for event in found.asset_events:
        instance.report_runless_asset_event(event)
    latest = instance.get_latest_materialization_event(dg.AssetKey("study"))
    assert latest is not None
    assert latest.asset_materialization is not None
    assert latest.asset_materialization.partition == "toy/ngame"
    assert instance.get_dynamic_partitions("study") == ["toy/ngame"]
    assert latest.asset_materialization.metadata["best"].value == 50.0
