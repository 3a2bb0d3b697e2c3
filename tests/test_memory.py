"""Free memory goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xc_core import memory

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
