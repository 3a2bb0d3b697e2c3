"""The label table: one row per label; a step reads and writes only the rows that it scores.

Memory per label: 9 bytes and a row, of 4 D bytes in float32 and 2 D in bfloat16, in memory or in a memory-mapped file;
4 (D + 1) bytes more while rows are averaged. Trainings copy rows block by block, never all of them, except M4 for a
search in rows. A step on U rows costs O(U D), independent of L.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from xc_core.classifiers.average import TailMean
from xc_core.classifiers.rules import READ_DECAY, RULES, RowState
from xc_core.classifiers.schedule import check_decay
from xc_core.classifiers.shard import WHOLE, Shard
from xc_core.classifiers.storage import BF16, FORMATS, FP32, MAPPED, MEMORY, Rows
from xc_core.devices import CPU, Device
from xc_core.errors import ConfigError
from xc_core.params import at_least, below, later, one_of, within
from xc_core.plugins import HasUnused
from xc_core.shapes import spans

_CHUNK: Final = 1 << 16
"""Numbers that are updated together: 256 KB, so that all passes over them stay in the cache."""


@dataclass(frozen=True, kw_only=True)
class TableConfig(HasUnused):
    """How rows are initialised, scored, updated and stored."""

    start: str = "text"
    """Initial rows: "text" for the vectors of the labels' texts (NGAME's M3), or "zero"."""
    unit: bool = True
    """Scores are cosines: the length of a row does not count. False: products with rows (logits of logistic losses)."""

    lr: float = 0.01
    """Learning rate after the warm-up: with rmsprop, about the root mean square change per coordinate in a step.
    1e-8 to 100."""
    decay: float = 0.99
    """Decay of a row's running mean square gradient (rmsprop)."""
    weight_decay: float = later(0.0, was=0.0)
    """Decoupled weight decay: in a step, a row that moves is first shortened by this times the learning rate. 0 to
    100, and below 1 / lr."""
    optimiser: str = later("rmsprop", was="rmsprop")
    """By what a row's gradient is divided: "rmsprop", "adagrad" (both with one mean square per row), or "sgd"."""
    precision: str = later(FP32, was=FP32)
    """Rows in training: "fp32", or "bf16" with stochastic rounding, half the memory. Released rows are float32."""
    storage: str = later(MEMORY, was=MEMORY)
    """Where rows are in training: in "memory", or in a "mapped" file of which at most about 2 GB are resident.
    No result depends on it."""

    def __post_init__(self) -> None:
        if self.start not in ("text", "zero") or (self.unit and self.start == "zero"):
            raise ConfigError(
                f"start {self.start!r}, unit {self.unit}", expected="text, or zero with unit false", do="fix the value"
            )
        within(self, lr=(1e-8, 100), weight_decay=(0, 100))
        at_least(self, decay=0)
        below(self, decay=1)
        check_decay(self.lr, self.weight_decay)
        one_of(self, optimiser=tuple(RULES), precision=tuple(FORMATS), storage=(MEMORY, MAPPED))

    def unused(self) -> frozenset[str]:
        """No result depends on the storage, nor on ``decay`` unless the optimiser reads it."""
        return frozenset({"storage"} if self.optimiser in READ_DECAY else {"storage", "decay"})


class LabelTable:
    """L rows of width D with a row-wise optimiser: one running mean square and one step count per row.

    A row's gradient is divided by the root of the row's own running mean square, so a rare label moves as far per step
    as a frequent one. A mean square per coordinate would do the same with D times the memory.
    """

    def __init__(
        self, rows_LD: Tensor, config: TableConfig, *, folder: Path | None = None, seed: int = 0, factor: float = 1.0,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        """Copy the initial rows ``rows_LD`` (L x D) times ``factor`` into the table's own storage.

        ``folder``: where the file of a mapped table is. ``seed``: of stochastic rounding. ``device``: by default that
        of ``rows_LD``. The rows of a mapped file are always on the CPU.
        """
        self.config = config
        size, width = rows_LD.shape
        device = (device or rows_LD.device) if config.storage == MEMORY else CPU.torch
        self.rows = Rows(
            (size, width), device, storage=config.storage, precision=config.precision, folder=folder, seed=seed
        )
        self.filled = False
        """True if rows may have been replaced since the table was built, so that a checkpoint needs all of them."""
        self.state = RowState(size, device)
        self.changed_L = torch.zeros(size, dtype=torch.bool, device=device)
        """Rows that changed since the last checkpoint."""
        self.mean: TailMean | None = None
        """The mean of the rows since ``average``."""
        self.product = self._product_format()
        """Number format of products with documents."""
        if config.start != "zero":
            self.rows.fill(rows_LD.detach(), factor)
        self.shard: Shard = WHOLE
        """The labels that the rows belong to."""
        self._buffers: dict[str, Tensor] = {}
        self._scratch = torch.empty(max(_CHUNK // max(width, 1), 1), width)

    @property
    def rows_LD(self) -> Tensor:
        """All rows as they are stored (L x D): do not write to them."""
        return self.rows.data_LD

    @property
    def square_L(self) -> Tensor:
        """The running mean square gradient of each row."""
        return self.state.square_L

    @property
    def steps_L(self) -> Tensor:
        """The number of steps that each row has taken."""
        return self.state.steps_L

    def put(self, labels_U: Tensor, rows_UD: Tensor) -> None:
        """Replace the rows ``labels_U`` before the first step."""
        self.rows.put(labels_U, rows_UD)
        self.filled = True
        self.changed_L.index_fill_(0, labels_U, True)

    def to(self, device: torch.device) -> None:
        """Move the table, which has not been averaged yet, to ``device``, unless its rows are in a mapped file."""
        self.rows.to(device)
        self.state.to(self.rows_LD.device)
        self.changed_L = self.changed_L.to(self.rows_LD.device)
        self.product = self._product_format()
        self._buffers.clear()

    def _product_format(self) -> torch.dtype:
        bf16 = self.config.precision == BF16 and Device(str(self.rows_LD.device)).multiplies_bf16()
        return torch.bfloat16 if bf16 else torch.float32

    def gather(self, labels_U: Tensor) -> Tensor:
        """Return the rows ``labels_U`` (distinct, rising) in a buffer that the next call overwrites, or as a view."""
        return self.rows.read(_index(labels_U), out=self.buffer("rows", len(labels_U)))

    def buffer(self, name: str, rows: int) -> Tensor:
        """Return float32 numbers of any value (rows x D) that stay allocated under ``name``.

        Fresh memory for every step would cost more than the step's gathers (page faults).
        """
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < rows:
            buffer = self._buffers[name] = torch.empty(rows, self.rows.shape[1], device=self.rows_LD.device)
        return buffer[:rows]

    def vectors(self, rows_UD: Tensor) -> Tensor:
        """Return ``rows_UD`` as documents are scored against them, in float32: normalised if ``unit``."""
        return torch.nn.functional.normalize(rows_UD.float(), dim=1) if self.config.unit else rows_UD.float()

    def released(self, block: slice, temperature: float) -> Tensor:
        """Return the rows ``block`` as they are served: unit vectors, or rows whose products with documents are logits.

        Training divides products by ``temperature``; served rows that are no unit vectors are divided by it already.
        """
        rows_UD = self.rows.read(block)
        if self.mean is not None:
            rows_UD = self.mean.of(rows_UD, block)
        return self.vectors(rows_UD) if self.config.unit else rows_UD / temperature

    def average(self) -> None:
        """Serve the mean of the rows after each of the following steps, not the rows after the last one."""
        self.mean = self.mean or TailMean(self.rows.zeros_like())

    def finish_step(self) -> None:
        """Count a step, after all of its updates."""
        if self.mean is not None:
            self.mean.steps += 1

    def update(self, labels_U: Tensor, gradient_UD: Tensor, scale: float) -> None:
        """Take one step on the rows ``labels_U`` (distinct, rising); ``scale`` in [0, 1] is the schedule's factor.

        w <- (1 - lr scale weight_decay) w - lr scale gradient / d, d from the optimiser (``rules``), which reads the
        mean square g of the row's gradient. A row whose gradient is 0 keeps its value and its state.
        """
        if not gradient_UD.is_cpu:
            self._update_on_card(labels_U, gradient_UD, scale)
            return
        square_U = self._mean_squares(gradient_UD)
        moved_U = square_U != 0  # also if it is not a number, so that the next loss of the row shows it
        moved_rows = None
        if not moved_U.all():
            moved_rows = moved_U.nonzero().squeeze(1)
            labels_U, square_U = labels_U[moved_rows], square_U[moved_rows]
        index = _index(labels_U)
        self.changed_L[index] = True
        self.state.steps_L[index] += 1
        divisor_U = RULES[self.config.optimiser](self.state, index, square_U, self.config.decay)
        for chunk in self.chunks(len(labels_U)):
            gradient = gradient_UD[chunk] if moved_rows is None else gradient_UD[moved_rows[chunk]]
            step = torch.mul(gradient, self.config.lr * scale, out=self._scratch[: len(gradient)])
            if divisor_U is not None:
                step.div_(divisor_U[chunk].unsqueeze(1))
            self._apply_step(_subindex(index, chunk), step, self.config.lr * scale)

    def _update_on_card(self, index: Tensor, gradient_UD: Tensor, scale: float) -> None:
        """Take the step of ``update`` on a card: rows that do not move are kept by a mask, so that nothing is read."""
        square_U = gradient_UD.square().mean(1)
        moved_U = square_U != 0
        old_square_U, rate = self.state.square_L[index], self.config.lr * scale
        self.changed_L[index] |= moved_U
        self.state.steps_L[index] += moved_U
        divisor_U = RULES[self.config.optimiser](self.state, index, square_U, self.config.decay)
        self.state.square_L[index] = torch.where(moved_U, self.state.square_L[index], old_square_U)
        rows_UD = self.rows.read(index)
        if self.mean is not None:
            self.mean.accumulate(index, rows_UD)
        step_UD = gradient_UD * rate if divisor_U is None else gradient_UD * rate / divisor_U.unsqueeze(1)
        if self.config.weight_decay:
            rows_UD = rows_UD * (1 - moved_U * (rate * self.config.weight_decay)).unsqueeze(1)
        self.rows.write(index, rows_UD - step_UD)

    def _apply_step(self, index: Tensor | slice, step_UD: Tensor, rate: float) -> None:
        """Subtract ``step_UD`` from the rows ``index``, after weight decay."""
        in_place = self.rows.exact and self.mean is None and not self.config.weight_decay
        if in_place and isinstance(index, Tensor):  # one pass over the table, without a gather
            self.rows.subtract(index, step_UD)
            return
        rows_UD = self.rows.read(index)
        if self.mean is not None:
            self.mean.accumulate(index, rows_UD)
        if self.config.weight_decay:
            rows_UD *= 1 - rate * self.config.weight_decay
        rows_UD -= step_UD
        if not (self.rows.exact and isinstance(index, slice)):  # otherwise these rows are a view
            self.rows.write(index, rows_UD)

    def _mean_squares(self, gradient_UD: Tensor) -> Tensor:
        """Return the mean square of each row's gradient (U)."""
        squares = [
            torch.mul(gradient, gradient, out=self._scratch[: len(gradient)]).mean(1)
            for gradient in (gradient_UD[chunk] for chunk in self.chunks(len(gradient_UD)))
        ]
        return torch.cat(squares) if squares else gradient_UD.new_zeros(0)

    def chunks(self, rows: int) -> Iterator[slice]:
        """Yield slices of ``rows`` rows, so small that several passes over one stay in a CPU's cache."""
        return spans(rows, len(self._scratch) if self.rows_LD.is_cpu else max(rows, 1))

    def per_row(self) -> dict[str, Tensor]:
        """Return the part of the state that has an entry per row: the tensors themselves, no copies."""
        mean = {} if self.mean is None else {f"mean/{name}": value for name, value in self.mean.per_row().items()}
        return {"rows": self.rows_LD, "square": self.square_L, "steps": self.steps_L, **mean}

    @property
    def row_bytes(self) -> int:
        """Bytes of all state of a row."""
        return sum(value[:1].numel() * value.element_size() for value in self.per_row().values())

    def changed(self, since_start: bool) -> Tensor:
        """Return a mask (L) of the rows that changed since the training began, or since ``changed_L`` was cleared."""
        if not since_start:
            return self.changed_L
        return torch.ones_like(self.changed_L) if self.filled else self.steps_L > 0

    def tensors(self) -> dict[str, Tensor]:
        """Return all state, to be saved. All processes that share the labels call it."""
        steps = {} if self.mean is None else {"mean/steps": torch.tensor([self.mean.steps])}
        writes = {} if self.rows.exact else {"writes": torch.tensor(self.shard.world.everyone(self.rows.writes))}
        return {**self.per_row(), **writes, **steps}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore saved state into the table's own storage; a tensor that is the table's own is not copied."""
        self.mean = None if "mean/steps" not in tensors else self.mean or TailMean(self.rows.zeros_like())
        if self.mean is not None:
            self.mean.steps = int(tensors["mean/steps"])
        if "writes" in tensors:
            writes, world = tensors["writes"].tolist(), self.shard.world
            self.rows.writes = writes[world.rank] if len(writes) == world.size else max(writes)
        for name, tensor in self.per_row().items():
            if tensors[name].data_ptr() != tensor.data_ptr():
                tensor.copy_(tensors[name])
                self.filled = True


def _index(labels_U: Tensor) -> Tensor | slice:
    """Return an index for the rows ``labels_U`` (distinct, rising): a slice if they are contiguous, else the ids.

    A slice is read and written without a copy. On a card it is always the ids: to look at them would wait for it.
    """
    if not labels_U.is_cpu:
        return labels_U
    if not len(labels_U) or int(labels_U[-1] - labels_U[0]) + 1 != len(labels_U):
        return labels_U
    return slice(int(labels_U[0]), int(labels_U[-1]) + 1)


def _subindex(index: Tensor | slice, chunk: slice) -> Tensor | slice:
    """Return the part ``chunk`` of an index."""
    return slice(index.start + chunk.start, index.start + chunk.stop) if isinstance(index, slice) else index[chunk]
