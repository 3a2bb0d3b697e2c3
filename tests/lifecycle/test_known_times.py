"""The guard of times: what counts as a collapse, and when no time decides, so that nothing is compared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from tests.conftest import ToyWorld, write_json
from tests.data.worlds import empty_workspace
from xc_core.chain import Workspace
from xc_core.cli.ingest import place
from xc_core.data.ingest import IngestConfig
from xc_core.errors import RefusedError
from xc_core.lifecycle.known_times import check_times
from xc_core.lifecycle.update import update

DAYS = [datetime(2010, 1, 1, tzinfo=UTC) + timedelta(days=40 * number) for number in range(100)]
DATES = [f"{day:%Y-%m-%d}" for day in DAYS]
SECONDS = [f"{day.timestamp():.0f}" for day in DAYS]
ONE = ["2026-11-30"]


def check(before: list[str], after: list[str], split: str = "train") -> None:
    uids = [f"D{number}" for number in range(len(before))]
    old = pl.DataFrame({"uid": uids, "split": [split] * len(before), "time": before})
    check_times(old, pl.DataFrame({"uid": uids, "time": after}), "toy")


@pytest.mark.parametrize(("before", "after"), [
    (DATES, [f"{day.timestamp() / 86400:.0f}" for day in DAYS]),
    (DATES, [f"{day:%Y}" for day in DAYS]),
    ([f"{second}000" for second in SECONDS], SECONDS),
    (SECONDS, [f"{day.timestamp() / 86400:.0f}" for day in DAYS]),
    ([f"-{second}000" for second in SECONDS], [f"-{second}" for second in SECONDS]),
    ([f"{number}" for number in range(100)], [f"{10_000 + number}" for number in range(100)]),
    ([f"{day:%Y}" for day in DAYS], DATES),
    (DATES, [f"{date}T08:15:00Z" for date in DATES]),
    (ONE * 100, ["2026-12-01"] * 100),
    (ONE * 100, [f"2026-11-30T{number // 5:02}:00:00" for number in range(100)]),
    (["0"] * 100, ["1"] * 100),
    (["0"] * 100, ["2026-11-30"] * 100),
    (DATES[:9], ONE * 9),
    (DATES, ONE * 49 + DATES[49:]),
    (DATES, ["unknown"] * 100),  # as test documents may have
    (["unknown"] * 100, ONE * 100),
])  # fmt: skip
def test_times_in_another_form_or_unit_are_taken(before: list[str], after: list[str]) -> None:
    check(before, after)


@pytest.mark.parametrize(("before", "after"), [
    (DATES, ONE * 100),
    (DATES, ["1764460800"] * 100),
    (SECONDS, ONE * 100),
    (SECONDS, ["1764460800"] * 100),
    (SECONDS, [f"{1764460800 + number}" for number in range(100)]),
    ([f"{number}" for number in range(100)], ["7"] * 100),
    ([f"{number}" for number in range(1000, 1100)], [f"{1000 + number / 20}" for number in range(100)]),
    (DATES, ONE * 50 + DATES[50:]),
    (DATES[:10], ONE * 10),
    (DATES, [f"2026-11-30T08:{number // 60:02}:{number % 60:02}" for number in range(100)]),
    (DATES, ["unknown"] + ONE * 99),
])  # fmt: skip
def test_times_that_collapse_are_refused(before: list[str], after: list[str]) -> None:
    with pytest.raises(RefusedError, match=r"another time of \d+ of the \d+ known train documents of toy: half of"):
        check(before, after)


def test_each_split_is_looked_at() -> None:
    with pytest.raises(RefusedError, match="10 of the 10 known validation documents"):
        check_times(
            pl.DataFrame({"uid": DATES, "split": ["train"] * 90 + ["validation"] * 10, "time": DATES}),
            pl.DataFrame({"uid": DATES, "time": DATES[:90] + ONE * 10}),
            "toy",
        )


def world(tests_at: str = "") -> ToyWorld:
    made = ToyWorld.make(documents=60, tests=20)
    for number, document in enumerate([*made.train, *made.test]):
        document["time"] = tests_at if tests_at and number >= 60 else DATES[number]
    return made


def with_one_time(folder: Path, made: ToyWorld) -> Path:
    for document in made.train:
        document["time"] = ONE[0]
    return made.write(folder)


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    return empty_workspace(tmp_path / "project")


def test_no_time_decides_beside_a_validation_file(project: Workspace, tmp_path: Path) -> None:
    """The message said that the split is by time, but the file holds all validation documents."""
    given, config = world(), IngestConfig(split="time")
    validation = [document | {"uid": f"V{number}"} for number, document in enumerate(given.train[:12])]
    folder = given.write(tmp_path / "a")
    write_json(folder / "val.json", validation)
    place(project, folder, "toy", config, replace=False)
    changed = with_one_time(tmp_path / "b", world())
    update(project, changed, "toy")
    place(project, folder, "toy", config, replace=True)
    write_json(changed / "val.json", validation)
    place(project, changed, "toy", config, replace=True)


def test_no_time_decides_if_nothing_is_held_out(project: Workspace, tmp_path: Path) -> None:
    config = IngestConfig(split="time", validation_fraction=0.0)
    place(project, world().write(tmp_path / "a"), "toy", config, replace=False)
    update(project, changed := with_one_time(tmp_path / "b", world()), "toy")
    place(project, world().write(tmp_path / "c"), "toy", config, replace=True)
    place(project, changed, "toy", config, replace=True)


def test_times_of_a_test_file_decide_nothing(project: Workspace, tmp_path: Path) -> None:
    config = IngestConfig(split="time")
    place(project, world().write(tmp_path / "a"), "toy", config, replace=False)
    place(project, changed := world(ONE[0]).write(tmp_path / "b"), "toy", config, replace=True)
    place(project, world().write(tmp_path / "c"), "toy", config, replace=True)
    update(project, changed, "toy")


def test_times_of_test_rows_that_are_split_off_decide(project: Workspace, tmp_path: Path) -> None:
    def table(name: str, new: int) -> Path:
        (tmp_path / name).mkdir()
        rows = [f"D{number},text {number},L{number % 2},{date}" for number, date in enumerate(DATES[:new] + ONE * 100)]
        (tmp_path / name / "train.csv").write_text("\n".join(["uid,text,labels,time", *rows[:100], ""]))
        return tmp_path / name

    config = IngestConfig(split="time", validation_fraction=0.05)
    place(project, table("a", 100), "toy", config, replace=False)
    with pytest.raises(RefusedError, match="20 of the 20 known test documents"):
        place(project, table("b", 80), "toy", config, replace=True)
    place(project, table("c", 80), "toy", config, replace=True, new_times=True)
