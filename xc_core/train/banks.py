"""The banks of latest vectors that the steps of M1 update, and a batch that is ready for its step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xc_core.classifiers import Shard
from xc_core.classifiers.storage import blocks
from xc_core.data.tokens import Tokens
from xc_core.devices import put
from xc_core.distributed import World
from xc_core.encoders import Encoder, Passes, embed_rows
from xc_core.sampling import Pool
from xc_core.shapes import F32, I64
from xc_core.train.parallel import local_rows


@dataclass(frozen=True)
class Ready:
    """A batch of M1 before its step: its pool, and tokens on the device."""

    pool: Pool
    documents: Passes
    texts: Passes | None
    """Texts of the pool's labels; None if the step does not encode them once, or with the documents."""
    num_documents: int
    """Texts of ``documents`` that are documents; label texts follow if they are encoded in the same passes."""


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

    def write(self, rows_B: I64, vectors_BD: Tensor) -> None:
        """Replace the vectors of the texts ``rows_B``, if they are kept; nothing waits for the device."""
        if self.kept:
            self.rows_ND[put(rows_B, self.rows_ND.device)] = vectors_BD.to(self.rows_ND.device)

    def stored(self) -> F32 | Tensor:
        """Return all vectors where they are, without a copy: an array on a CPU, a tensor on a card."""
        return self.numpy() if self.rows_ND.is_cpu else self.rows_ND

    def numpy(self) -> F32:
        """Return all vectors: the same memory on a CPU, a copy of a bank on a card."""
        vectors_ND: F32 = self.rows_ND.cpu().numpy()
        return vectors_ND

    def load(self, rows_ND: Tensor) -> None:
        """Restore saved vectors, if they are kept; raises ValueError for those of another shape."""
        if self.kept and rows_ND.shape != self.rows_ND.shape:
            raise ValueError(f"vectors of shape {tuple(rows_ND.shape)} instead of {tuple(self.rows_ND.shape)}")
        if self.kept:
            self.rows_ND.copy_(rows_ND)


Write = Callable[[I64, Tensor], None]
"""Takes the vectors of some texts, on the device of the encoder: (positions of the texts, vectors)."""


@dataclass(frozen=True)
class _WriteThrough:
    """Hands vectors to ``write`` as soon as they are computed, so that there is no array of all of them."""

    write: Write
    device: torch.device

    def __setitem__(self, rows_B: I64, vectors_BD: F32) -> None:
        self.write(rows_B, put(vectors_BD, self.device))


def encode_all(encoder: Encoder, store: Tokens, rows_N: I64, write: Write, title: str, world: World) -> None:
    """Encode all texts, each process a part of them, and call ``write`` in all processes for parts of the vectors.

    ``title`` is that of the progress bar.
    """
    if world.size == 1:
        embed_rows(encoder, store, rows_N, _WriteThrough(write, encoder.device), title)
        return
    local_N, shard = local_rows(rows_N, world), Shard(world, len(rows_N))
    local_ND = np.empty((len(local_N), encoder.width), np.float32)
    embed_rows(encoder, store, local_N, local_ND, title)
    for block in blocks(-(-len(rows_N) // world.size), encoder.width * world.size):
        vectors = put(shard.gather(torch.from_numpy(local_ND[block]), block).numpy(), encoder.device)
        write(block.start * world.size + np.arange(len(vectors)), vectors)
