"""The harness of the benchmarks: CPU time, alternating rounds, medians with spread, recorded floors."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click import ClickException
from click.testing import CliRunner

import benchmarks.__main__
from benchmarks import harness, many_labels
from benchmarks.cases import CASES, QUICK, data, fusion, negatives
from benchmarks.harness import Row, compare, read_floors, slower, table, write_floors
from xc_core.chain.costs import processor
from xc_core.errors import CorruptError


class Clock:
    """A clock of the process that only works advance, and a wall clock that runs away."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, [""]

    def work(self, name: str, seconds: list[float]) -> None:
        """Take the next of ``seconds``; the last one again and again."""
        self.calls.append(name)
        self.now += seconds.pop(0) if len(seconds) > 1 else seconds[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(harness, "time", SimpleNamespace(process_time=lambda: made.now))
    return made


def test_the_median_of_five_rounds_counts_and_outliers_do_not(clock: Clock) -> None:
    ours, theirs = [9.0, 9.0, 1.0, 1.0, 50.0, 1.0, 1.0], [9.0, 9.0, 3.0, 3.0, 3.0, 90.0, 3.0]
    row = compare("what", lambda: clock.work("ours", ours), "peer", lambda: clock.work("peer", theirs), rounds=1)
    assert (row.ours, row.seconds, row.ratio) == (1.0, 3.0, 3.0)
    assert row.spread > 0


def test_who_runs_first_alternates(clock: Clock) -> None:
    compare("what", lambda: clock.work("a", [1.0]), "peer", lambda: clock.work("b", [1.0]))
    timed = clock.calls[-10:]
    assert timed == ["b", "a", "a", "b", "b", "a", "a", "b", "b", "a"]


def test_short_work_is_repeated_until_the_clock_can_tell(clock: Clock) -> None:
    row = compare("what", lambda: clock.work("a", [1e-4]), "peer", lambda: clock.work("b", [2e-4]))
    assert row.ratio == pytest.approx(2.0)
    assert clock.calls.count("a") == 2 + 5 * 20


ROW = Row("what", 1.0, "peer", 2.0, "", 0.1, "words 1")


def test_a_ratio_a_fifth_below_the_recorded_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "floors.json"
    write_floors(path, [ROW, replace(ROW, case="words 2", seconds=10.0)])
    write_floors(path, [replace(ROW, seconds=4.0), replace(ROW, case="words 2", spread=0.31)])
    floors = read_floors(path)[harness.this_processor()]
    assert floors == {"words 1": 4.0, "words 2": 10.0}
    assert slower([replace(ROW, seconds=3.21)], floors) == []
    assert slower([replace(ROW, seconds=3.19)], floors) == [replace(ROW, seconds=3.19)]
    assert slower([replace(ROW, case="new 1", seconds=0.1)], floors) == []


def test_ratios_of_another_processor_stay_and_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "floors.json"
    path.write_text('{"another": {"words 1": 9.0}}')
    monkeypatch.setattr(benchmarks.__main__, "FLOORS", path)
    benchmarks.__main__._check([ROW], {}.__getitem__)
    assert "no ratio recorded on" in capsys.readouterr().err
    write_floors(path, [ROW])
    assert read_floors(path) == {"another": {"words 1": 9.0}, harness.this_processor(): {"words 1": 2.0}}
    benchmarks.__main__._check([ROW], {}.__getitem__)


def test_a_ratio_that_is_low_twice_fails_the_check_and_one_that_is_low_once_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = tmp_path / "floors.json", replace(ROW, case="words 2")
    low = replace(ROW, seconds=1.0)
    write_floors(path, [ROW, other])
    monkeypatch.setattr(benchmarks.__main__, "FLOORS", path)
    second = {"words": [ROW, replace(other, seconds=1.0)]}
    benchmarks.__main__._check([low, other], second.__getitem__)  # words 2 is low in the second round alone
    second["words"] = [replace(ROW, seconds=1.1), other]
    with pytest.raises(SystemExit):
        benchmarks.__main__._check([low, other], second.__getitem__)
    said = capsys.readouterr().err
    assert said == "\nslower than recorded, twice:\nwords 1 (what): ratio 1.10, recorded 2.00\n"


def test_the_widest_units_are_named(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: a name\nflags\t\t: fpu avx2 avx512f fma\n")
    assert harness.this_processor(info) == f"{processor()} (AVX-512)"
    info.write_text("flags\t\t: fpu\n")
    assert harness.this_processor(info) == processor()


def test_recorded_ratios_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "floors.json").write_text("[1]")
    with pytest.raises(CorruptError, match="recorded ratios"):
        read_floors(tmp_path / "floors.json")


def test_every_row_says_case_ratio_spread_and_machine() -> None:
    line = table([ROW]).splitlines()[-1]
    assert line.startswith("| words 1 | what | 1.00 s | peer | 2.00 s | 2.00 | 10% |  | ")
    assert line.removesuffix(" |").rpartition("| ")[2] == harness.this_processor()


def test_quick_cases_are_cases() -> None:
    assert set(QUICK) < set(CASES)


@pytest.mark.parametrize(("documents", "share"), [(40, 0.7), (1250, 0.7), (1600, 0.625)])
def test_both_boosted_trees_are_fitted_on_as_large_samples(
    documents: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, random = np.repeat(np.arange(documents), 2), np.random.default_rng(0)
    drawn = random.random((len(docs), 3)).astype(np.float32), random.random(len(docs)), docs
    asked: list[float] = []

    class Peer(fusion.GradientBoostingRegressor):  # type: ignore[misc, name-defined]
        def __init__(self, subsample: float = 1.0, **options: Any) -> None:
            asked.append(subsample)
            super().__init__(subsample=subsample, **options)

    monkeypatch.setattr(fusion, "_candidates", lambda world: drawn)
    monkeypatch.setattr(fusion, "GradientBoostingRegressor", Peer)
    monkeypatch.setattr(fusion, "_compare_models", lambda what, ours, theirs, x, y: [theirs()])
    CASES["boosting"](None)  # type: ignore[arg-type]
    assert asked[0] == share


def test_the_peak_memory_of_a_command_is_its_own_not_that_of_the_benchmark(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("datasets: {}\nexperiments: {}\n")
    held = np.ones(1 << 25)  # 0.27 GB
    _, _, memory = many_labels.run(tmp_path, "settings --help")
    assert 0.01 < memory < held.nbytes / 1e9


def test_many_labels_can_be_measured_after_a_call_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing, commands = [True], list[str]()

    def run(project: Path, command: str) -> tuple[float, float, float]:
        commands.append(command.partition(" ")[0])
        if failing and commands[-1] == "train":
            raise ClickException("xc train ended with 1")
        return 1.0, 1.0, 1.0

    monkeypatch.setattr(many_labels, "run", run)
    asked = CliRunner(), many_labels.main, [str(tmp_path / "kept"), "--labels", "20", "--new", "1"]
    assert CliRunner.invoke(*asked).exit_code == 1
    failing.clear()
    assert CliRunner.invoke(*asked).exit_code == 0
    assert commands == ["ingest", "train", "ingest", "train", "add-labels", "update", "forget"]


def test_batches_are_full_whatever_number_of_texts_a_dataset_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "compare", lambda what, *_, note, **more: Row(what, 1.0, "peer", 1.0, note))
    world: Any = SimpleNamespace(texts=lambda count: [f"a small dog {number}" for number in range(300)])
    (row,) = CASES["tokens"](world)
    assert (row.what, row.note) == ("2 batches of 128", "the same ids")


class Graph:
    """A stand-in for hnswlib's index: it finds half of the labels until its ``ef`` is 400."""

    def __init__(self, space: str, width: int) -> None:
        assert (space, width) == ("ip", 8)
        self.ef: list[int] = []

    def init_index(self, size: int, **settings: int) -> None:
        assert (size, settings) == (300, {"random_seed": 0, "M": 32, "ef_construction": 200})

    def set_num_threads(self, number: int) -> None:
        assert number == 1

    def add_items(self, vectors: Any, num_threads: int) -> None:
        self.vectors = vectors

    def set_ef(self, ef: int) -> None:
        self.ef.append(ef)

    def knn_query(self, queries: Any, k: int, num_threads: int) -> tuple[Any, Any]:
        ids = np.argsort(-(queries @ self.vectors.T), axis=1, kind="stable")[:, :k]
        ids[:, k // 2 :] = ids[:, k // 2 :] if self.ef[-1] >= 400 else 0
        return ids.astype(np.uint64), None


def test_a_refresh_by_a_graph_costs_its_construction_and_all_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Graph] = []

    def index(*arguments: Any) -> Graph:
        graphs.append(Graph(*arguments))
        return graphs[-1]

    monkeypatch.setitem(sys.modules, "hnswlib", SimpleNamespace(Index=index))
    monkeypatch.setattr(negatives, "_QUERIES", 60)
    monkeypatch.setattr(negatives, "time", SimpleNamespace(process_time=iter([1.0, 8.0]).__next__))
    monkeypatch.setattr(
        negatives, "compare", lambda what, ours, other, theirs, note="": Row(what, 2.0, other, 3.0, note)
    )
    vectors = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    world = SimpleNamespace(label_LD=vectors[:100], doc_ND=vectors[100:])
    search, refresh, floor = CASES["negatives"](world)  # type: ignore[arg-type]
    assert graphs[0].ef == [100, 200, 400]
    assert (refresh.ours, refresh.seconds) == (2.0 * 5, 7.0 + 3.0 * 5)
    assert search.note == refresh.note == "recall 1 and 1.000"
    assert floor.other == "products alone (floor)"


def test_without_hnswlib_its_case_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hnswlib", None)
    world = SimpleNamespace(label_LD=np.eye(4, dtype=np.float32), doc_ND=np.eye(4, dtype=np.float32))
    with pytest.raises(ClickException, match=r"requirements-full\.txt"):
        CASES["negatives"](world)  # type: ignore[arg-type]
