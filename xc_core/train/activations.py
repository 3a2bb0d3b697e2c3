"""The memory that the activations of a step of M1 take on a CPU, and whether this machine has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from xc_core import memory
from xc_core.encoders import Encoder
from xc_core.progress import report

if TYPE_CHECKING:
    from xc_core.train.encoder import EncoderTask

_PEAK: Final = 1.5
"""Memory of a process that trains, as a multiple of its activations
(docs/lab-notes/2026-11-30-memory-of-a-step.md)."""


def fits(task: EncoderTask) -> bool:
    """Return False, and report it, if a step takes more memory than this machine has.

    Only trainings of one process on a CPU are looked at.
    """
    if task.world.size > 1 or task.encoder.device.type != "cpu":
        return True
    needed, limit = _PEAK * step_bytes(task), memory.total_bytes()
    if needed > limit:
        report(
            f"encoder: a step would take about {needed / 1e9:.1f} GB, and this machine has {limit / 1e9:.1f} GB, so "
            "texts are encoded twice instead of keeping their activations (encoder.cache), which takes longer"
        )
    return needed <= limit


def step_bytes(task: EncoderTask) -> float:
    """Return about how many bytes the activations of the first batch take.

    Those of the pass with the longest texts are counted. Other passes have fewer per token, so it is rather too much.
    """
    order = task.batches(0)
    if not order:
        return 0.0
    ready = task.prepare(order[0], 0)
    passes = [ready.documents] if ready.texts is None else [ready.documents, ready.texts]
    batches = [batch for part in passes for batch in part.batches if not isinstance(batch, list)]
    ids_BT, *more = max(batches, key=lambda batch: (batch[0].shape[1], len(batch[0])))
    tokens = sum(batch[0].numel() for batch in batches)
    return kept_bytes(task.encoder, ids_BT, *more) * tokens / ids_BT.numel()


def kept_bytes(encoder: Encoder, *batch: Tensor) -> int:
    """Return the bytes that autograd keeps of a pass for its gradient, weights left out; dropout draws nothing."""
    weights = {tuple(weight.shape) for weight in encoder.parameters()}
    weights |= {shape[::-1] for shape in weights}
    sizes: dict[int, int] = {}  # by address: one tensor may be kept for several operations

    def count(kept: Tensor) -> Tensor:
        if tuple(kept.shape) not in weights:
            sizes[kept.untyped_storage().data_ptr()] = kept.untyped_storage().nbytes()
        return kept.detach()  # one that knows its operation would keep it, and with it the whole pass

    with (
        torch.random.fork_rng(devices=[]),
        encoder.autocast(),
        torch.autograd.graph.saved_tensors_hooks(count, lambda kept: kept),
    ):
        vectors = encoder(*batch)  # held until all is counted: the address of a tensor that is gone may be used again
        total = sum(sizes.values())
    del vectors
    return total
