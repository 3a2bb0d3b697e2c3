"""Pilots of a plan: what is timed, how often, and which documents they have."""

from __future__ import annotations

import gzip
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xc_core import leftovers, memory
from xc_core.chain import Workspace, run_stage
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.devices import CPU, Device
from xc_core.leftovers import sweep
from xc_core.planning import pilots, planned, step_memory
from xc_core.planning.data_size import DataSize
from xc_core.planning.pilots import NAME, Pilot, PilotSource, Rates, Text, short_epochs
from xc_core.progress import report
from xc_core.recipes import RECIPES
from xc_core.shapes import I64


def test_rates_are_of_a_number_of_test_documents_and_of_labels(tmp_path: Path) -> None:
    """Both decide what pilots have; beyond 100,000 of each, pilots are the same."""

    def key(labels: int, test: int, tokens: int = 12, label_tokens: int = 6, pairs: int = 2) -> str:
        world = DataSize.of_sizes(1_000_000, labels, tokens, label_tokens, pairs, test=test)
        return planned._key(Workspace(tmp_path), planned.Subject("ngame", {}, world))

    assert len({key(10, 7), key(10, 70), key(20, 7)}) == 3
    assert key(200_000, 200_000) == key(300_000, 300_000)
    assert len({key(10, 7), key(10, 7, tokens=13), key(10, 7, label_tokens=7), key(10, 7, pairs=3)}) == 4


def test_rates_are_of_a_training_that_keeps_activations_or_of_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, keys = planned.Subject("ngame", {}, DataSize.of_sizes(99, 9, 12, 6, 2)), []
    monkeypatch.setattr(step_memory, "activation_bytes", lambda case: 5e9)
    for limit in (9e9, 8e9, 10e9):
        monkeypatch.setattr(memory, "total_bytes", lambda limit=limit: limit)
        keys.append(planned._key(Workspace(tmp_path), subject))
    assert keys[0] == keys[2] != keys[1]


def test_the_rates_of_a_cpu_are_measured_there_though_there_is_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Device] = []
    rates = Rates((), Pilot(DataSize.of_sizes(99, 9, 12, 6, 2), {}, {}), 4, 1.0, 1.0, 1.0, 1.0)
    monkeypatch.setattr("xc_core.devices.num_cards", lambda: 1)
    monkeypatch.setenv("XC_DEVICE", "")
    monkeypatch.setattr(planned, "machine", lambda: "this one")
    monkeypatch.setattr(planned, "measure_rates", lambda *_: used.append(Device.chosen()) or rates)
    planned.rates_of(Workspace(tmp_path), planned.Subject("ngame", {}, DataSize.of_sizes(99, 9, 12, 6, 2)))
    assert used == [CPU]
    (kept,) = (tmp_path / ".xc" / "plan").iterdir()
    kept.write_text("{}")
    planned.rates_of(Workspace(tmp_path), planned.Subject("ngame", {}, DataSize.of_sizes(99, 9, 12, 6, 2)))
    planned.rates_of(Workspace(tmp_path), planned.Subject("ngame", {}, DataSize.of_sizes(99, 9, 12, 6, 2)))
    assert used == [CPU, CPU], "a damaged file counts as none"
    assert Device.chosen() == Device("cuda:0")


@pytest.mark.parametrize(("sizes", "expected"), [((60, 80), [2, 2]), ((60, 80, 100), [1, 2, 2])])
def test_the_smallest_of_three_pilots_pays_for_imports(
    sizes: tuple[int, ...], expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """What is timed reports nothing."""
    runs: list[int] = []

    def run(inner: Workspace, *arguments: Any) -> tuple[Pilot, int]:
        runs.append(arguments[-1].get("corpus", 1))
        report("a stage")
        return Pilot(DataSize.of_sizes(100, 1, 1, 1, 1), {}, {}), 4

    def timed(width: int) -> tuple[float, float, float, float]:
        report("building a graph")
        return 1.0, 1.0, 1.0, 1.0

    monkeypatch.setattr(pilots, "SIZES", sizes)
    monkeypatch.setattr(pilots, "_RUNS", {"corpus": 2})
    monkeypatch.setattr(pilots, "_run_pilot", run)
    monkeypatch.setattr(pilots, "_search_rates", timed)
    source = PilotSource.made_up(DataSize.of_sizes(1000, 9, 12, 6, 2), "wordpiece")
    pilots.measure_rates(Workspace(tmp_path), "ngame", {}, source)
    assert runs == expected
    assert lines == [*(f"plan: running ngame on {size} documents" for size in sizes), "plan: timing searches"]


@pytest.mark.parametrize(
    ("documents", "expected"),
    [(7, [200]), (200, [200]), (201, [200, 1_000]), (1_000, [200, 1_000]), (1_001, [200, 1_000]), (4_001, None)],
)
def test_there_are_two_pilots_unless_the_first_has_all_documents(documents: int, expected: list[int] | None) -> None:
    """For 201 to 1,000 documents there was one: the costs of half a batch of M1, and no line through two points."""
    assert pilots._pilot_sizes(documents) == (expected or list(pilots.SIZES))


@pytest.mark.parametrize(("documents", "tests", "expected"), [(60, 6, 60), (200, 150, 116)])
def test_the_number_of_documents_is_shown_if_there_are_few(
    documents: int, tests: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    found: list[int] = []

    def run(inner: Workspace, base: str, changes: Any, source: PilotSource, size: int, runs: Any) -> tuple[Pilot, int]:
        source.write(inner.raw(NAME), size)
        files = (inner.raw(NAME) / f"{name}.json.gz" for name in ("trn", "tst"))
        found.append(sum(len(gzip.decompress(file.read_bytes()).splitlines()) for file in files))
        return Pilot(source.world, {}, {}), 4

    monkeypatch.setattr(pilots, "_run_pilot", run)
    monkeypatch.setattr(pilots, "_search_rates", lambda width: (1.0, 1.0, 1.0, 1.0))
    source = PilotSource.made_up(DataSize.of_sizes(documents, 9, 12, 6, 2, test=tests), "wordpiece")
    pilots.measure_rates(Workspace(tmp_path), "ngame", {}, source)
    assert (found, lines[0]) == ([expected], f"plan: running ngame on {expected} documents")


def test_the_quickest_run_of_a_stage_counts_and_the_memory_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([3.0, 1.0, 2.0])
    asked: list[tuple[Any, Any]] = []

    def run(*arguments: Any, **options: Any) -> Any:
        asked.append((arguments[1:], options))
        own = next(seconds)
        return SimpleNamespace(
            folder=tmp_path,
            costs={"cpu_seconds": own, "seconds": 2 * own, "peak_memory_mb": own, "mining_seconds": 1.0},
        )

    monkeypatch.setattr(pilots, "run_stage", run)
    found = pilots._stage_cost(Workspace(tmp_path), "corpus", 3)
    assert found == {"cpu_seconds": 1.0, "peak_memory_mb": 3.0, "disk_bytes": 0.0, "refresh_seconds": 0.5}
    again = (("corpus", NAME, NAME), {"force": True})
    assert asked == [(("corpus", NAME, NAME), {}), again, again]


def test_a_pilot_trains_two_batches_of_m1_and_one_epoch_of_m4_at_most() -> None:
    world, ngame = DataSize.of_sizes(1_000, 9, 12, 6, 2), RECIPES["ngame"]
    assert short_epochs(ngame, world) == {"encoder": pytest.approx(2 * 128 / 810), "classifier": 1.0}
    brief = ngame.changed({"encoder": {"epochs": 0.2}, "classifier": {"epochs": 0.5}})
    assert short_epochs(brief, world) == {"encoder": 0.2, "classifier": 0.5}
    assert short_epochs(ngame, DataSize.of_sizes(100, 9, 12, 6, 2))["encoder"] == 1.0, "a larger batch is one epoch"


def test_rates_of_searches_are_per_query_label_and_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = iter([2.0, 4.0, 5.0, 6.0])
    for name, size in (("_QUERIES", 16), ("_FEW", 64), ("_MANY", 192), ("_GRAPH", 128)):
        monkeypatch.setattr(pilots, name, size)
    monkeypatch.setattr(pilots, "_running_time", lambda work: next(timed))
    exact, query, built, walked = pilots._search_rates(8)
    assert exact == pytest.approx(2 / 16 / 128 / 8)
    assert query == pytest.approx((2 - 1) / 16)
    assert (built, walked) == pytest.approx((5 / 128 / math.log2(128), 6 / 16 / math.log2(128)))


def test_a_text_of_a_table_may_be_longer_than_a_line_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of Parquet has no limit; documents of pilots are lines of JSON."""
    long = "a" * IngestConfig().max_line_bytes

    def texts(rows: I64) -> list[Text]:
        return [Text(f"{row} {long if row == 3 else ''}", "", (row % 2,)) for row in rows.tolist()]

    def stage(inner: Workspace, name: str, runs: int) -> None:
        raise InterruptedError(run_stage(inner, name, NAME).facts["rows"])

    monkeypatch.setattr(pilots, "_stage_cost", stage)
    world = DataSize.of_sizes(30, 2, 2, 1, 1)
    source = PilotSource(world, texts, texts, lambda places: places, lambda places: world.published + places)
    with pytest.raises(InterruptedError, match="'test': 3"):
        pilots._run_pilot(Workspace(tmp_path), "ngame", {}, source, 30, {})


@pytest.mark.parametrize("killed", [False, True])
def test_the_documents_of_a_pilot_are_deleted_even_if_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    def run(inner: Workspace, *_: Any) -> None:
        (inner.root / "texts").touch()
        assert sweep([tmp_path / ".xc"]) == [], "it runs"
        raise MemoryError

    monkeypatch.setattr(pilots, "_run_pilot", run)
    if killed:
        monkeypatch.setattr(leftovers, "drop", lambda folder: None)
    with pytest.raises(MemoryError):
        pilots.measure_rates(
            Workspace(tmp_path), "ngame", {}, PilotSource.made_up(DataSize.of_sizes(99, 9, 12, 6, 2), "wordpiece")
        )
    assert len(list(tmp_path.rglob("texts"))) == killed
    monkeypatch.undo()
    sweep([tmp_path / ".xc"])
    assert list(tmp_path.rglob("texts")) == []


def test_pilots_run_among_the_temporary_files_if_the_state_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Path] = []
    pilot = Pilot(DataSize.of_sizes(99, 9, 12, 6, 2), {}, {})
    monkeypatch.setattr(pilots, "_run_pilot", lambda inner, *_: (ran.append(inner.root), (pilot, 4))[1])
    monkeypatch.setattr(pilots, "_search_rates", lambda width: (1.0, 1.0, 1.0, 1.0))
    (tmp_path / ".xc").touch()  # so no folder can be made in it
    pilots.measure_rates(Workspace(tmp_path), "ngame", {}, PilotSource.made_up(pilot.world, "wordpiece"))
    assert ran and not ran[0].is_relative_to(tmp_path) and not ran[0].exists()


def test_documents_of_a_corpus_are_drawn_from_their_split() -> None:
    rows = {TRAIN: np.array([0, 3]), VALIDATION: np.array([4]), TEST: np.array([1, 2])}
    corpus: Any = SimpleNamespace(rows=rows.__getitem__)
    source = PilotSource.of_corpus(corpus, DataSize.of_sizes(10, 1, 1, 1, 1))
    assert source.published(np.arange(3)).tolist() == [0, 3, 4]
    assert source.test(np.arange(2)).tolist() == [1, 2]


def test_what_a_rate_is_measured_of_is_done_and_its_processor_time_counts() -> None:
    def work() -> None:
        ends = time.process_time() + 0.01
        while time.process_time() < ends:
            pass

    assert 0.01 <= pilots._running_time(work) < 1
