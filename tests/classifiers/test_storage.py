"""Storage of rows: mapped equals memory to the bit, bf16 is right on average, and memory stays bounded."""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.classifiers.test_table import LABELS, WIDTH, start, steps
from xc_core.classifiers import LabelTable, Shard, TableConfig
from xc_core.classifiers.storage import BF16, FP32, MAPPED, MEMORY, Mapping, Rows, stochastic
from xc_core.distributed import World
from xc_core.errors import ConfigError, StorageError


def trained(config: TableConfig, seed: int = 0) -> LabelTable:
    table = LabelTable(start(), config, seed=seed)
    for number, part in enumerate(steps(20)):
        if number == 5:
            table.average()
        table.update(*part)
        table.finish_step()
    return table


@pytest.mark.parametrize("precision", [FP32, BF16])
@pytest.mark.parametrize("optimiser", ["rmsprop", "adagrad", "sgd"])
def test_a_mapped_table_equals_one_in_memory_to_the_bit(optimiser: str, precision: str) -> None:
    memory = trained(TableConfig(optimiser=optimiser, precision=precision, weight_decay=0.1))
    mapped = trained(TableConfig(optimiser=optimiser, precision=precision, weight_decay=0.1, storage=MAPPED))
    assert mapped.rows.mapping is not None
    for name, value in memory.tensors().items():
        assert torch.equal(value, mapped.tensors()[name]), name
    whole = slice(0, LABELS)
    assert torch.equal(memory.released(whole, 0.5), mapped.released(whole, 0.5))


def test_released_pages_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xc_core.classifiers.storage.RESIDENT", 1)  # release after every access
    released = []
    plain = Mapping.release
    monkeypatch.setattr(Mapping, "release", lambda self: released.append(plain(self)))
    config = TableConfig(lr=0.1, storage=MAPPED)
    assert torch.equal(trained(config).rows_LD, trained(TableConfig(lr=0.1)).rows_LD)
    assert len(released) > 20


def test_pages_are_released_before_more_of_them_are_resident_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of eight bytes that is read alone makes a page of 4,096 bytes resident."""
    released: list[int] = []
    monkeypatch.setattr("xc_core.classifiers.storage.RESIDENT", 3 * 4096)
    monkeypatch.setattr(Mapping, "release", lambda self: released.append(self.touched))
    rows = Rows((10_000, 2), torch.device("cpu"), storage=MAPPED, folder=tmp_path)
    for accessed, touched in ((torch.tensor([0, 5_000, 9_000]), []), (torch.tensor([7_000]), [4 * 4096])):
        rows.read(accessed)
        assert released == touched
    assert rows.mapping is not None
    rows.mapping.touched = 0
    rows.read(slice(0, 1_536))
    assert released == [4 * 4096], "rows that follow one another share pages"


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_mapped_table_that_the_disk_has_no_space_for_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=f"a full disk .* while writing {re.escape(str(tmp_path))}"):
        LabelTable(start(), TableConfig(storage=MAPPED), folder=tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_a_release_gives_the_memory_of_the_pages_back(tmp_path: Path) -> None:
    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssFile", "RssShmem")))

    size, before = 1 << 26, resident()
    mapping = Mapping.of(size, tmp_path)
    numbers = torch.frombuffer(mapping.map, dtype=torch.float32).fill_(1.0)
    full = resident()
    assert full - before > 0.9 * size
    mapping.release()
    assert full - resident() > 0.9 * size
    assert bool((numbers == 1.0).all())


class OnCard(torch.Tensor):
    """Numbers of the processor whose random bits are drawn as on a card."""

    is_cpu = False


@pytest.mark.parametrize("kind", [torch.Tensor, OnCard])
@pytest.mark.parametrize("value", [1.0, 1.001, -0.3333, 3e-20, -7e8, 0.0])
def test_stochastic_rounding_is_right_on_average_and_never_off_by_a_step(
    value: float, kind: type[torch.Tensor]
) -> None:
    rows = torch.full((400, 250), value).as_subclass(kind)
    found = stochastic(rows, 0, 1)
    assert found.dtype == torch.bfloat16
    step = abs(value) * 2**-7  # at most the distance of two bfloat16 numbers
    assert float((found.double() - value).abs().max()) <= step
    error = float(found.double().mean()) - float(rows[0, 0])
    assert abs(error) <= 4 * step / math.sqrt(rows.numel())  # four standard errors
    assert torch.equal(found, stochastic(rows, 0, 1))
    nearest = rows.to(torch.bfloat16)
    if not torch.equal(nearest.float(), rows):  # the number is not one of bfloat16
        assert not torch.equal(found, stochastic(rows, 0, 2))
        assert not torch.equal(found, stochastic(rows, 1, 1))
        assert len(found.unique()) == 2


@pytest.mark.parametrize("storage", [MEMORY, MAPPED])
@pytest.mark.parametrize(("precision", "error"), [(FP32, 0.0), (BF16, 2**-8)])
def test_initial_rows_are_multiplied_by_their_factor(storage: str, precision: str, error: float) -> None:
    table = LabelTable(start(), TableConfig(storage=storage, precision=precision), factor=0.3)
    torch.testing.assert_close(table.rows_LD.float(), start() * 0.3, rtol=error, atol=0.0)


def test_steps_too_small_for_bfloat16_arrive_on_average() -> None:
    """1,000 steps of a thousandth of the distance of two numbers: rounded to the nearest, no row would move."""
    table = LabelTable(torch.ones(1, 4000), TableConfig(unit=False, optimiser="sgd", lr=2**-17, precision=BF16))
    for _ in range(1000):
        table.update(torch.tensor([0]), torch.ones(1, 4000), 1.0)
    assert float(table.rows_LD.float().mean()) == pytest.approx(1 - 1000 * 2**-17, abs=2e-4)


def test_rounding_goes_on_from_restored_state() -> None:
    """Each write has random bits of its own; a resumed training must not repeat the first ones."""
    config, parts = TableConfig(precision=BF16), steps(12)
    old, new = LabelTable(start(), config, seed=3), LabelTable(start(), config, seed=3)
    for number, part in enumerate(parts):
        if number == 6:
            new.load(old.tensors())
        for table in (old, new) if number >= 6 else (old,):
            table.update(*part)
    assert torch.equal(old.rows_LD, new.rows_LD)


def test_each_process_goes_on_with_its_own_random_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of one training have different numbers of labels in a step, so of writes too."""
    monkeypatch.setattr(World, "everyone", lambda self, value: [value + rank - self.rank for rank in range(self.size)])
    tables = []
    for rank in range(2):
        table = LabelTable(start(), TableConfig(precision=BF16))
        table.shard, table.rows.writes = Shard(World(rank, 2), 2 * LABELS), 5 + rank
        tables.append(table)
    saved = tables[0].tensors()
    for table in tables:
        expected, table.rows.writes = table.rows.writes, 0
        table.load(saved)
        assert table.rows.writes == expected
    alone = LabelTable(start(), TableConfig(precision=BF16))
    alone.load(saved)
    assert alone.rows.writes == 6, "one process goes on after all writes of both"


def test_bf16_follows_fp32() -> None:
    exact, rounded = (trained(TableConfig(lr=0.05, precision=precision)) for precision in (FP32, BF16))
    assert rounded.rows_LD.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.rows_LD.float(), exact.rows_LD, rtol=0.02, atol=0.06)
    assert rounded.rows_LD.element_size() == 2


def test_contiguous_rows_are_a_view_only_if_stored_as_float32() -> None:
    at = slice(3, 9)
    exact, rounded = Rows((20, 4), torch.device("cpu")), Rows((20, 4), torch.device("cpu"), precision=BF16)
    exact.read(at).add_(1)
    rounded.read(at).add_(1)
    assert float(exact.data_LD.sum()) == 24
    assert float(rounded.data_LD.float().sum()) == 0


@pytest.mark.parametrize("changes", [{"optimiser": "adam"}, {"precision": "fp8"}, {"storage": "disk"}])
def test_an_unknown_choice_is_refused_with_the_known_ones(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        TableConfig(**changes)
    assert " or " in caught.value.expected


BOUNDED = """
import resource, sys
import torch
torch.set_num_threads(1)
from pathlib import Path
from xc_core.classifiers import LabelTable, TableConfig, TableHead
from xc_core.losses import Bce
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.state import History, Position

class Task:
    name = "bounded"
    def __init__(self, head): self.head = head
    def tables(self): return self.head.named()
    def tensors(self): return self.head.tensors()
    def load(self, tensors): self.head.load(tensors)

def room(): return int(next(l for l in open("/proc/self/status") if l.startswith("VmSize")).split()[1]) * 1024

L, D = 2_000_000, 64
folder = Path(sys.argv[1])
warm = torch.ones(64, 64) @ torch.ones(64, 64)
LabelTable(torch.ones(300, D), TableConfig()).update(torch.arange(300), torch.ones(300, D), 1.0)
whole = L * D * 4
start = torch.ones(1).expand(L, D)
limit = room() + int(float(sys.argv[2]) * whole)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
table = LabelTable(start, TableConfig(unit=True))
for at in range(0, L, 10_000):
    labels = torch.arange(at, at + 10_000)
    table.update(labels, torch.ones(10_000, D), 1.0)
head = TableHead(table, Bce().build())
task, checkpoints = Task(head), Checkpoints(folder / "run", "x")
checkpoints.save(task, Position(step=3), History(), beside=True)
checkpoints.wait()
assert checkpoints.restore(task)[0].step == 3
sum(float(part.sum()) for part in head.released_blocks())
print("done")
"""


@pytest.mark.parametrize(("tables", "fits"), [(1.75, True), (1.0, False)])
def test_a_table_is_made_trained_saved_and_released_without_a_copy(tables: float, fits: bool, tmp_path: object) -> None:
    """512 MB of rows, 18 MB of state and a few blocks of 64 MB, in an address space of ``tables`` times the rows."""
    command = [sys.executable, "-c", BOUNDED, str(tmp_path), str(tables)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert (done.stdout.strip() == "done") == fits, done.stderr


def test_the_files_of_the_rows_and_of_their_mean_are_in_the_given_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's folder for temporary files may be small."""
    made, folders = Mapping.of, list[Path | None]()
    monkeypatch.setattr(Mapping, "of", lambda size, folder: folders.append(folder) or made(size, folder))
    LabelTable(start(), TableConfig(storage=MAPPED), folder=tmp_path).average()
    assert folders == [tmp_path, tmp_path]


def test_the_mean_of_rows_has_no_more_than_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    table = LabelTable(start(), TableConfig(storage=MAPPED))
    table.average()
    assert table.mean is not None
    assert table.mean.sums.mapping is not None
    assert np.shares_memory(table.per_row()["mean/sum"].numpy(), table.mean.sums.data_LD.numpy())
    assert table.rows.shape == (LABELS, WIDTH)
