"""What a step of M1 keeps and is given: the banks of latest vectors, and a batch that is ready to be encoded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xc_core.data.tokens import Tokens
from xc_core.devices import put
from xc_core.distributed import ALONE, World
from xc_core.encoders import Encoder, Passes, embed_rows
from xc_core.sampling import Pool
from xc_core.shapes import F32, I64
from xc_core.train.parallel import gathered, ours


@dataclass(frozen=True)
class Ready:
    """A batch of M1 before its step: its pool, and tokens on the device."""

    pool: Pool
    documents: Passes
    texts: Passes | None
    """Texts of the pool's labels; None if the step does not encode them once."""


@dataclass
class Bank:
    """The latest vector of each of N texts, on the device of the encoder."""

    rows_ND: Tensor
    kept: bool = True
    """False for a bank that nothing reads: it has no rows, and writing to it does nothing."""

    @classmethod
    def zeros(cls, size: int, width: int, device: torch.device, *, kept: bool = True) -> Bank:
        """Return a bank of zeros; an empty one that stays empty if it is not ``kept``."""
        return cls(torch.zeros((size if kept else 0, width), device=device), kept)

    def fill(self, encoder: Encoder, store: Tokens, rows_N: I64, what: str, world: World = ALONE) -> None:
        """Encode all texts, each process a part of them; ``what`` is the title of the progress bar."""
        own_N = ours(rows_N, world)
        out_ND = self.numpy() if world.size == 1 else np.empty((len(own_N), self.rows_ND.shape[1]), np.float32)
        embed_rows(encoder, store, own_N, out_ND, what)
        self.rows_ND.copy_(gathered(torch.from_numpy(out_ND), len(rows_N), world).detach())

    def write(self, at_B: I64, vectors_BD: Tensor) -> None:
        """Replace the vectors of the texts ``at_B``, if they are kept; nothing waits for the device."""
        if self.kept:
            self.rows_ND[put(at_B, self.rows_ND.device)] = vectors_BD

    def numpy(self) -> F32:
        """Return all vectors: the same memory on a CPU, a copy of a bank on a card."""
        found: F32 = self.rows_ND.cpu().numpy()
        return found

    def load(self, rows_ND: Tensor) -> None:
        """Restore saved vectors, if they are kept."""
        if self.kept:
            self.rows_ND = rows_ND.clone().to(self.rows_ND.device)
