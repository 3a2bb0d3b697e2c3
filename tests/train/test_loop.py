"""The loop visits every batch once and saves its state; a training resumed after a crash equals an unbroken one."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from xc_core import artifacts, progress
from xc_core.classifiers import LabelTable, schedule
from xc_core.devices import Device
from xc_core.distributed import World
from xc_core.errors import ConfigError, DivergedError
from xc_core.seeds import generator
from xc_core.shapes import I64
from xc_core.train import loop
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.loop import Plan, fit
from xc_core.train.state import History

BATCHES = 4


class CrashError(Exception):
    """Stands for the end of the process."""


@dataclass
class Walk:
    """A task whose state depends on every step, on their order and schedule, and on refreshes."""

    crash_at: int = -1
    nan_at: int = -1
    name: str = "walk"
    seen: list[tuple[int, list[int], float]] = field(default_factory=list)
    refreshed: list[int] = field(default_factory=list)
    state: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))

    def start_epoch(self, epoch: int) -> dict[str, float]:
        self.refreshed.append(epoch)
        self.state = self.state * 1.5 + epoch
        return {"cohesion": float(self.state.sum())} if epoch else {}

    def batches(self, epoch: int) -> list[I64]:
        return np.array_split(generator(1, "order", epoch).permutation(3 * BATCHES), BATCHES)

    def learnable(self, docs_B: I64, step: int) -> bool:
        return True

    def prepare(self, docs_B: I64, step: int) -> Any:
        return None

    def step(self, docs_B: I64, step: int, scale: float, ready: Any = None) -> tuple[float, float]:
        if step == self.crash_at:
            raise CrashError
        if step == self.nan_at:
            return float("nan"), 3.0
        self.seen.append((step, docs_B.tolist(), scale))
        self.state = self.state + scale * torch.from_numpy(docs_B).double() * (step + 1)
        return float(self.state.sum()), 3.0

    def tensors(self) -> dict[str, Tensor]:
        return {"state": self.state}

    def tables(self) -> dict[str, LabelTable]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.state = tensors["state"]


def plan(epochs: float, checkpoint_seconds: float = -1.0) -> Plan:
    """Return a plan that saves after every step."""
    return Plan(epochs=epochs, warmup=0.2, checkpoint_seconds=checkpoint_seconds)


def same(history: History) -> dict[str, Any]:
    """Return a history without times."""
    return {name: value for name, value in asdict(history).items() if "seconds" not in name}


def test_every_epoch_visits_every_document_once(tmp_path: Path) -> None:
    task = Walk()
    history = fit(task, plan(2), Checkpoints(tmp_path / "run", "x"))
    assert [step for step, _, _ in task.seen] == list(range(2 * BATCHES))
    for epoch in (0, 1):
        docs = [doc for _, batch, _ in task.seen[epoch * BATCHES :][:BATCHES] for doc in batch]
        assert sorted(docs) == list(range(3 * BATCHES))
    assert task.refreshed == [0, 1]
    assert [refresh["epoch"] for refresh in history.refreshes] == [1.0]
    assert history.epochs == [(i + 1) / BATCHES for i in range(2 * BATCHES)]
    assert len(history.losses) == 2 * BATCHES


def test_refreshes_of_quick_epochs_are_not_all_reported(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_pace", 3600.0)  # quick, however busy the machine is
    history = fit(Walk(), plan(12), Checkpoints(tmp_path / "run", "x"))
    assert [refresh["epoch"] for refresh in history.refreshes] == list(range(1, 12))
    assert [line for line in lines if "refreshed before epoch" in line] == [
        line for line in lines if "epoch 1 " in line
    ]
    assert lines


def test_progress_is_that_of_the_steps_with_the_last_loss(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUIET_SECONDS", "_pace"):
        monkeypatch.setattr(progress, name, 0.0)
    history = fit(Walk(), plan(1.75), Checkpoints(tmp_path / "run", "x"))
    shown = [line for line in lines if " steps), " in line]
    assert len(shown) == 7
    for number, (line, loss) in enumerate(zip(shown, history.losses, strict=True), 1):
        assert f" ({number} of 7 steps), " in line and line.endswith(f", loss {loss:.4f}"), line


def test_progress_after_a_resume_has_the_steps_of_the_whole_training(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUIET_SECONDS", "_pace"):
        monkeypatch.setattr(progress, name, 0.0)
    with pytest.raises(CrashError):
        fit(Walk(crash_at=6), plan(1.75), Checkpoints(tmp_path / "run", "x"))
    lines.clear()
    fit(Walk(), plan(1.75), Checkpoints(tmp_path / "run", "x"))
    assert [line for line in lines if " steps), " in line] == [line for line in lines if " (7 of 7 steps), " in line]
    assert any(" (7 of 7 steps), " in line for line in lines)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("kind", ["cpu", "cuda:0"])
def test_a_card_and_several_processes_read_losses_seldom_and_a_card_prepares_batches(kind: str, processes: int) -> None:
    """Each reading waits for the card, or for the other processes. Alone on a CPU, nan ends the training at once."""
    found = Plan.on(Device(kind), 1.0, 0.1, 60.0, World(0, processes))
    assert (found.read_every > 1) == (kind != "cpu" or processes > 1)
    assert (found.ahead > 0) == (kind != "cpu")


def test_the_schedule_runs_over_the_whole_training(tmp_path: Path) -> None:
    task = Walk()
    fit(task, plan(2.5), Checkpoints(tmp_path / "run", "x"))
    total = 2.5 * BATCHES
    assert [scale for _, _, scale in task.seen] == pytest.approx(
        [schedule(step / total, 0.2) for step in range(int(total))]
    )


def test_a_training_of_one_step_takes_it_although_a_warm_up_begins_at_0(tmp_path: Path) -> None:
    task, two = Walk(), Walk()
    fit(task, plan(0.25), Checkpoints(tmp_path / "run", "x"))
    fit(two, plan(0.5), Checkpoints(tmp_path / "two", "x"))
    assert [scale for _, _, scale in task.seen] == [1.0]
    assert [scale for _, _, scale in two.seen] == [0.0, pytest.approx(0.625)]


@pytest.mark.parametrize(
    ("epochs", "steps"),
    [(0, 0), (0.25, 1), (0.3, 2), (0.5, 2), (1, 4), (1.25, 5), (1.75, 7), (2.01, 9), (3, 12)],
)
def test_a_fraction_of_an_epoch_is_its_share_of_batches_rounded_up(epochs: float, steps: int, tmp_path: Path) -> None:
    task = Walk()
    history = fit(task, plan(epochs), Checkpoints(tmp_path / "run", "x"))
    assert len(history.losses) == len(task.seen) == steps


def test_rounding_noise_adds_no_batch() -> None:
    """1.1 epochs of 10 batches are 11 batches, though 1.1 - 1 is a little more than 0.1."""
    assert loop._round_up(10 * (1.1 - 1)) == 1
    assert loop._round_up(10 * 0.31) == 4


@given(crashes=st.sets(st.integers(0, 11), min_size=1, max_size=4), epochs=st.sampled_from([2.5, 3]))
@settings(deadline=None, max_examples=15)
def test_crashes_do_not_change_the_result(crashes: set[int], epochs: float, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("runs")
    unbroken = Walk()
    expected = fit(unbroken, plan(epochs), Checkpoints(folder / "a", "x"))
    reached = 0
    for crash in sorted(crash for crash in crashes if crash < epochs * BATCHES):
        task = Walk(crash_at=crash)
        with pytest.raises(CrashError):
            fit(task, plan(epochs), Checkpoints(folder / "b", "x"))
        assert [step for step, _, _ in task.seen] == list(range(reached, crash)), "it must resume, not start again"
        reached = crash
    last = Walk()
    history = fit(last, plan(epochs), Checkpoints(folder / "b", "x"))
    assert same(history) == same(expected)
    assert torch.equal(last.state, unbroken.state)


def test_a_resume_right_after_an_epochs_last_step_refreshes_once(tmp_path: Path) -> None:
    with pytest.raises(CrashError):
        fit(Walk(crash_at=BATCHES), plan(2), Checkpoints(tmp_path / "run", "x"))
    task = Walk()
    fit(task, plan(2), Checkpoints(tmp_path / "run", "x"))
    assert task.refreshed == [1]


def test_seconds_add_up_over_epochs_and_a_resume_and_leave_out_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this clock an epoch takes ten seconds to open, a step one, a checkpoint a thousand."""
    now, save = [0.0], Checkpoints.save

    class Timed(Walk):
        def start_epoch(self, epoch: int) -> dict[str, float]:
            now[0] += 10
            return super().start_epoch(epoch)

        def step(self, docs_B: I64, step: int, scale: float, ready: Any = None) -> tuple[float, float]:
            now[0] += 1
            return super().step(docs_B, step, scale)

    def slow(self: Checkpoints, *given: Any, **named: Any) -> None:
        now[0] += 1000
        save(self, *given, **named)

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Checkpoints, "save", slow)
    with pytest.raises(CrashError):
        fit(Timed(crash_at=BATCHES + 1), plan(3), Checkpoints(tmp_path / "run", "x"))
    history = fit(Timed(), plan(3), Checkpoints(tmp_path / "run", "x"))
    assert history.seconds == 3 * 10 + 3 * BATCHES
    assert history.refresh_seconds == 2 * 10, "nothing was refreshed before the first epoch"


def test_the_interval_of_checkpoints_does_not_change_the_result(tmp_path: Path) -> None:
    often, never = Walk(), Walk()
    one = fit(often, plan(2), Checkpoints(tmp_path / "a", "x"))
    two = fit(never, plan(2, checkpoint_seconds=1e9), Checkpoints(tmp_path / "b", "x"))
    assert same(one) == same(two)
    assert torch.equal(often.state, never.state)
    assert (tmp_path / "a").is_dir()
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("other", [Checkpoints(Path(), "other inputs"), Walk(name="other task")])
def test_a_checkpoint_of_another_training_is_reported_and_not_used(
    other: Checkpoints | Walk, tmp_path: Path, lines: list[str]
) -> None:
    with pytest.raises(CrashError):
        fit(Walk(crash_at=5), plan(2), Checkpoints(tmp_path / "run", "x"))
    task = other if isinstance(other, Walk) else Walk()
    fit(task, plan(2), Checkpoints(tmp_path / "run", other.fingerprint if isinstance(other, Checkpoints) else "x"))
    assert task.seen[0][0] == 0
    assert f"{task.name}: the checkpoint is of other parameters or inputs, starting from the beginning" in lines


@pytest.mark.parametrize("name", ["state.safetensors", "history.json", "position.json", "manifest.json"])
def test_a_damaged_checkpoint_is_reported_and_not_used(name: str, tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(CrashError):
        fit(Walk(crash_at=5), plan(2), Checkpoints(tmp_path / "run", "x"))
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[:-2] + b"xx")
    task, unbroken = Walk(), Walk()
    history = fit(task, plan(2), Checkpoints(tmp_path / "run", "x"))
    assert task.seen[0][0] == 0
    message = "the checkpoint cannot be used, starting from the beginning ("
    assert any(message in line and name in line for line in lines)
    assert same(history) == same(fit(unbroken, plan(2), Checkpoints(tmp_path / "other", "x")))


def test_a_first_start_reports_nothing_about_checkpoints(tmp_path: Path, lines: list[str]) -> None:
    fit(Walk(), plan(0.5), Checkpoints(tmp_path / "run", "x"))
    assert not any("checkpoint" in line for line in lines)


def test_a_resume_reports_its_position(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(CrashError):
        fit(Walk(crash_at=5), plan(2), Checkpoints(tmp_path / "run", "x"))
    fit(Walk(), plan(2), Checkpoints(tmp_path / "run", "x"))
    assert "walk: resuming at epoch 1, batch 1 (step 5)" in lines


def test_a_loss_that_is_not_finite_ends_the_training_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run", "x")
    with pytest.raises(DivergedError, match="a loss of nan in step 6") as caught:
        fit(Walk(nan_at=6), plan(2), checkpoints)
    assert "lower lr" in caught.value.do
    position, history = checkpoints.restore(Walk())
    assert position.step == 6
    assert len(history.losses) == 6
    assert np.isfinite(history.losses).all()


def test_a_checkpoint_holds_no_pickle(tmp_path: Path) -> None:
    with pytest.raises(CrashError):
        fit(Walk(crash_at=2), plan(1), Checkpoints(tmp_path / "run", "x"))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"state.safetensors", "history.json", "position.json", "manifest.json", "made.json"}
    assert json.loads((tmp_path / "run" / "position.json").read_text())["position"]["step"] == 2


def test_negative_epochs_are_refused() -> None:
    with pytest.raises(ConfigError):
        Plan(epochs=-1, warmup=0)


@pytest.mark.parametrize("read_every", [2, 3, 100])
def test_losses_that_are_read_later_are_the_same(read_every: int, tmp_path: Path) -> None:
    whole = fit(Walk(), plan(2.5), Checkpoints(tmp_path / "often", "x")).results()
    late = replace(plan(2.5, checkpoint_seconds=1e9), read_every=read_every)
    assert fit(Walk(), late, Checkpoints(tmp_path / "late", "x")).results() == whole


def test_a_late_reading_names_the_step_that_diverged(tmp_path: Path) -> None:
    late = replace(plan(2.0, checkpoint_seconds=1e9), read_every=4)
    with pytest.raises(DivergedError, match="nan in step 5"):
        fit(Walk(nan_at=5), late, Checkpoints(tmp_path / "run", "x"))


@dataclass
class Preparing(Walk):
    """A walk whose steps are given what was prepared for them."""

    made: list[int] = field(default_factory=list)

    def prepare(self, docs_B: I64, step: int) -> tuple[int, list[int]]:
        self.made.append(step)
        return step, docs_B.tolist()

    def step(self, docs_B: I64, step: int, scale: float, ready: Any = None) -> tuple[float, float]:
        assert ready == (step, docs_B.tolist())
        return super().step(docs_B, step, scale)


@pytest.mark.parametrize("batches", [4, 5])
def test_batches_that_are_prepared_ahead_are_those_of_their_steps(
    batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "BATCHES", batches)
    task, twin, whole = Preparing(), Walk(), plan(12 / batches)
    with pytest.raises(CrashError):
        fit(Preparing(crash_at=5), replace(whole, ahead=2), Checkpoints(tmp_path / "run", "x"))
    history = fit(task, replace(whole, ahead=2), Checkpoints(tmp_path / "run", "x"))
    assert history.results() == fit(twin, whole, Checkpoints(tmp_path / "twin", "x")).results()
    assert task.made == list(range(5, 12)), "each once, from the checkpoint on"


def test_the_time_of_a_training_has_the_waits_for_its_batches(tmp_path: Path) -> None:
    class Slow(Preparing):
        def prepare(self, docs_B: I64, step: int) -> tuple[int, list[int]]:
            time.sleep(0.01)
            return super().prepare(docs_B, step)

    history = fit(Slow(), replace(plan(1.0, checkpoint_seconds=1e9), ahead=2), Checkpoints(tmp_path / "a", "x"))
    assert history.seconds >= 0.01 * BATCHES


class Idle(Walk):
    """A task in whose batches no document has a negative."""

    def learnable(self, docs_B: I64, step: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("task", "epochs", "found"),
    [(Walk(), 1e-9, "epochs 1e-09 of walk, too few for one step"), (Idle(), 3.0, "4 batches of walk in which no doc")],
)
def test_a_training_that_changes_nothing_is_refused_before_its_first_step(
    tmp_path: Path, task: Walk, epochs: float, found: str
) -> None:
    plan = Plan(epochs=epochs, warmup=0.1, checkpoint_seconds=1e9)
    with pytest.raises(ConfigError, match=f"found {found}"):
        fit(task, plan, Checkpoints(tmp_path, "x"))
    assert task.seen == []


def test_one_batch_with_a_negative_is_enough(tmp_path: Path) -> None:
    class Late(Walk):
        def learnable(self, docs_B: I64, step: int) -> bool:
            return step == BATCHES - 1

    fit(Late(), plan(1.0), Checkpoints(tmp_path / "all", "x"))
    with pytest.raises(ConfigError, match="found 3 batches of walk"):
        fit(Late(), plan(0.75), Checkpoints(tmp_path / "cut", "x"))


@pytest.mark.parametrize(("seconds", "beside"), [(-1.0, False), (0.0, True)])
def test_checkpoints_after_every_step_are_written_before_the_next_one_others_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, beside: bool
) -> None:
    found: list[bool] = []
    save = Checkpoints.save

    def spy(self: Checkpoints, *given: Any, beside: bool) -> None:
        found.append(beside)
        save(self, *given, beside=beside)

    monkeypatch.setattr(Checkpoints, "save", spy)
    fit(Walk(), plan(1, seconds), Checkpoints(tmp_path / "run", "x"))
    assert set(found) == {beside}


def test_a_training_that_fails_ends_its_checkpoint_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is written beside the training, and takes longer than it."""
    building = artifacts.building
    monkeypatch.setattr(artifacts, "building", lambda *given, **named: (time.sleep(0.5), building(*given, **named))[1])
    with pytest.raises(CrashError):
        fit(Walk(crash_at=1), plan(1, 0.0), Checkpoints(tmp_path / "run", "x"))
    assert Checkpoints(tmp_path / "run", "x").restore(Walk())[0].step == 1


def test_free_memory_is_returned_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(loop, "give_back", lambda: calls.append(1))
    plan = Plan(epochs=2, warmup=0.1, checkpoint_seconds=1e9)
    fit(Walk(), plan, Checkpoints(tmp_path / "short", "x"))
    assert not calls
    monkeypatch.setattr(loop, "_GIVE_BACK", -1.0)
    fit(Walk(), plan, Checkpoints(tmp_path / "long", "x"))
    assert len(calls) == 2 * BATCHES


def test_a_refresh_does_not_count_in_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = [0.0], []

    class Slow(Walk):
        def start_epoch(self, epoch: int) -> dict[str, float]:
            now[0] += 1000
            return super().start_epoch(epoch)

        def step(self, docs_B: I64, step: int, scale: float, ready: Any = None) -> tuple[float, float]:
            now[0] += 10
            return super().step(docs_B, step, scale)

    monkeypatch.setattr(progress, "_listeners", [lines.append])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    fit(Slow(), plan(2), Checkpoints(tmp_path, "x"))
    shown = [line.split(", loss")[0] for line in lines if line.startswith("training walk: ")]
    assert shown[0] == "training walk: 12 % (1 of 8 steps), 0.1 steps/s, 1 min 10 s left"
    assert shown[-1] == "training walk: done in 34 min 40 s, 0.1 steps/s"
