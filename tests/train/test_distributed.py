"""A training refuses to start in several processes."""

from __future__ import annotations

import pytest

from xc_core.distributed import World, alone
from xc_core.errors import UsageError


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_without_torchrun_is_alone() -> None:
    assert World.from_environment() == World(rank=0, size=1)
    alone("a training")


def test_one_process_of_torchrun_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    alone("a training")


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert World.from_environment() == World(rank=1, size=2)
    with pytest.raises(UsageError, match="2 processes started for a training") as caught:
        alone("a training")
    assert "--nproc-per-node=1" in caught.value.do
