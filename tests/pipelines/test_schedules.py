"""Schedules: three per dataset, off by default, and the one run that each tick asks for."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._utils.schedules import is_valid_cron_schedule

from assets.partitions import sync
from pipelines.definitions import build
from pipelines.schedules import safe_name
from xc_core.chain import Workspace
from xc_core.chain.dataset import ScheduleConfig
from xc_core.errors import ConfigError

SUNDAY = datetime(2026, 1, 4, 2, tzinfo=UTC)
NIGHT = datetime(2026, 1, 5, 3, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance on disk: the context of a schedule needs one."""
    with dg.instance_for_test() as instance:
        yield instance


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """The datasets toy and toy-two, and one recipe."""
    return declared(tmp_path, "ngame")


def declared(root: Path, recipe: str) -> Workspace:
    """Declare the datasets toy and toy-two, and a recipe for the first; nothing is made of them."""
    experiments = {f"toy_{recipe}": {"dataset": "toy", "recipe": recipe}}
    content = {"datasets": {"toy": {}, "toy-two": {}}, "experiments": experiments}
    (root / "params.yaml").write_text(json.dumps(content))
    return Workspace(root)


def asked(workspace: Workspace, instance: dg.DagsterInstance, name: str, when: datetime) -> list[Any]:
    """Return what a tick of a schedule asks for."""
    repository = build(workspace).get_repository_def()
    with dg.build_schedule_context(instance, when, repository_def=repository) as context:
        return list(repository.get_schedule_def(name).evaluate_tick(context).run_requests or [])


def test_every_dataset_has_a_weekly_and_two_nightly_schedules_all_off(workspace: Workspace) -> None:
    found = {
        schedule.name: (
            schedule.cron_schedule,
            schedule.execution_timezone,
            schedule.default_status,
            schedule.job_name,
        )
        for schedule in build(workspace).get_repository_def().schedule_defs
    }
    stopped = dg.DefaultScheduleStatus.STOPPED
    assert found == {
        "retrain_toy": ("0 2 * * 0", "UTC", stopped, "prepare"),
        "refresh_toy": ("30 3 * * *", "UTC", stopped, "prepare"),
        "drift_toy": ("30 1 * * *", "UTC", stopped, "prepare"),
        "retrain_toy_two": ("0 2 * * 0", "UTC", stopped, "prepare"),
        "refresh_toy_two": ("30 3 * * *", "UTC", stopped, "prepare"),
        "drift_toy_two": ("30 1 * * *", "UTC", stopped, "prepare"),
    }


def test_a_schedule_names_its_dataset(workspace: Workspace) -> None:
    described = {s.name: str(s.description) for s in build(workspace).get_repository_def().schedule_defs}
    assert described["retrain_toy"] == "Trains every recipe of toy again."
    assert described["refresh_toy_two"] == "Updates every trained recipe of toy-two for new data, without training."


@pytest.mark.parametrize(("what", "when"), [("retrain", SUNDAY), ("refresh", NIGHT), ("drift", NIGHT)])
@pytest.mark.parametrize(("dataset", "suffix"), [("toy", "toy"), ("toy-two", "toy_two")])
def test_a_tick_prepares_its_dataset_and_names_the_job_that_follows(
    workspace: Workspace, instance: dg.DagsterInstance, what: str, when: datetime, dataset: str, suffix: str
) -> None:
    (request,) = asked(workspace, instance, f"{what}_{suffix}", when)
    assert request.partition_key == dataset
    assert request.run_key == f"{what}/{dataset}/{when.isoformat()}"
    assert {name: value for name, value in request.tags.items() if name.startswith("xc/")} == {"xc/next": what}
    assert request.tags["dagster/partition"] == dataset
    assert request.job_name in (None, "prepare")


def test_a_tick_while_params_yaml_has_an_error_is_not_lost(workspace: Workspace, instance: dg.DagsterInstance) -> None:
    """The run fails with the error, which is an alert; a tick that failed was noticed by nobody until the next week."""
    repository = build(workspace).get_repository_def()
    sync(instance, workspace)
    for content in ("datasets: [", '{"datasets": {}}', None):
        workspace.raw("toy").mkdir(parents=True, exist_ok=True)
        path = workspace.root / "params.yaml"
        path.unlink() if content is None else path.write_text(content)
        with dg.build_schedule_context(instance, SUNDAY, repository_def=repository) as context:
            (request,) = repository.get_schedule_def("retrain_toy").evaluate_tick(context).run_requests or ()
        assert request.partition_key == "toy"


def test_a_tick_of_a_dataset_that_was_deleted_asks_for_no_run(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    """Until the definitions are reloaded, each night had a failed run and an alert."""
    repository = build(workspace).get_repository_def()
    sync(instance, workspace)
    (workspace.root / "params.yaml").write_text('{"datasets": {"toy-two": {}}}')
    with dg.build_schedule_context(instance, NIGHT, repository_def=repository) as context:
        ticked = repository.get_schedule_def("refresh_toy").evaluate_tick(context)
    assert (ticked.run_requests or [], ticked.skip_message) == (
        [],
        "toy was deleted; reload the definitions to remove its schedules",
    )


def test_every_tick_has_a_run_key_of_its_own(workspace: Workspace, instance: dg.DagsterInstance) -> None:
    ticks = [(name, when) for name in ("retrain_toy", "refresh_toy") for when in (SUNDAY, NIGHT)]
    keys = {asked(workspace, instance, name, when)[0].run_key for name, when in ticks}
    assert len(keys) == 4


def test_a_tick_adds_new_experiments_as_partitions(workspace: Workspace, instance: dg.DagsterInstance) -> None:
    newer = declared(workspace.root, "newcomer")
    assert "newcomer" not in instance.get_dynamic_partitions("recipe")
    asked(newer, instance, "refresh_toy", SUNDAY)
    assert {"toy", "toy-two"} <= set(instance.get_dynamic_partitions("dataset"))
    assert "newcomer" in instance.get_dynamic_partitions("recipe")


def test_names_of_schedules_are_legal_and_differ_if_the_datasets_do() -> None:
    names = {dataset: safe_name(dataset) for dataset in ("toy", "a-b", "a.b", "a-b.c", "a.b-c")}
    known = (names["toy"], names["a-b"], names["a.b"])
    assert known == ("toy", "a_b", f"a_b_{zlib.crc32(b'a.b'):08x}"), "Dagster forgets the switch of a renamed schedule"
    assert len(set(names.values())) == len(names)
    assert all(name.replace("_", "").isalnum() for name in names.values())


def test_a_dataset_says_when_its_schedules_start(workspace: Workspace) -> None:
    content = json.loads((workspace.root / "params.yaml").read_text())
    content["datasets"]["toy"]["schedule"] = {"refresh": "*/15 6-20 * * 1-5"}
    (workspace.root / "params.yaml").write_text(json.dumps(content))
    found = {one.name: one.cron_schedule for one in build(workspace).get_repository_def().schedule_defs}
    assert (found["retrain_toy"], found["refresh_toy"]) == ("0 2 * * 0", "*/15 6-20 * * 1-5")
    assert found["refresh_toy_two"] == "30 3 * * *"


def test_wrong_settings_of_a_dataset_do_not_close_the_interface(workspace: Workspace) -> None:
    content = json.loads((workspace.root / "params.yaml").read_text())
    content["datasets"]["toy"]["schedule"] = {"refresh": "often"}
    (workspace.root / "params.yaml").write_text(json.dumps(content))
    found = {one.name: one.cron_schedule for one in build(workspace).get_repository_def().schedule_defs}
    assert found["refresh_toy"] == "30 3 * * *"
    with pytest.raises(ConfigError, match="refresh 'often'"):
        workspace.params.dataset("toy")


GOOD = ("* * * * *", "0 2 * * 0", "59 23 31 12 7", "*/5 0-6/2 1,15 * 1-5", "0,30 8-18 * * *")


@pytest.mark.parametrize("line", GOOD)
def test_a_cron_line_that_is_taken_is_one_for_dagster(line: str) -> None:
    assert is_valid_cron_schedule(line)
    assert ScheduleConfig(retrain=line).retrain == line


def test_days_that_exist_are_taken_and_dagster_takes_them_too() -> None:
    """A day that no month has would stop the whole code location."""
    for day in (1, 28, 29, 30, 31, "30-31", "29,31", "*/31", "31/2", "*"):
        for month in (1, 2, 4, "2,4", "2-4", "*/2", "2/2", "2/12", "*"):
            for weekday in ("*", "1"):
                line = f"0 0 {day} {month} {weekday}"
                try:
                    taken = ScheduleConfig(retrain=line).retrain == line
                except ConfigError:
                    taken = False
                assert taken <= is_valid_cron_schedule(line), line
                assert taken or month in (2, 4, "2,4", "2/12"), f"{line} is refused"
    for line in ("0 0 29 2 *", "0 0 29,31 2 *", "0 0 30 2,4 *", "0 0 31 * *"):
        assert ScheduleConfig(retrain=line).retrain == line


@pytest.mark.parametrize(
    "line",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *", "* * * * 8",
     "5-3 * * * *", "*/0 * * * *", "a * * * *", "1,, * * * *", "-1 * * * *", "1.5 * * * *", "@daily", "٣ * * * *"],
)  # fmt: skip
def test_another_line_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="five fields"):
        ScheduleConfig(refresh=line)
