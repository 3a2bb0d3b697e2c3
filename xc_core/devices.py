"""The device of this process: where tensors live, which number format and attention are fast there, how it is read.

No other module asks torch about CUDA. A device is a setting of the machine: results depend on it as they depend on the
processor, by rounding alone, so it is in no fingerprint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from xc_core.environment import DEVICE, device_name
from xc_core.errors import UnavailableError
from xc_core.visible import counted

_MIN_BF16_SPEEDUP: Final = 1.2  # casts between the formats cost about a tenth of an encoder's time
_READ_EVERY: Final = 64
"""Steps after which losses are read from a card (a guess): each reading waits until the card has caught up."""
_AHEAD: Final = 2
"""Batches that are prepared while a card computes (a guess)."""
_PASS: Final = 16_384
"""Padded tokens per pass, at most, on a card (a guess): more only add padding to the short texts of a pass."""
_UNPADDED_PASS: Final = 131_072
"""The same for an encoder that does not compute padding (docs/lab-notes/2026-11-27-first-day-on-a-card.md)."""
_PASS_COST: Final = 64
"""Fixed cost of a pass on a CPU, in tokens (docs/lab-notes/2026-11-25-frozen-layers-once.md)."""
_PINNED: Final = 1 << 30
"""Bytes of the largest array that is pinned (a guess)."""
_KEPT_SHARE: Final = 0.5
"""Share of a card's free memory that one array may take to be kept there (a guess)."""
_LABELS: Final = 2048
"""Labels scored together on a CPU: 256 documents x 2,048 x 4 bytes = 2 MB of scores stay in the cache."""
_CARD_LABELS: Final = 1 << 16
"""Labels scored together on a card (a guess): 512 documents x 65,536 x 4 bytes = 128 MiB of scores, more for more
documents."""
_PASS_SHARE: Final = 0.25
"""Share of a card's free memory that the activations of a pass may take."""


@dataclass(frozen=True)
class Device:
    """A device that torch computes on. Frozen and small, so that each process of a training can have its own."""

    name: str = "cpu"
    """ "cpu", "cuda:0", or another name that torch knows."""

    @classmethod
    def of(cls, text: str) -> Device:
        """Return the device that ``text`` names: auto (a card if there is one), cpu, cuda or cuda:N.

        Raises ConfigError for another name, UnavailableError for a card that this machine or this torch lacks.
        """
        device_name(text)
        cards = num_cards()
        if text == "cpu" or (text == "auto" and not cards):
            return cls("cpu")
        number = int(text.partition(":")[2] or 0)
        if number >= cards:
            raise UnavailableError(
                f"device {text!r}, and {_cards_in_words(cards)}",
                expected="a GPU that torch can use",
                do="use --device cpu (or auto), or install a driver and a build of torch for this GPU",
            )
        return cls(f"cuda:{number}")

    @classmethod
    def chosen(cls) -> Device:
        """Return the device of this process: that of XC_DEVICE, which ``xc ... --device`` sets; auto without it.

        Raises ConfigError, UnavailableError, as ``of`` does.
        """
        return cls.of(device_name())

    @property
    def torch(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(self.name)

    @property
    def kind(self) -> str:
        """The name without a number: cpu, cuda."""
        return self.name.partition(":")[0]

    @property
    def is_cpu(self) -> bool:
        """True if tensors are in the memory of the processor, where reading a number waits for nothing."""
        return self.kind == "cpu"

    @property
    def attention(self) -> str:
        """Kind of attention: plain products on a CPU, which are faster on short texts; fused (SDPA) on a card."""
        return "eager" if self.is_cpu else "sdpa"

    @property
    def read_every(self) -> int:
        """Number of steps after which losses are read."""
        return 1 if self.is_cpu else _READ_EVERY

    @property
    def ahead(self) -> int:
        """Number of batches that a thread prepares ahead of the step; 0 if the step prepares its own."""
        return 0 if self.is_cpu else _AHEAD

    @property
    def pass_cost(self) -> int | None:
        """Number of tokens that cost as much as starting a pass; None on a card, which is fast if passes are full."""
        return _PASS_COST if self.is_cpu else None

    @property
    def labels_at_once(self) -> int:
        """Number of labels that are scored together by a loss that can be added up over labels."""
        return _LABELS if self.is_cpu else _CARD_LABELS

    def multiplies_bf16(self) -> bool:
        """Return True if matrix products in bf16 are faster than in fp32.

        On a CPU both are timed once per process (about 20 ms): the instructions alone do not tell. Measured with torch
        2.13: bf16 is 4.1 times as fast as fp32 on an AMD EPYC (Zen 5), 6 to 7 times on an Intel Xeon with matrix units,
        and half as fast on an Intel Xeon with AVX-512 bf16 but without matrix units.
        """
        if self.kind == "cuda":  # torch.cuda.is_bf16_supported is about the first card, and is true for emulation too
            return bool(torch.version.hip) or torch.cuda.get_device_capability(self.torch) >= (8, 0)
        # torch 2.13 has torch.cpu.get_capabilities, which earlier versions lack; without the probe bf16 is not used
        probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
        return self.is_cpu and bool(probe and probe()) and _cpu_speed_of_bf16() >= _MIN_BF16_SPEEDUP

    def tokens_per_pass(self, requested: int, bytes_per_token: int, *, padding: bool = True) -> int:
        """Return the padded tokens of a pass: ``requested`` on a CPU, or what a quarter of a card's free memory holds.

        ``bytes_per_token`` is the memory of a token's activations. On a card: from ``requested`` up to 16,384, or
        131,072 if ``padding`` is not computed.
        """
        if self.kind != "cuda":
            return requested
        limit = _PASS if padding else _UNPADDED_PASS
        return max(requested, min(int(self._free() * _PASS_SHARE) // max(bytes_per_token, 1), limit))

    def keeps(self, size: int) -> bool:
        """Return True if an array of ``size`` bytes may stay on the device, beside what else is there."""
        return self.kind != "cuda" or size <= _KEPT_SHARE * self._free()

    def _free(self) -> int:
        """Return the free bytes of the card, and those that torch keeps from earlier work for its next tensors."""
        free, _ = torch.cuda.mem_get_info(self.torch)
        return int(free + torch.cuda.memory_reserved(self.torch) - torch.cuda.memory_allocated(self.torch))

    def wait(self) -> None:
        """Wait until the device has done all that it was asked to do."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.torch)

    def clock(self) -> Callable[[], float]:
        """Return a clock in seconds: the running time of this thread on a CPU, finished work by the wall on a card.

        With other processes running, estimates were 1.5 times as long by the thread's clock, and 3 times by the wall
        clock.
        """
        return time.thread_time if self.is_cpu else self._finished

    def _finished(self) -> float:
        self.wait()
        return time.perf_counter()

    def in_words(self) -> str:
        """Return the name of the card, or "no GPU"."""
        return str(torch.cuda.get_device_name(self.torch)) if self.kind == "cuda" else "no GPU"


CPU: Final = Device("cpu")


@contextmanager
def using(device: Device) -> Iterator[None]:
    """Make ``device`` the chosen one of the block, and of processes that start in it."""
    previous = os.environ.get(DEVICE)
    os.environ[DEVICE] = device.name
    try:
        yield
    finally:
        if previous is None:
            del os.environ[DEVICE]
        else:
            os.environ[DEVICE] = previous


def num_cards() -> int:
    """Return the number of GPUs that torch can use here; CUDA_VISIBLE_DEVICES hides some."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _cards_in_words(cards: int) -> str:
    return f"only {counted(cards, 'GPU')} on this machine" if cards else "no GPU that torch can use"


def put(array: Any, device: torch.device) -> Tensor:
    """Return a numpy array as a tensor on ``device``: the same memory on a CPU, a copy on a card.

    For a card the copy starts from pinned memory and nothing waits for it; a table is copied as it is, because pinned
    memory cannot be swapped out. Columns of a wider array are gathered first: torch would pin memory for the whole
    width, and copy them from memory that is not pinned.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    if device.type == "cuda" and tensor.nbytes <= _PINNED:
        tensor = tensor.contiguous().pin_memory()
    return tensor.to(device, non_blocking=True)


def fetched(tensor: Tensor) -> Callable[[], Any]:
    """Begin to copy a tensor to the processor; return a function that waits for the copy and returns a numpy array.

    Work that a card is given between both calls is not waited for, so a card that is given some never stands still.
    """
    if tensor.device.type != "cuda":
        return lambda: tensor.cpu().numpy()
    copy, ended = tensor.to(CPU.torch, non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    ended.record(torch.cuda.current_stream(tensor.device))

    def wait() -> Any:
        ended.synchronize()
        return copy.numpy().copy()  # torch does not know who else reads pinned memory that it uses again

    return wait


@cache
def _cpu_speed_of_bf16() -> float:
    """Return how many times as fast as fp32 a product of an encoder's shape is in bf16, in CPU time."""
    return product_seconds(torch.float32) / product_seconds(torch.bfloat16)


def product_seconds(kind: torch.dtype) -> float:
    """Return the CPU time in seconds of a 512 x 384 by 384 x 384 product in ``kind``: the least of eight."""
    left, right = torch.ones(512, 384, dtype=kind), torch.ones(384, 384, dtype=kind)
    with torch.inference_mode():
        return min(_seconds_of(left, right) for _ in range(8))


def _seconds_of(left: torch.Tensor, right: torch.Tensor) -> float:
    start = time.process_time()
    torch.nn.functional.linear(left, right)
    return max(time.process_time() - start, 1e-9)
