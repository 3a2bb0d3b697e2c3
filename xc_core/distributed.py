"""Processes that train together under torchrun: how many there are, which one this is, and what they exchange.

No other module reads the process group. All processes run the same code on the same inputs and draw the same batches;
an exchange is a call that all of them make in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from xc_core.causes import explanation
from xc_core.environment import whole
from xc_core.errors import ConfigError, UnavailableError, UsageError, XCError, first_line

if TYPE_CHECKING:  # every command imports this module; torch takes a second
    from torch import Tensor

    from xc_core.devices import Device

T = TypeVar("T")
_GLOO: Final = "gloo"
_CARDS: Final = "cpu:gloo,cuda:nccl"


@dataclass(frozen=True)
class World:
    """A group of ``size`` processes; this one has number ``rank``. Alone, every exchange returns what it was given.

    Exchanges raise UnavailableError if another process has ended.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls) -> World:
        """Read RANK and WORLD_SIZE, which torchrun sets; without them, or if they are empty, this is process 0 of 1.

        Raises ConfigError if they are no numbers, or not those of one group: such a process would write nothing.
        """
        rank, size = whole("RANK", 0), whole("WORLD_SIZE", 1, least=1)
        if rank >= size:
            found, expected = f"RANK={rank} of {size} processes (WORLD_SIZE)", f"a number from 0 to {size - 1}"
            raise ConfigError(found, expected=expected, do="start the processes with torchrun, or unset both")
        return cls(rank, size)

    @property
    def first(self) -> bool:
        """True for the process that writes and reports."""
        return self.rank == 0

    def summed(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensors of all processes."""
        if self.size == 1:
            return tensor
        import torch.distributed as dist

        total = tensor.detach().clone().contiguous()
        with self._contact():
            dist.all_reduce(total)
        return total

    def stacked(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all processes, of one shape, along a new first dimension in the order of the ranks."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        import torch
        import torch.distributed as dist

        out = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        with self._contact():
            dist.all_gather(out, tensor.contiguous())
        return torch.stack(out)

    def of_first(self, value: T) -> T:
        """Return the ``value`` of the first process."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        values: list[Any] = [value]
        with self._contact():
            dist.broadcast_object_list(values, 0)
        return values[0]  # type: ignore[no-any-return]

    def by_first(self, work: Callable[[], None]) -> None:
        """Let the first process do some work; raise its error in all of them, since the others would wait for it."""
        error = None
        if self.first:
            try:
                work()
            except XCError as failed:
                error = failed
            except Exception as failed:
                if (error := explanation(failed)) is None:
                    raise
                error.__cause__ = failed
        if shared := self.of_first(error):
            raise shared

    def everyone(self, value: T) -> list[T]:
        """Return the values of all processes."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        with self._contact():
            dist.all_gather_object(values, value)
        return values

    def to_first(self, value: T) -> list[T]:
        """Return the values of all processes in the first one, nothing in the others."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] | None = [None] * self.size if self.first else None
        with self._contact():
            dist.gather_object(value, values, 0)
        return values or []

    @contextmanager
    def _contact(self) -> Iterator[None]:
        """Turn the error of a lost connection into one for people."""
        try:
            yield
        except RuntimeError as error:
            raise UnavailableError(
                f"process {self.rank} of {self.size}, which lost the others ({first_line(error, 120)})",
                expected="all processes of a training alive until its end",
                do="look for the first error of the others; then start again, also with another number of processes: "
                "the training resumes from its last checkpoint",
            ) from error


ALONE: Final = World()


@contextmanager
def joined(activity: str) -> Iterator[World]:
    """Yield the group of processes that torchrun started for ``activity``; they can reach each other during the block.

    In the block ``Device.chosen()`` is this process's own device. Raises UnavailableError if they cannot find each
    other.
    """
    world = World.from_environment()
    if world.size == 1:
        yield ALONE
        return
    import torch.distributed as dist

    with _own_device() as device:
        try:
            dist.init_process_group(
                _GLOO if device.is_cpu else _CARDS, device_id=None if device.is_cpu else device.torch
            )
        except (RuntimeError, ValueError) as error:
            raise UnavailableError(
                f"process {world.rank} of {world.size} for {activity}, which cannot find the others ({error})",
                expected="the environment of torchrun, and a network between all machines",
                do="start it with torchrun; see docs/many-machines.md",
            ) from error
        try:
            yield world
        except BaseException:
            if device.is_cpu:  # NCCL would wait for the other processes, which wait for this one until the time limit
                dist.destroy_process_group()
            raise
        dist.destroy_process_group()


@contextmanager
def _own_device() -> Iterator[Device]:
    """Make the card whose number torchrun gave this process the chosen device of the block; a CPU stays one."""
    from xc_core.devices import Device, using

    device = Device.chosen()
    if device.kind == "cuda" and (local := os.environ.get("LOCAL_RANK")):
        device = Device.of(f"cuda:{local}")
    with using(device):
        yield device


def check_one_process(activity: str) -> None:
    """Raise UsageError if more than one process was started for ``activity``."""
    world = World.from_environment()
    if world.size > 1:
        raise UsageError(
            f"{world.size} processes started for {activity}",
            expected="one process: only `xc run` of encoder, embeddings, negatives and classifier has use for several",
            do="start it without torchrun, or with --nproc-per-node=1",
        )
