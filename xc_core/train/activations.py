"""The memory that the activations of a step of M1 take on a CPU, and whether this machine has it."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from xc_core import memory
from xc_core.distributed import World
from xc_core.encoders import Encoder, Passes
from xc_core.progress import report
from xc_core.sampling import NegativeSource
from xc_core.shapes import I64
from xc_core.train.documents import EncoderData
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.heads import Head

_PEAK: Final = 1.3
_BESIDE: Final = 1_700_000_000
"""A process that trains takes this multiple of its activations, and bytes beside them
(docs/lab-notes/2026-11-30-memory-of-a-step.md)."""


class Training(Protocol):
    """What is read of a training of M1 (``EncoderTask``)."""

    settings: EncoderSettings
    encoder: Encoder
    data: EncoderData
    negatives: NegativeSource
    head: Head
    world: World

    def batches(self, epoch: int) -> list[I64]:
        """Return the batches of an epoch, as positions in ``data.rows_N``."""


def fits(task: Training) -> bool:
    """Return False, and report it, if a step takes more memory than this machine has.

    Only trainings of one process on a CPU are looked at.
    """
    if task.world.size > 1 or task.encoder.device.type != "cpu":
        return True
    needed, limit = _PEAK * step_bytes(task) + _BESIDE, memory.total_bytes()
    if needed > limit:
        report(
            f"encoder: a step would take about {needed / 1e9:.1f} GB, and this machine has {limit / 1e9:.1f} GB, so "
            "texts are encoded twice instead of keeping their activations (encoder.cache), which takes longer"
        )
    return needed <= limit


def step_bytes(task: Training) -> float:
    """Return about how many bytes the activations of the first batch take.

    Those of the pass with the longest texts are counted. Other passes have fewer per token, so it is rather too much.
    """
    order = task.batches(0)
    if not order:
        return 0.0
    docs_B, data = order[0], task.data
    texts = [(data.documents, data.rows_N[docs_B])]
    if task.head.reads_once:
        # a pool that is drawn with what a refresh makes is not known before; it has at least the labels of the batch
        drawn = not task.settings.negatives.due(0)
        labels = (
            task.negatives.pool(docs_B, 0).labels_U
            if drawn
            else np.unique(data.truth.rows(docs_B).indices).astype(np.int64)
        )
        texts.append((data.labels, labels))
    passes = [Passes.of(task.encoder, store, rows) for store, rows in texts if len(rows)]
    batches = [batch for part in passes for batch in part.batches if not isinstance(batch, list)]
    ids_BT, *more = max(batches, key=lambda batch: (batch[0].shape[1], len(batch[0])))
    tokens = sum(batch[0].numel() for batch in batches)
    return kept_bytes(task.encoder, ids_BT, *more) * tokens / ids_BT.numel()


def kept_bytes(encoder: Encoder, *batch: Tensor) -> int:
    """Return the bytes that autograd keeps of a pass for its gradient, weights left out; nothing is drawn."""
    weights = {tuple(weight.shape) for weight in encoder.parameters()}
    weights |= {shape[::-1] for shape in weights}
    sizes: dict[int, int] = {}  # by address: one tensor may be kept for several operations

    def count(kept: Tensor) -> Tensor:
        if tuple(kept.shape) not in weights:
            sizes[kept.untyped_storage().data_ptr()] = kept.untyped_storage().nbytes()
        return kept.detach()  # one that knows its operation would keep it, and with it the whole pass

    was_training = encoder.training
    encoder.eval()
    with encoder.autocast(), torch.autograd.graph.saved_tensors_hooks(count, lambda kept: kept):
        vectors = encoder(*batch)  # held until all is counted: the address of a tensor that is gone may be used again
        total = sum(sizes.values())
    encoder.train(was_training)
    del vectors
    return total
