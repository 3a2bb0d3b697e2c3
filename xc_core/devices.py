"""Which number format the matrix products of a device are fastest in, by measurement."""

from __future__ import annotations

import time
from functools import cache

import torch

_FASTER = 1.2  # casts between the formats cost about a tenth of an encoder's time


def multiplies_bf16(device: str) -> bool:
    """Return True if matrix products in bf16 are faster than in fp32 on ``device`` ("cpu" or "cuda").

    On a CPU both are timed once per process (about 20 ms): the instructions alone do not tell. Measured with torch
    2.13: bf16 is 4.1 times as fast as fp32 on an AMD EPYC (Zen 5), 6 to 7 times on an Intel Xeon with matrix units,
    and half as fast on an Intel Xeon with AVX-512 bf16 but without matrix units.
    """
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(probe and probe()) and _cpu_speed_of_bf16() >= _FASTER


@cache
def _cpu_speed_of_bf16() -> float:
    """Return how many times as fast as fp32 a product of an encoder's shape is in bf16, in CPU time."""
    return product_seconds(torch.float32) / product_seconds(torch.bfloat16)


def product_seconds(kind: torch.dtype, repeats: int = 7) -> float:
    """Return the CPU time in seconds of a 512 x 384 by 384 x 384 product in ``kind``: the least of ``repeats``."""
    left, right = torch.ones(512, 384, dtype=kind), torch.ones(384, 384, dtype=kind)
    with torch.inference_mode():
        return min(_seconds_of(left, right) for _ in range(repeats + 1))


def _seconds_of(left: torch.Tensor, right: torch.Tensor) -> float:
    start = time.process_time()
    torch.nn.functional.linear(left, right)
    return max(time.process_time() - start, 1e-9)
