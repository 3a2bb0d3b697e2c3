"""The mean of a table's rows over the last steps of a training; a step costs only what the rows that it changes do."""

from __future__ import annotations

import torch
from torch import Tensor

from xc_core.classifiers.storage import Rows


class TailMean:
    """mean_l = 1 / (T - t_0) sum_{s = t_0 + 1 .. T} w_l(s), w_l(s): row l after step s, started after step t_0.

    A row that a step does not change is not read: ``last_L`` holds up to which step each row is in ``sums``.
    Source: Polyak and Juditsky (1992), averaging of iterates, here of the last ones only.
    """

    def __init__(self, sums: Rows) -> None:
        """Start with ``sums``: a storage of zeros in float32."""
        self.sums = sums
        self.last_L = torch.zeros(len(sums), dtype=torch.int32, device=sums.data_LD.device)
        self.steps = 0
        """Steps since the start (s - t_0)."""

    def accumulate(self, index: Tensor | slice, rows_UD: Tensor) -> None:
        """Add the present rows ``index`` once for each step since they were last added; call it before they change."""
        sum_UD = self.sums.read(index)
        sum_UD += rows_UD * (self.steps - self.last_L[index]).unsqueeze(1)
        self.sums.write(index, sum_UD)
        if isinstance(index, slice):
            self.last_L[index] = self.steps
        else:  # a number that is assigned at an index would be copied to a card, which waits for it
            self.last_L.index_fill_(0, index, self.steps)

    def of(self, rows_UD: Tensor, block: slice) -> Tensor:
        """Return the means of the rows ``block`` (U x D), given their present values; these if there was no step."""
        if not self.steps:
            return rows_UD
        since_U1 = (self.steps - self.last_L[block]).unsqueeze(1)
        return (self.sums.read(block) + rows_UD * since_U1) / self.steps

    def per_row(self) -> dict[str, Tensor]:
        """Return the state that has an entry per row: the tensors themselves, no copies."""
        return {"sum": self.sums.data_LD, "last": self.last_L}
