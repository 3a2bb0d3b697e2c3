"""The memory that the activations of a step of M1 take on a CPU, and whether this machine has it."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from xc_core import memory
from xc_core.distributed import World
from xc_core.encoders import Encoder, Passes
from xc_core.progress import report
from xc_core.sampling import Documents, Negatives, NegativeSource, Uniform, load_random
from xc_core.seeds import generator
from xc_core.shapes import I64
from xc_core.train.documents import EncoderData
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.heads import Head

PEAK: Final = 1.3
BESIDE: Final = 1_700_000_000
"""A process that trains takes this multiple of its activations, and bytes beside them
(docs/lab-notes/2026-11-30-memory-of-a-step.md)."""
_SMALL: Final = 0.1
"""Activations that take less than this share of the memory are kept: without them a process is hardly smaller (a
guess). A small encoder trains with a quarter of ``BESIDE``."""
_VIEWS: Final = {"TBackward0", "TransposeBackward0", "ToCopyBackward0"}
"""Operations after which a weight is still a weight: transposed, or cast by autocast."""


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
    activations, limit = step_bytes(task), memory.total_bytes()
    if enough := is_enough(activations, limit):
        return enough
    report(f"encoder: {twice(activations, limit)}")
    return False


def is_enough(activations: float, limit: float) -> bool:
    """Return False if a step with so many bytes of activations takes more memory than ``limit``."""
    kept = PEAK * activations
    return kept + BESIDE <= limit or kept < _SMALL * limit


def twice(activations: float, limit: float) -> str:
    """Return what is done if such a step takes more than ``limit``, in words."""
    return (
        f"a step would take about {(PEAK * activations + BESIDE) / 1e9:.1f} GB, and this machine has "
        f"{limit / 1e9:.1f} GB, so texts are encoded twice instead of keeping their activations (encoder.cache), which "
        "takes longer"
    )


def step_bytes(task: Training) -> float:
    """Return about how many bytes the activations of the first batch take, of texts that are encoded once.

    Those of the pass with the longest texts are counted. Other passes have fewer per token, so it is rather too much.
    """
    data, docs_B = task.data, next(iter(task.batches(0)), np.zeros(0, np.int64))
    texts = [] if task.settings.cache else [(data.documents, data.rows_N[docs_B])]
    if task.head.reads_once:
        texts.append((data.labels, _pooled_labels(task, docs_B)))
    passes = [Passes.of(task.encoder, store, rows) for store, rows in texts if len(rows)]
    batches = [batch for part in passes for batch in part.batches if not isinstance(batch, list)]
    if not batches:  # no texts, or an encoder that skips padding on a CPU, which is not counted
        return 0.0
    ids_BT, *more = max(batches, key=lambda batch: (batch[0].shape[1], len(batch[0])))
    tokens = sum(batch[0].numel() for batch in batches)
    return kept_bytes(task.encoder, ids_BT, *more) * tokens / ids_BT.numel()


def _pooled_labels(task: Training, docs_B: I64) -> I64:
    """Return labels of the pool of a batch, about as many as after the first refresh, which is still to come.

    Random labels stand for hard negatives, and uniform draws for those of a source that is fitted first.
    """
    negatives, data, seed = task.settings.negatives, task.data, task.settings.seed
    if negatives.searches is None and not negatives.due(0):
        return task.negatives.pool(docs_B, 0).labels_U
    documents = Documents(data.truth.rows(docs_B), None if data.filters is None else data.filters.rows(docs_B))
    return drawn_pool(negatives, documents, seed)


def drawn_pool(negatives: Negatives, documents: Documents, seed: int) -> I64:
    """Return the labels of the pool of a batch of ``documents``: of those that a source finds, as many random ones."""
    source = negatives.build(documents, seed)
    if "hard" in source.arrays():
        load_random(source, (len(documents), negatives.kept), documents.truth.num_labels, generator(seed, "memory"))
    elif negatives.searches is not None or negatives.due(0):
        draws = getattr(negatives, "draws", 1)
        uniform = Uniform(positives=negatives.positives, first=negatives.first, draws=draws)
        source = uniform.build(documents, seed)
    return source.pool(np.arange(len(documents)), 0).labels_U


def kept_bytes(encoder: Encoder, *batch: Tensor) -> int:
    """Return the bytes that autograd keeps of a pass for its gradient, weights left out; nothing is drawn."""
    weights = {weight.untyped_storage().data_ptr() for weight in encoder.parameters()}
    sizes: dict[int, int] = {}  # by address: one tensor may be kept for several operations

    def count(kept: Tensor) -> Tensor:
        storage = kept.untyped_storage()
        if storage.data_ptr() not in weights and not _is_weight(kept):
            sizes[storage.data_ptr()] = storage.nbytes()
        return kept.detach()  # one that knows its operation would keep it, and with it the whole pass

    was_training = encoder.training
    encoder.eval()
    with encoder.autocast(), torch.autograd.graph.saved_tensors_hooks(count, lambda kept: kept):
        vectors = encoder(*batch)  # held until all is counted: the address of a tensor that is gone may be used again
        total = sum(sizes.values())
    encoder.train(was_training)
    del vectors
    return total


def _is_weight(kept: Tensor) -> bool:
    """Return True for a weight that was cast or transposed; by its shape alone it may be an activation."""
    node: Any = kept.grad_fn
    while node is not None and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    return node is not None and node.name() == "torch::autograd::AccumulateGrad"
