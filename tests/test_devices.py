"""The device is chosen by name, the number format of matrix products by measurement."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
import torch

from xc_core import devices
from xc_core.environment import DEVICE
from xc_core.errors import ConfigError, UnavailableError

SECONDS = {torch.float32: 1.0, torch.bfloat16: 1.0}


@pytest.mark.parametrize(
    ("instructions", "bf16", "wanted"),
    [
        (True, 0.25, True),  # four times as fast
        (True, 0.9, False),  # not enough to pay for the casts
        (True, 2.0, False),  # instructions are there, but slower: Intel Xeon without matrix units
        (False, 0.25, False),
    ],
)
def test_bf16_is_used_if_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, instructions: bool, bf16: float, wanted: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(devices, "product_seconds", {**SECONDS, torch.bfloat16: bf16}.__getitem__)
    devices._cpu_speed_of_bf16.cache_clear()
    try:
        assert devices.Device("cpu").multiplies_bf16() is wanted
    finally:
        devices._cpu_speed_of_bf16.cache_clear()


def test_a_product_is_timed_in_cpu_seconds() -> None:
    start = time.process_time()
    seconds = devices.product_seconds(torch.float32)
    assert 0 < 8 * seconds <= time.process_time() - start + 1e-7, "the least of eight; whatever else this machine does"


def test_of_eight_products_the_least_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the process: beside other processes the time of a real product is any number."""
    clock, asked = [7.0], list[Any]()

    def linear(left: torch.Tensor, right: torch.Tensor) -> None:
        asked.append((tuple(left.shape), tuple(right.shape), left.dtype, right.dtype, torch.is_grad_enabled()))
        clock[0] += costs[len(asked) - 1]

    costs = [4.0, 2.0, 3.0, 0.5, 2.0, 9.0, 1.0, 0.75, *[0.0] * 8]
    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    assert devices.product_seconds(torch.bfloat16) == 0.5
    assert asked == [((512, 384), (384, 384), torch.bfloat16, torch.bfloat16, False)] * 8
    assert devices.product_seconds(torch.float32) == 1e-9, "a clock that stands still: the quotient of two has a value"


def cards(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


@pytest.mark.parametrize(
    ("text", "number", "wanted"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda:0"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda:0"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_a_device_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch, text: str, number: int, wanted: str) -> None:
    cards(monkeypatch, number)
    monkeypatch.setenv(DEVICE, text)
    assert devices.Device.chosen() == devices.Device(wanted)


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:x", "CPU", "cuda:0 "])
def test_a_wrong_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="auto, cpu, cuda or cuda:N"):
        devices.Device.of(text)


@pytest.mark.parametrize(
    ("text", "number", "words"), [("cuda", 0, "no GPU"), ("cuda:2", 2, "only 2 GPUs"), ("cuda:1", 1, "only 1 GPU on")]
)
def test_a_card_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str, number: int, words: str
) -> None:
    cards(monkeypatch, number)
    with pytest.raises(UnavailableError, match=words):
        devices.Device.of(text)


def test_without_a_variable_the_device_is_the_card_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cards(monkeypatch, 0)
    for value in ("", None):
        monkeypatch.setenv(DEVICE, "") if value == "" else monkeypatch.delenv(DEVICE)
        assert devices.Device.chosen().is_cpu


@pytest.mark.parametrize("before", ["auto", None])
def test_a_device_is_chosen_for_a_block_and_no_longer(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv(DEVICE) if before is None else monkeypatch.setenv(DEVICE, before)
    with pytest.raises(ValueError, match="within"), devices.using(devices.Device("cuda:1")):
        assert os.environ[DEVICE] == "cuda:1"
        raise ValueError("within")
    assert os.environ.get(DEVICE) == before


def memory(monkeypatch: pytest.MonkeyPatch, free: int, *, reserved: int = 0, allocated: int = 0) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80_000_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)


def test_a_pass_fills_a_quarter_of_the_free_memory_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 40_000_000)
    card = devices.Device("cuda:0")
    assert card.tokens_per_pass(2048, 1000) == 10_000
    assert card.tokens_per_pass(2048, 100) == 16_384
    assert card.tokens_per_pass(2048, 100_000) == 2048
    assert card.tokens_per_pass(2048, 0) == 16_384, "an encoder of a plug-in may hold nothing"
    assert devices.Device("cpu").tokens_per_pass(2048, 1) == 2048
    assert (card.pass_cost, devices.Device("cpu").pass_cost) == (None, 64), "a card is fast if passes are full"


def test_an_array_on_a_cpu_is_not_copied() -> None:
    array = np.arange(3.0)
    devices.put(array, torch.device("cpu"))[0] = 7.0
    assert array[0] == 7.0


@pytest.mark.parametrize(("size", "kept"), [(0, True), (500, True), (501, False)])
def test_a_card_keeps_what_takes_half_of_its_free_memory(
    size: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(monkeypatch, 1000)
    assert devices.Device("cuda:0").keeps(size) == kept
    assert devices.CPU.keeps(1 << 60)


def test_memory_that_torch_keeps_for_its_next_tensors_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver counts it as used: after M1 nearly all of a card, though a search in the same process may have it."""
    memory(monkeypatch, 100, reserved=70_000, allocated=100)
    card = devices.Device("cuda:0")
    assert card.keeps(35_000)
    assert not card.keeps(35_001)
    assert card.tokens_per_pass(1, 10) == 1750


def test_columns_of_a_wider_array_are_pinned_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the masks of a pool that is scored in blocks."""
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device, non_blocking: tensor)
    wide = np.arange(40.0).reshape(4, 10)
    found = devices.put(wide[:, 2:4], torch.device("cuda"))
    assert torch.equal(found, torch.from_numpy(wide[:, 2:4]))
    assert pinned[0].untyped_storage().nbytes() == 4 * 2 * 8


def test_a_card_that_only_emulates_bf16_multiplies_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those before Ampere do: torch says that they support it, unless it is asked about the hardware alone."""
    capabilities = {"cuda:0": (7, 5), "cuda:1": (8, 0), "cuda:2": (9, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[str(device)])
    assert [devices.Device(name).multiplies_bf16() for name in capabilities] == [False, True, True]
    monkeypatch.setattr(torch.version, "hip", "6.0")  # AMD counts otherwise
    assert devices.Device("cuda:0").multiplies_bf16()
