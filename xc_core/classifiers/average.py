"""The mean of a table's rows over the last steps of a training; a step costs only what the rows that it changes do."""

from __future__ import annotations

import torch
from torch import Tensor


class TailMean:
    """mean_l = 1 / (T - t_0) sum_{s = t_0 + 1 .. T} w_l(s), w_l(s): row l after step s, started after step t_0.

    A row that a step does not change is not read: ``last_L`` holds up to which step each row is in ``sum_LD``.
    Source: Polyak and Juditsky (1992), averaging of iterates, here of the last ones only.
    """

    def __init__(self, rows_LD: Tensor) -> None:
        self.sum_LD = torch.zeros_like(rows_LD)
        self.last_L = torch.zeros(len(rows_LD), dtype=torch.int32, device=rows_LD.device)
        self.steps = 0
        """Steps since the start (s - t_0)."""

    def leave(self, at: Tensor | slice, rows_UD: Tensor) -> None:
        """Add the rows ``at`` with the values that they have had since they were last added; call before a change."""
        self.sum_LD[at] += rows_UD * (self.steps - self.last_L[at]).unsqueeze(1)
        self.last_L[at] = self.steps

    def of(self, rows_LD: Tensor) -> Tensor:
        """Return the means (L x D), ``rows_LD`` being the rows now; these if there was no step."""
        if not self.steps:
            return rows_LD
        return (self.sum_LD + rows_LD * (self.steps - self.last_L).unsqueeze(1)) / self.steps

    def tensors(self) -> dict[str, Tensor]:
        """Return all state, to be saved."""
        return {"sum": self.sum_LD, "last": self.last_L, "steps": torch.tensor([self.steps])}

    @classmethod
    def load(cls, tensors: dict[str, Tensor], device: torch.device) -> TailMean:
        """Return the mean with saved state."""
        found = cls(tensors["sum"][:0])
        found.sum_LD, found.last_L = (tensors[name].clone().to(device) for name in ("sum", "last"))
        found.steps = int(tensors["steps"])
        return found
