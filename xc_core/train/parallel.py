"""Data-parallel training of the encoder: each process encodes its part of a batch, and all score the whole batch.

Every process computes the same loss on the gathered vectors, so the gradient of its own vectors is complete; summed
over processes, the gradients of the parameters are those of one process.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xc_core.classifiers import Shard
from xc_core.distributed import World
from xc_core.errors import MovedError
from xc_core.sampling import BatchOrder, NegativeSource
from xc_core.shapes import I64


def local_rows(rows_N: I64, world: World) -> I64:
    """Return the part of ``rows_N`` that this process encodes: every W-th of them."""
    return rows_N[world.rank :: world.size]


def gathered(local_UD: Tensor, size: int, world: World) -> Tensor:
    """Return the vectors of all ``size`` rows in order (with gradient), given those of ``local_rows``.

    All processes call it. The gradient of a process's own vectors flows back into them; that of the others flows back
    in their processes.
    """
    if world.size == 1:
        return local_UD
    if torch.is_grad_enabled() and not local_UD.requires_grad:
        local_UD = local_UD.requires_grad_(True)  # a process without rows takes part in the backward pass
    out: Tensor = _Gathered.apply(local_UD, size, world)  # type: ignore[no-untyped-call]
    return out


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local_UD: Tensor, size: int, world: World) -> Tensor:
        ctx.world = world
        return Shard(world, size).gather(local_UD, slice(0, -(-size // world.size)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.world.rank :: ctx.world.size], None, None


def check_draws(world: World, order: BatchOrder, negatives: NegativeSource, epoch: int) -> None:
    """Raise MovedError if processes have other batches of ``epoch``, or other arrays that pools are drawn from.

    Their losses would be computed on mixed batches. Several processes wait for a search in the background here, because
    its result is one of the arrays; one process asks for nothing.
    """
    if world.size == 1:
        return
    digest = hashlib.sha256()
    for array in (*order.batches(epoch), *negatives.arrays().values()):
        digest.update(np.ascontiguousarray(array).data)
    if len(set(world.everyone(digest.hexdigest()))) > 1:
        raise MovedError(
            "processes that disagree on the batches and negatives of an epoch",
            expected="the same code, settings, inputs and libraries on every machine",
            do="install the versions of constraints.txt on every machine, and start again",
        )
