"""A checkpoint is a chain: a link has the rows that changed; a chain that is cut or damaged is an earlier one."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from xc_core import artifacts
from xc_core.classifiers import LabelTable, TableConfig, TableHead
from xc_core.distributed import ALONE
from xc_core.errors import CorruptError, StorageError, UnavailableError
from xc_core.losses import Bce
from xc_core.train import checkpoint
from xc_core.train.banks import Bank
from xc_core.train.checkpoint import Checkpoints, _changed_rows, _on_cpu
from xc_core.train.state import History, Position

LABELS, WIDTH = 40, 6


class Rows:
    """A training whose state is a table, its bias, and one number."""

    name = "rows"

    def __init__(self, config: TableConfig | None = None) -> None:
        start = torch.from_numpy(np.random.default_rng(0).standard_normal((LABELS, WIDTH)).astype(np.float32))
        bias = LabelTable(torch.zeros(LABELS, 1), TableConfig(unit=False))
        self.head = TableHead(LabelTable(start, config or TableConfig(lr=0.1)), Bce().build(), bias=bias)
        self.number = torch.zeros(1)

    def tables(self) -> dict[str, LabelTable]:
        return {f"head/{prefix}": table for prefix, table in self.head.named().items()}

    def tensors(self) -> dict[str, Tensor]:
        return {"number": self.number} | {f"head/{name}": value for name, value in self.head.tensors().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.number = tensors["number"]
        self.head.load({name.removeprefix("head/"): value for name, value in tensors.items() if name != "number"})

    def train(self, step: int) -> None:
        """Change three rows and their bias."""
        random = np.random.default_rng(step)
        labels = torch.from_numpy(np.sort(random.permutation(LABELS)[:3]))
        for table in self.head.tables:
            gradient = random.standard_normal((3, table.rows.shape[1])).astype(np.float32)
            table.update(labels, torch.from_numpy(gradient), 1.0)
            table.finish_step()
        self.number += step


def saved(folder: Path, steps: int, task: Rows, *, beside: bool = False, first: int = 0) -> Checkpoints:
    """Train, saving after every step."""
    checkpoints = Checkpoints(folder / "run", "x")
    for step in range(first, steps):
        task.train(step)
        if step == 3:
            for table in task.head.tables:
                table.average()
        checkpoints.save(task, Position(step=step + 1), History(losses=[0.5] * (step + 1)), beside=beside)  # type: ignore[arg-type]
    checkpoints.wait()
    return checkpoints


def same(one: Rows, two: Rows) -> bool:
    left, right = one.tensors(), two.tensors()
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


def restored(folder: Path, config: TableConfig | None = None) -> tuple[Rows, int]:
    task = Rows(config)
    position, history = Checkpoints(folder / "run", "x").restore(task)  # type: ignore[arg-type]
    assert len(history.losses) == position.step
    return task, position.step


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("changes", [{}, {"precision": "bf16"}, {"storage": "mapped"}, {"optimiser": "adagrad"}])
def test_restored_state_is_the_saved_one_to_the_bit(changes: dict[str, str], beside: bool, tmp_path: Path) -> None:
    config = TableConfig(lr=0.1, **changes)
    task = Rows(config)
    saved(tmp_path, 7, task, beside=beside)
    found, step = restored(tmp_path, config)
    assert step == 7
    assert same(found, task)
    for one in (task, found):  # a training goes on alike, its random bits included
        one.train(7)
    assert same(found, task)


def test_a_link_holds_the_rows_that_changed_since_the_one_before(tmp_path: Path) -> None:
    task = Rows()
    saved(tmp_path, 1, task)
    first = {path.name for path in (tmp_path / "run").glob("rows-*")}
    assert first == {"rows-00000.safetensors", "rows-00001.safetensors"}
    assert len(load_file(tmp_path / "run" / "rows-00000.safetensors")["head/labels"]) == 3
    assert "head/rows" not in load_file(tmp_path / "run" / "state.safetensors")


def test_changed_rows_since_the_last_link_only(tmp_path: Path) -> None:
    task = Rows()
    for step in range(20):
        task.train(step)
    checkpoints = Checkpoints(tmp_path / "run", "x")
    checkpoints.save(task, Position(step=20), History())  # type: ignore[arg-type]
    task.train(20)
    moved = task.head.table.changed_L.nonzero().squeeze(1).tolist()
    checkpoints.save(task, Position(step=21), History())  # type: ignore[arg-type]
    found = load_file(tmp_path / "run" / "0001" / "rows-00000.safetensors")
    assert found["head/labels"].tolist() == moved
    assert len(moved) == 3
    assert torch.equal(found["head/rows"], task.head.table.rows_LD[moved])


def test_a_chain_longer_than_its_first_link_starts_again(tmp_path: Path) -> None:
    task = Rows()
    saved(tmp_path, 12, task)
    links = [path for path in (tmp_path / "run").iterdir() if path.is_dir()]
    assert 0 < len(links) < 11
    assert same(restored(tmp_path)[0], task)


def test_rows_that_were_filled_and_never_changed_outlive_two_kills(tmp_path: Path) -> None:
    """A table that is trained with an encoder starts at zero and is filled once; a resumed training fills nothing."""
    rows = torch.from_numpy(np.random.default_rng(9).standard_normal((LABELS, WIDTH)).astype(np.float32))
    config = TableConfig(start="zero", unit=False)
    task = Rows(config)
    task.head.table.put(torch.arange(len(rows)), rows)
    saved(tmp_path, 1, task)
    for step in range(1, 12):  # the chain starts again in between
        task, checkpoints = Rows(config), Checkpoints(tmp_path / "run", "x")
        checkpoints.restore(task)  # type: ignore[arg-type]
        task.train(step)
        checkpoints.save(task, Position(step=step + 1), History(losses=[0.5] * (step + 1)))  # type: ignore[arg-type]
        assert same(restored(tmp_path, config)[0], task)
    still = (task.head.table.steps_L == 0).nonzero().squeeze(1)
    assert len(still) > 0
    assert torch.equal(task.head.table.rows_LD[still], rows[still])


@pytest.mark.parametrize("damage", ["gone", "changed", "another artefact"])
def test_a_damaged_link_is_reported_and_the_one_before_is_used(damage: str, tmp_path: Path, lines: list[str]) -> None:
    task = Rows()
    checkpoints = saved(tmp_path, 1, task)
    kept = Rows()
    kept.train(0)
    task.train(1)
    checkpoints.save(task, Position(step=2), History(losses=[0.5] * 2))  # type: ignore[arg-type]
    path = tmp_path / "run" / "0001" / "rows-00000.safetensors"
    if damage == "gone":
        path.unlink()
    elif damage == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    else:
        shutil.rmtree(path.parent)
        with artifacts.building(path.parent, kind="encoder") as build:
            build.json("history.json", {})
    found, step = restored(tmp_path)
    assert step == 1
    assert same(found, kept)
    assert any("the last checkpoint cannot be used, resuming before it" in line for line in lines)


def test_a_link_of_an_older_chain_is_not_used(tmp_path: Path) -> None:
    """After a resume from link 0, link 1 is written again; an old link 2 must not follow it."""
    task = Rows()
    old = saved(tmp_path, 1, task)
    old._bytes = [10**9]  # so that no link starts a new chain
    for step in (1, 2):
        task.train(step)
        old.save(task, Position(step=step + 1), History(losses=[0.5] * (step + 1)))  # type: ignore[arg-type]
    assert restored(tmp_path)[1] == 3
    (tmp_path / "run" / "0001" / "manifest.json").write_bytes(b"?")
    other, fresh = Rows(), Checkpoints(tmp_path / "run", "x")
    assert fresh.restore(other)[0].step == 1  # type: ignore[arg-type]
    other.train(50)
    fresh.save(other, Position(step=9), History(losses=[0.5] * 9))  # type: ignore[arg-type]
    assert (tmp_path / "run" / "0002").is_dir()
    found, step = restored(tmp_path)
    assert step == 9
    assert same(found, other)


def test_a_checkpoint_that_does_not_fit_this_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """It is whole and of the same settings, but has other tensors: no release wrote such a one."""
    task = Rows()
    task.train(0)
    with artifacts.building(tmp_path / "run", kind=checkpoint.KIND) as build:
        tensors = {name: value.clone() for name, value in task.tensors().items() if name != "number"}
        save_file(tensors, build.path / "state.safetensors")
        build.json("history.json", asdict(History(losses=[0.5])))
        build.json("position.json", {"fingerprint": "x", "position": asdict(Position(step=1)), "task": task.name})
    with pytest.raises(CorruptError, match="a checkpoint that does not fit this version") as caught:
        Checkpoints(tmp_path / "run", "x").restore(Rows())  # type: ignore[arg-type]
    assert "0.2.0" in caught.value.expected and "delete the folder" in caught.value.do


def test_latest_vectors_of_another_shape_are_refused() -> None:
    """Before 0.2.0 those of labels had a column of zeros for each of theirs."""
    bank = Bank.zeros(3, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"shape \(3, 4\) instead of \(3, 2\)"):
        bank.load(torch.ones(3, 4))


@pytest.mark.parametrize("large", [1, 1 << 27], ids=["large tensors", "small tensors"])
def test_training_beside_a_write_does_not_change_what_is_written(tmp_path: Path, monkeypatch: Any, large: int) -> None:
    """Not even a tensor so large that a checkpoint for which the training waits would not copy it."""
    monkeypatch.setattr(checkpoint, "_LARGE", large)
    free, plain = threading.Event(), artifacts.building
    monkeypatch.setattr(artifacts, "building", lambda *a, **k: (free.wait(20), plain(*a, **k))[1])
    task, kept = Rows(), Rows()
    checkpoints = Checkpoints(tmp_path / "run", "x")
    for one in (task, kept):
        one.train(0)
    checkpoints.save(task, Position(step=1), History(losses=[0.5]), beside=True)  # type: ignore[arg-type]
    assert not checkpoints.due(0)
    task.train(1)
    free.set()
    checkpoints.wait()
    assert same(restored(tmp_path)[0], kept)


def test_an_error_beside_the_training_is_raised(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    checkpoints, task = Checkpoints(tmp_path / "run" / "final", "x"), Rows()
    checkpoints.save(task, Position(), History(), beside=True)  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        checkpoints.wait()


def test_a_signal_ends_the_first_process_without_the_rows_of_the_others(tmp_path: Path, monkeypatch: Any) -> None:
    """Ctrl-C reaches them too: it waited for rows that nobody sent, or ended with the error of the lost connection."""
    gone = UnavailableError("processes that lost contact", expected="all", do="start again")
    world = SimpleNamespace(size=2, first=True, by_first=lambda work: work(), everyone=Mock(side_effect=gone))
    monkeypatch.setattr(checkpoint, "save_file", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Checkpoints(tmp_path / "run", "x", world=world).save(Rows(), Position(), History())  # type: ignore[arg-type]


def test_many_changed_rows_are_written_in_parts_without_a_copy_of_all(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(checkpoint, "_PART", 64)
    monkeypatch.setattr(checkpoint, "BESIDE", 10)
    monkeypatch.delattr(checkpoint, "ThreadPoolExecutor")  # a write beside the training would need a copy of all
    task = Rows()
    saved(tmp_path, 1, task, beside=True)
    assert len(list((tmp_path / "run").glob("rows-*"))) > 2
    assert same(restored(tmp_path)[0], task)


def test_checkpoints_take_at_most_a_twentieth_of_the_time(monkeypatch: Any, tmp_path: Path) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    checkpoints = Checkpoints(tmp_path, "x")
    checkpoints._cost, checkpoints._saved = 10.0, 0.0
    for age, due in ((59.0, False), (61.0, False), (189.0, False), (191.0, True)):
        now[0] = age
        assert checkpoints.due(60.0) == due
    assert checkpoints.due(-1.0)


def test_the_wait_for_the_checkpoint_before_is_no_cost_of_the_next_one(monkeypatch: Any, tmp_path: Path) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    checkpoints = Checkpoints(tmp_path / "run", "x")
    checkpoints._running = SimpleNamespace(result=lambda: now.__setitem__(0, 100.0))  # type: ignore[assignment]
    checkpoints.save(Rows(), Position(), History())
    now[0] += 61.0
    assert checkpoints.due(60.0)


def test_no_checkpoint_is_due_while_one_is_written_for_which_it_would_wait(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "x")
    checkpoints._saved, checkpoints._running = float("-inf"), Future()
    assert not checkpoints.due(60.0)
    assert checkpoints.due(-1.0), "one after every step"
    checkpoints._running.set_result(None)
    assert checkpoints.due(60.0)


def test_a_process_without_labels_has_nothing_to_write() -> None:
    """With more processes than labels; a row of its table has no bytes."""
    table = LabelTable(torch.zeros(0, 3), TableConfig())
    task: Any = SimpleNamespace(tables=lambda: {"t/": table})
    assert table.row_bytes == 0
    parts = list(_changed_rows(task, ALONE, since_start=True))
    assert [len(part["t/labels"]) for part in parts] in ([], [0])


def test_without_copies_large_tensors_stay_where_they_are_and_two_names_of_one_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xc_core.train.checkpoint._LARGE", 40)
    large, little = torch.arange(10.0), torch.arange(9.0)
    state = {"bank": large, "again": large, "weights": little}
    places = {name: value.data_ptr() for name, value in _on_cpu(state, copies=False).items()}
    assert places["bank"] == large.data_ptr()
    assert len({*places.values(), little.data_ptr()}) == 4
    assert large.data_ptr() not in {value.data_ptr() for value in _on_cpu(state, copies=True).values()}
