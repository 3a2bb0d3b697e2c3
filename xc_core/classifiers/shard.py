"""A label table that is spread over processes: process r of W has the labels l with l mod W = r, in order.

So frequent labels, which often stand together, are spread evenly, and the same positions of all processes are
neighbouring labels: a block of positions is gathered into a block of labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from xc_core.devices import put
from xc_core.distributed import ALONE, World
from xc_core.sampling import Pool
from xc_core.shapes import F32, I64, Bool


@dataclass(frozen=True)
class Shard:
    """The labels of one process. ``Shard()`` has all labels."""

    world: World = ALONE
    size: int = 0
    """Labels of all processes; not needed if this process has all."""

    @property
    def whole(self) -> bool:
        """True if this process has all labels."""
        return self.world.size == 1

    def of(self, array: F32) -> F32:
        """Return the rows of this process, of an array with a row per label: a view."""
        return array[self.world.rank :: self.world.size]

    def owned(self, labels_U: I64) -> Bool:
        """Return True for labels of this process."""
        is_owned: Bool = labels_U % self.world.size == self.world.rank
        return is_owned

    def places(self, labels_U: I64) -> I64:
        """Return the positions of this process's labels among its own."""
        return labels_U if self.whole else labels_U // self.world.size

    def labels(self, places_U: Tensor) -> Tensor:
        """Return the labels at positions of this process."""
        return places_U if self.whole else places_U * self.world.size + self.world.rank

    def cut(self, pool: Pool) -> Pool:
        """Return the pool without the labels of other processes."""
        return pool if self.whole else pool.only(pool.labels_U[self.owned(pool.labels_U)])

    def columns(self, local_BU: Tensor, labels_U: I64) -> Tensor:
        """Return the columns of all ``labels_U``, given those of this process's labels. All processes call it."""
        if self.whole:
            return local_BU
        owner_U = labels_U % self.world.size
        padded = local_BU.new_zeros(len(local_BU), int(np.bincount(owner_U, minlength=self.world.size).max()))
        padded[:, : local_BU.shape[1]] = local_BU
        all_BV = torch.cat(tuple(self.world.stacked(padded)), dim=1)
        order = np.argsort(owner_U, kind="stable")  # process by process, each in the order of its labels
        rank_U = np.empty(len(order), np.int64)
        starts = np.concatenate([[0], np.cumsum(np.bincount(owner_U, minlength=self.world.size))])
        rank_U[order] = np.arange(len(order)) - starts[owner_U[order]]
        return all_BV[:, put(owner_U * padded.shape[1] + rank_U, local_BU.device)]

    def own_columns(self, all_BU: Tensor, labels_U: I64) -> Tensor:
        """Return the columns of this process's labels."""
        return all_BU if self.whole else all_BU[:, put(np.flatnonzero(self.owned(labels_U)), all_BU.device)]

    def gather(self, local_UD: Tensor, block: slice) -> Tensor:
        """Return the rows of all processes at the positions ``block``, in the order of labels, given this process's.

        The last position may be one that this process does not have. All processes call it.
        """
        if self.whole:
            return local_UD
        padded = local_UD.new_zeros(block.stop - block.start, local_UD.shape[1])
        padded[: len(local_UD)] = local_UD
        rows = self.world.stacked(padded).transpose(0, 1).reshape(-1, local_UD.shape[1])
        return rows[: self.size - block.start * self.world.size]


WHOLE: Final = Shard()
