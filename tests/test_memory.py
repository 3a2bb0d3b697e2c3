"""The memory that this process may use; free memory goes back to the system."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from xc_core import memory

GROUPS = {
    "version 2": (
        "0::/a/b\n",
        {"a/memory.max": "9000", "a/memory.current": "7000", "a/memory.stat": "anon 1\ninactive_file 500\n",
         "a/b/memory.max": "max", "a/b/memory.current": "100", "a/b/memory.stat": ""},
    ),
    "version 1": (
        "5:cpu:/a\n4:memory:/a\n0::/\n",
        {"memory/a/memory.limit_in_bytes": "9000", "memory/a/memory.usage_in_bytes": "7000",
         "memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 500\n"},
    ),
    "a container": (
        "0::/not/visible\n",
        {"memory.max": "9000", "memory.current": "7000", "memory.stat": "inactive_file 500\n"},
    ),
}  # fmt: skip
BLOCKS, SIZE = 40_000, 2_000
"""80 MB in blocks that glibc takes from its heap."""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    memory._trim.cache_clear()
    yield
    memory._trim.cache_clear()


def resident() -> int:
    """Return the anonymous resident memory of this process in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_free_blocks_below_one_that_is_used_are_returned() -> None:
    if memory._trim() is None:
        pytest.skip("the C library is not glibc")
    memory.give_back()  # what earlier tests left would hold some of the blocks
    before = resident()
    blocks = [np.ones(SIZE, np.uint8) for _ in range(BLOCKS)]
    last = blocks[-1]
    full = resident()
    assert full - before > 0.9 * BLOCKS * SIZE
    del blocks
    memory.give_back()
    assert full - resident() > 0.7 * BLOCKS * SIZE
    assert last.sum() == SIZE


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_another_c_library_keeps_it(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: None) -> Any:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    memory.give_back()
    assert memory._trim() is None


@pytest.mark.parametrize("case", GROUPS)
def test_the_limit_of_a_control_group_counts_and_its_cache_is_free(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, files = GROUPS[case]
    for name, content in {"own": own, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(memory, "_PROCESS_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    assert (memory.total_bytes(), memory.free_bytes()) == (9000, 2500)


def test_the_limit_of_the_address_space_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    used = psutil.Process().memory_info().vms
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + (64 << 20), -1))
    assert memory.total_bytes() == used + (64 << 20)
    assert 0 <= memory.free_bytes() < 128 << 20


def test_a_system_without_control_groups_has_the_memory_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_PROCESS_GROUPS", tmp_path / "none")
    assert 0 < memory.free_bytes() < memory.total_bytes() == psutil.virtual_memory().total
