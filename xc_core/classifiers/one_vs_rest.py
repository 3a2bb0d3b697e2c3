"""One step of a label table: score a pool, take the gradients, update the rows; block by block where the loss allows.

Takes: document vectors, a pool, a loss.                Gives: Descent: the loss and the documents' gradient.
May import: classifiers.table, losses, sampling, shapes.  Never: a matrix of targets or scores wider than a block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from xc_core.classifiers.table import LabelTable
from xc_core.losses import Loss, Sampled
from xc_core.sampling import Pool
from xc_core.shapes import I64

BLOCK: Final = 2048
"""Labels scored together by a separable loss: 256 documents x 2,048 x 4 bytes = 2 MB of scores stay in the cache."""


@dataclass(frozen=True)
class Descent:
    """What a step found: loss summed over the batch, what it counts, and d(loss / count) / d(document vectors)."""

    loss: float
    count: float
    gradient_BD: Tensor | None


@dataclass
class TableHead:
    """Rows of a table, scored against document vectors, learnt by their own optimiser.

    With a separable loss (BCE) scores, gradients and updates are made for ``block`` labels at a time and thrown away,
    so memory is B x block however many labels there are, and the matrix of targets never exists (Renee).
    """

    table: LabelTable
    loss: Loss
    block: int = BLOCK

    def descend(self, doc_BD: Tensor, pool: Pool, docs_B: I64, scale: float | None) -> Descent:
        """Update the pool's rows against their gradient; return the documents' where ``doc_BD`` asks for one.

        With ``scale`` None no row moves. A loss that is not finite moves nothing from there on.
        """
        leaf = doc_BD.detach().requires_grad_(doc_BD.requires_grad)
        gradient = torch.zeros_like(leaf) if leaf.requires_grad else None
        loss, count = 0.0, 0.0
        for block in pool.blocks(self.block) if self.loss.separable else (pool,):
            labels = torch.from_numpy(block.labels_U).to(leaf.device)
            rows_UD = self.table.take(labels)
            chosen, known, sampled = marks(block, docs_B, leaf.device)
            total, counted = self.loss(leaf @ self.table.vectors(rows_UD).T, chosen, known, sampled)
            loss, count = loss + float(total.detach()), float(counted)
            if not (total.requires_grad and count and math.isfinite(loss)):
                continue
            found = torch.autograd.grad(total / counted, [rows_UD] if gradient is None else [rows_UD, leaf])
            if scale is not None:
                self.table.update(labels, found[0], scale)
            if gradient is not None:
                gradient += found[1]
        return Descent(loss, count, gradient)


def gradient_error(head: TableHead, doc_BD: Tensor, docs_B: I64, pools: Sequence[Pool], whole: Pool) -> float:
    """Return mean_r |g_r - g|^2 / |g|^2: g the documents' gradient on the ``whole`` pool, g_r that on ``pools`` r.

    The relative variance of a gradient estimate where it is unbiased (ASTRA, lemma 4.1, part 2, bounds its root).
    """
    leaf = doc_BD.detach().requires_grad_(True)
    exact = head.descend(leaf, whole, docs_B, None).gradient_BD
    assert exact is not None
    errors = []
    for pool in pools:
        found = head.descend(leaf, pool, docs_B, None).gradient_BD
        assert found is not None
        errors.append(float((found - exact).square().sum()))
    return sum(errors) / len(errors) / max(float(exact.square().sum()), 1e-30)


def marks(pool: Pool, docs_B: I64, device: torch.device) -> tuple[Tensor, Tensor, Sampled]:
    """Return what a loss reads of a pool, as tensors: chosen, known (both B x U), and how labels were drawn."""
    chosen, known = (torch.from_numpy(m).to(device) for m in (pool.chosen_BU, pool.known_BU))
    weight, noise = (None if m is None else torch.from_numpy(m).to(device) for m in (pool.weight_BU, pool.noise_BU))
    docs, labels = torch.from_numpy(docs_B).to(device), torch.from_numpy(pool.labels_U).to(device)
    return chosen, known, Sampled(weight, noise, docs, labels)
