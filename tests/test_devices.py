"""The number format of matrix products is chosen by measurement."""

from __future__ import annotations

import pytest
import torch

from xc_core import devices

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
        assert devices.multiplies_bf16("cpu") is wanted
    finally:
        devices._cpu_speed_of_bf16.cache_clear()


def test_a_product_is_timed_in_cpu_seconds() -> None:
    assert 1e-9 < devices.product_seconds(torch.float32) < 1.0
