"""A training step of a label table: score a pool, compute gradients, update rows; in blocks if the loss allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from xc_core.classifiers.gradients import Gradients
from xc_core.classifiers.pool_rows import PoolRows
from xc_core.classifiers.shard import WHOLE, Shard
from xc_core.classifiers.storage import Rows, blocks
from xc_core.classifiers.table import LabelTable
from xc_core.devices import Device, put
from xc_core.losses import BatchLoss, OnHost, Sampled
from xc_core.losses.base import summed
from xc_core.sampling import PairPool, Pool
from xc_core.shapes import I64, spans

CELLS: Final = 1 << 25
"""Documents times labels of a step whose scores are computed together: 19 bytes each with a triplet loss, 44 with a
softmax."""


@dataclass(frozen=True)
class Descent:
    """Result of a step: loss summed over the batch, what it counts, and d(loss / count) / d(document vectors).

    Loss and count are float64 scalars on the device of the table; to read them waits for a card.
    """

    loss: Tensor
    count: Tensor
    gradient_BD: Tensor | None


@dataclass
class TableHead:
    """Rows of a table, scored against document vectors and updated by their own optimiser: s_il = x_i . w_l + b_l.

    The bias b_l is a row of a second table of width 1, or 0 if there is none. With a separable loss (BCE), scores and
    gradients are computed for ``block`` labels at a time and discarded, so memory is B x block for any number of
    labels, and the matrix of targets never exists (Renee).
    """

    table: LabelTable
    loss: BatchLoss
    divisor: float = 1.0
    """The loss divides scores by this."""
    block: int | None = None
    """Labels scored together by a separable loss; None: what suits the device of the rows."""
    bias: LabelTable | None = None
    """A number per label that is added to its scores (L x 1, not normalised)."""
    shard: Shard = WHOLE
    """The labels of this process. With a separable loss, processes exchange nothing in a step (NGAME, appendix C);
    with another one they exchange scores, and each computes the whole loss and updates its own rows."""
    cells: int = CELLS
    """Documents times labels scored together by a loss whose documents are independent: with more, a step scores some
    documents at a time and adds their gradients up (gradient accumulation)."""

    def descend(self, doc_BD: Tensor, pool: Pool, docs_B: I64, scale: float | None) -> Descent:
        """Update the pool's rows; return the gradient of the documents too if ``doc_BD`` requires one.

        ``scale`` is the schedule's factor on the learning rate; None updates nothing. If the loss of a block is not
        finite, this block and later ones update nothing. On a card no number is read: there such a block gets gradients
        of 0, which update nothing either.
        """
        leaf = doc_BD.detach().requires_grad_(doc_BD.requires_grad)
        gradient = torch.zeros_like(leaf) if leaf.requires_grad else None
        loss, count = self._descend(leaf, gradient, pool, docs_B, scale)
        return Descent(loss, count, gradient)

    def gradient(self, doc_BD: Tensor, pool: Pool, docs_B: I64) -> Tensor:
        """Return d(loss / count) / d(``doc_BD``) on ``pool``; updates nothing."""
        leaf = doc_BD.detach().requires_grad_(True)
        gradient = torch.zeros_like(leaf)
        self._descend(leaf, gradient, pool, docs_B, None)
        return gradient

    def row_gradient(self, doc_BD: Tensor, pool: Pool, docs_B: I64, labels_S: I64) -> Tensor:
        """Return d(loss / count) / d(rows) of ``labels_S`` (distinct, rising; S x D) for a separable loss.

        A row that is not in ``pool`` has the gradient zero. Updates nothing.
        """
        block, doc_BD = pool.only(labels_S), doc_BD.detach()
        labels = put(block.labels_U, doc_BD.device)
        pooled = [PoolRows.of(table, labels) for table in self.tables]
        scores_BU = self._scores(doc_BD, pooled).requires_grad_(True)
        total, counted = summed(self.loss, scores_BU, *marks(block, docs_B, doc_BD.device))
        (slope_BU,) = torch.autograd.grad(total / counted, [scores_BU])
        row_gradient = pooled[0].back_to_rows(slope_BU, doc_BD)
        gradient = row_gradient.new_zeros(len(labels_S), row_gradient.shape[1])
        gradient[put(np.searchsorted(labels_S, block.labels_U), gradient.device)] = row_gradient
        return gradient

    def _descend(
        self, leaf: Tensor, gradient: Tensor | None, pool: Pool, docs_B: I64, scale: float | None
    ) -> tuple[Tensor, Tensor]:
        """Return loss and count; add the gradient of ``leaf`` to ``gradient``; update rows if there is a ``scale``."""
        loss = count = torch.zeros((), dtype=torch.float64, device=leaf.device)
        for block in self._blocks(pool):
            found = self._gradients(leaf.detach(), block, docs_B, docs=gradient is not None, rows=scale is not None)
            loss, count = loss + found.loss, found.count
            usable = loss.isfinite() & (count != 0)
            if leaf.is_cpu and not usable:
                continue
            if gradient is not None and found.docs_BD is not None:
                gradient += _zero_unless(found.docs_BD, usable)
            if scale is not None:
                for pooled, gradient_UD in zip(found.pooled, found.rows, strict=False):
                    pooled.table.update(pooled.labels_U, _zero_unless(gradient_UD, usable), scale)
        if scale is not None:
            for table in self.tables:
                table.finish_step()
        return loss, count

    def _gradients(self, doc_BD: Tensor, block: Pool, docs_B: I64, *, docs: bool, rows: bool) -> Gradients:
        """Return loss and gradients of ``block``, of all documents at once or of parts of them, added up.

        ``docs``, ``rows``: whether the gradients of documents and of rows are computed.
        """
        labels = put(self.shard.places(self.shard.cut(block).labels_U), doc_BD.device)
        parts = self._parts(len(docs_B), len(block.labels_U))
        zero = torch.zeros((), dtype=torch.float64, device=doc_BD.device)
        out = Gradients(
            [PoolRows.of(table, labels) for table in self.tables],
            zero,
            zero,
            torch.zeros_like(doc_BD) if docs else None,
            rows,
            kept=len(parts) > 1,
        )
        for part in parts:
            some = block if len(parts) == 1 else block.documents(part)
            scores_BU = self._all_columns(self._scores(doc_BD[part], out.pooled), block).requires_grad_(True)
            total, counted = summed(self.loss, scores_BU, *marks(some, docs_B[part], doc_BD.device))
            out.count_in(total, counted)
            if total.requires_grad:
                # the count of all parts is not known yet; of a single part it divides the loss
                (slope_BU,) = torch.autograd.grad(total / counted if len(parts) == 1 else total, [scores_BU])
                out.add(part, self.shard.own_columns(slope_BU, block.labels_U), doc_BD[part])
        if len(parts) > 1:
            out.divide()
        return out

    def _parts(self, documents: int, labels: int) -> list[slice]:
        """Return the documents that are scored together: all, unless their losses add up and they are too many."""
        whole = self.loss.separable or not getattr(self.loss, "independent", False)
        return list(spans(documents, documents if whole else max(self.cells // max(labels, 1), 1)))

    def _blocks(self, pool: Pool) -> Iterator[Pool]:
        """Yield the parts of a pool whose losses add up; with a separable loss, of this process's labels alone."""
        if not self.loss.separable:
            yield pool
            return
        width = self.block or Device(str(self.table.rows_LD.device)).labels_at_once
        for block in pool.blocks(width * self.shard.world.size):
            yield self.shard.cut(block)

    def _all_columns(self, scores_BU: Tensor, block: Pool) -> Tensor:
        """Return the scores of all labels that the loss needs together."""
        return scores_BU if self.loss.separable else self.shard.columns(scores_BU, block.labels_U)

    def combined(self, numbers: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """Return losses and counts of steps, given those of this process. All processes call it."""
        if self.shard.whole or not self.loss.separable:
            return numbers
        total = self.shard.world.summed(torch.tensor([loss for loss, _ in numbers], dtype=torch.float64))
        return [(loss, count) for loss, (_, count) in zip(total.tolist(), numbers, strict=True)]

    @property
    def tables(self) -> list[LabelTable]:
        """The rows and, if there is one, the bias."""
        return [self.table] if self.bias is None else [self.table, self.bias]

    def named(self) -> dict[str, LabelTable]:
        """Return the tables by the prefix of their tensors' names."""
        return {"": self.table} | ({} if self.bias is None else {"bias/": self.bias})

    def _scores(self, doc_BD: Tensor, pooled: list[PoolRows]) -> Tensor:
        """Return the scores (B x U) in float32."""
        products_BU = pooled[0].products(doc_BD)
        return products_BU if self.bias is None else products_BU + pooled[1].rows_UD.T

    def vectors(self) -> Tensor:
        """Return all rows as documents are scored against them (L x D), with a bias as the last column (L x (D + 1)).

        The product with a document's vector and a last coordinate of 1 is its score.
        """
        table = self.table
        if self.shard.whole and self.bias is None and table.rows.exact and not table.config.unit:
            return table.rows_LD
        out_LD = Rows(self.shape, table.rows_LD.device, storage=table.config.storage, folder=table.rows.folder).data_LD
        return _fill(out_LD, self._all_blocks(self.vectors_at))

    def vectors_at(self, block: slice) -> Tensor:
        """Return the rows ``block`` of this process as documents are scored against them, with their bias."""
        return self._with_bias(block, lambda table, part: table.vectors(table.rows.read(part)))

    @property
    def shape(self) -> tuple[int, int]:
        """L and the width of rows with their bias."""
        size = len(self.table.rows) if self.shard.whole else self.shard.size
        return size, sum(table.rows.shape[1] for table in self.tables)

    def _with_bias(self, block: slice, read: Callable[[LabelTable, slice], Tensor]) -> Tensor:
        """Return what ``read`` returns for the rows and, if there is one, the bias, side by side."""
        parts = [read(table, block) for table in self.tables]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _all_blocks(self, read: Callable[[slice], Tensor]) -> Iterator[Tensor]:
        """Yield what ``read`` returns for blocks of rows, of all processes, in the order of labels."""
        size, width = self.shape
        world = self.shard.world
        for block in blocks(-(-size // world.size), width * world.size):
            yield self.shard.gather(read(slice(block.start, min(block.stop, len(self.table.rows)))), block)

    def released(self) -> Tensor:
        """Return all rows as they are served (L x D); for large tables use ``released_blocks``."""
        return _fill(torch.empty(self.shape, device=self.table.rows_LD.device), self.released_blocks())

    def released_at(self, block: slice) -> Tensor:
        """Return the rows ``block`` of this process as they are served, with their bias."""
        unit = self.table.config.unit
        return self._with_bias(
            block, lambda table, part: table.released(part, 1.0 if table is self.bias and unit else self.divisor)
        )

    def released_blocks(self) -> Iterator[Tensor]:
        """Return all rows as they are served, in order, in blocks: unit vectors, or rows whose products are logits.

        A bias is the last column, in the same unit as the products.
        """
        return self._all_blocks(self.released_at)

    def tensors(self) -> dict[str, Tensor]:
        """Return the table's rows and optimiser state, those of the bias, and the state of the loss."""
        bias = {} if self.bias is None else self.bias.tensors()
        return {
            **self.table.tensors(),
            **{f"bias/{name}": value for name, value in bias.items()},
            **{f"loss/{name}": value for name, value in self.loss.tensors().items()},
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore saved state."""
        self.table.load(tensors)
        if self.bias is not None:
            self.bias.load({n.removeprefix("bias/"): value for n, value in tensors.items() if n.startswith("bias/")})
        self.loss.load({n.removeprefix("loss/"): value for n, value in tensors.items() if n.startswith("loss/")})


@dataclass(frozen=True)
class GradientError:
    """Relative errors E |g_r - g|^2 / |g|^2 of gradients on sampled pools, g being the gradient on all labels.

    If the estimate is unbiased, this is its relative variance (ASTRA, lemma 4.1, part 2, bounds its root).
    """

    documents: float
    """Of the gradient with respect to each document's vector."""
    batch: float
    """Of the sum of these over the batch, in which errors that documents share do not cancel."""
    rows: float
    """Of the gradient with respect to the rows of a sample of labels."""

    def as_dict(self, name: str) -> dict[str, float]:
        """Return the three under ``name``, ``name``_batch and ``name``_rows."""
        return {name: self.documents, f"{name}_batch": self.batch, f"{name}_rows": self.rows}


def gradient_error(
    head: TableHead, doc_BD: Tensor, docs_B: I64, pools: Sequence[Pool], all_labels: Pool, labels_S: I64
) -> GradientError:
    """Return the errors of the gradients on ``pools`` (one per draw) against those on the pool ``all_labels``.

    The rows measured are those of ``labels_S`` (distinct, rising). The loss must be separable.
    """
    exact_BD = head.gradient(doc_BD, all_labels, docs_B)
    drawn = [head.gradient(doc_BD, pool, docs_B) for pool in pools]
    rows = [head.row_gradient(doc_BD, pool, docs_B, labels_S) for pool in pools]
    return GradientError(
        _relative_error(drawn, exact_BD),
        _relative_error([gradient_BD.sum(0) for gradient_BD in drawn], exact_BD.sum(0)),
        _relative_error(rows, head.row_gradient(doc_BD, all_labels, docs_B, labels_S)),
    )


def _relative_error(estimates: Sequence[Tensor], exact: Tensor) -> float:
    """Return mean_r |g_r - g|^2 / |g|^2."""
    errors = [float((estimate - exact).square().sum()) for estimate in estimates]
    return sum(errors) / len(errors) / max(float(exact.square().sum()), 1e-30)


def _fill(out_LD: Tensor, row_blocks: Iterator[Tensor]) -> Tensor:
    """Write the rows of all blocks into ``out_LD``, in order, and return it."""
    start = 0
    for block in row_blocks:
        out_LD[start : start + len(block)] = block
        start += len(block)
    return out_LD


def _zero_unless(gradient: Tensor, usable: Tensor) -> Tensor:
    """Return ``gradient``; on a card 0 if it is not ``usable``. On a CPU the caller has checked that it is."""
    return gradient if gradient.is_cpu else torch.where(usable, gradient, 0.0)


def marks(pool: Pool, docs_B: I64, device: torch.device) -> tuple[Tensor, Tensor, Sampled]:
    """Return the masks of a pool as tensors: chosen and known (both B x U), and how labels were sampled.

    A card makes the masks of pairs itself: otherwise B x U answers are computed, pinned and copied in every step.
    """
    docs, labels = put(docs_B, device), put(pool.labels_U, device)
    if isinstance(pool, PairPool) and device.type != "cpu":
        shape = len(docs_B), len(pool.labels_U)
        chosen, known = (_mask_of(cells, shape, device) for cells in pool.cells())
    else:
        chosen, known = (put(m, device) for m in (pool.chosen_BU, pool.known_BU))
    weight, noise = (None if m is None else put(m, device) for m in (pool.weight_BU, pool.noise_BU))

    def host() -> OnHost:
        return OnHost(pool.chosen_BU, pool.known_BU, pool.weight_BU, docs_B, pool.labels_U)

    return chosen, known, Sampled(weight, noise, docs, labels, host)


def _mask_of(cells: tuple[I64, I64], shape: tuple[int, int], device: torch.device) -> Tensor:
    """Return a mask that is True in ``cells``, made on ``device``."""
    rows_P, columns_P = cells  # a number that is assigned at an index would be copied to a card, which waits for it
    out = torch.zeros(shape[0] * shape[1], dtype=torch.bool, device=device)
    return out.index_fill_(0, put(rows_P * shape[1] + columns_P, device), True).view(shape)
