"""Who this process is, its GPU, refusals. Exchanges between real processes are tested in test_ranks.py."""

from __future__ import annotations

import errno
import os
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from xc_core.ann import ExactIndex
from xc_core.data.labels import LabelMatrix
from xc_core.devices import CPU, Device
from xc_core.distributed import ALONE, World, _own_device, check_one_process, joined
from xc_core.errors import MovedError, ShortageError, StorageError, UsageError
from xc_core.sampling import Documents, Importance, Random
from xc_core.train.parallel import check_draws


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_without_torchrun_is_alone() -> None:
    assert World.from_environment() == World(rank=0, size=1)
    check_one_process("a training")


def test_empty_variables_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an environment file leaves them for a process that torchrun does not start."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("xc_core.devices.num_cards", lambda: 4)
    monkeypatch.setenv("XC_DEVICE", "cuda:1")
    assert World.from_environment() == World(rank=0, size=1)
    with _own_device() as device:
        assert device == Device("cuda:1")


def test_one_process_of_torchrun_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    check_one_process("a training")


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert World.from_environment() == World(rank=1, size=2)
    with pytest.raises(UsageError, match="2 processes started for a training") as caught:
        check_one_process("a training")
    assert "--nproc-per-node=1" in caught.value.do


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StorageError),
        (MemoryError("x"), ShortageError),
        (MovedError("x", expected="y", do="z"), MovedError),
        (ValueError("x"), ValueError),
    ],
)
def test_what_the_first_process_could_not_do_is_explained(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        ALONE.by_first(Mock(side_effect=error))
    assert error in (caught.value, caught.value.__cause__), "xc --debug shows it"


def test_a_process_takes_the_card_that_torchrun_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[tuple[str, object]] = []
    monkeypatch.setattr("xc_core.devices.num_cards", lambda: 4)
    monkeypatch.setattr(
        "torch.distributed.init_process_group", lambda *kind, device_id: groups.append((*kind, device_id))
    )
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: None)
    monkeypatch.setenv("XC_DEVICE", "cuda:1")
    with joined("a test"):
        assert Device.chosen() == Device("cuda:1"), "without torchrun the device that was asked for"
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    with joined("a test"):
        assert Device.chosen() == Device("cuda:3")
        assert ExactIndex(np.ones((2, 2), np.float32)).device == Device("cuda:3"), "searches run there too"
    assert Device.chosen() == Device("cuda:1")
    monkeypatch.setenv("XC_DEVICE", "cpu")
    with joined("a test"):
        assert Device.chosen() == CPU
    monkeypatch.delenv("XC_DEVICE")
    with joined("a test"):
        assert Device.chosen() == Device("cuda:3")
    assert "XC_DEVICE" not in os.environ
    card = torch.device("cuda:3")
    assert groups == [("cpu:gloo,cuda:nccl", card), ("gloo", None), ("cpu:gloo,cuda:nccl", card)]


@pytest.mark.parametrize(("device", "ends"), [("cuda", 0), ("cpu", 1)])
def test_a_process_that_fails_on_a_card_does_not_wait_for_the_others(
    device: str, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the group as it is: NCCL ends one together with the others, which wait for this process in a step."""
    ended: list[int] = []
    monkeypatch.setattr("xc_core.devices.num_cards", lambda: 1)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *kind, device_id: None)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: ended.append(1))
    monkeypatch.setenv("XC_DEVICE", device)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(MemoryError), joined("a test"):
        raise MemoryError
    assert len(ended) == ends
    assert os.environ["XC_DEVICE"] == device
    with joined("a test"):
        pass
    assert len(ended) == ends + 1


def test_processes_that_drew_other_batches_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = Documents(LabelMatrix.identity(8))
    order, same, other = Random(batch_size=4).build(documents, 0), *(Importance().build(documents, 0) for _ in range(2))
    other.load({"hard": np.ones((8, 1), np.int32), "epoch": np.zeros(1)})
    said: list[object] = []
    monkeypatch.setattr(World, "everyone", lambda self, value: said.append(value) or list(said))
    check_draws(World(0, 2), order, same, 1)
    check_draws(World(1, 2), order, same, 1)
    for wrong in ((order, other, 1), (order, same, 2)):
        with pytest.raises(MovedError, match="disagree on the batches and negatives"):
            check_draws(World(1, 2), *wrong)
    check_draws(ALONE, order, other, 1)
    assert len(said) == 4, "one process alone compares nothing"
