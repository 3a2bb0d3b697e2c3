"""What the faiss-backed indexes share: inner products made to look like distances, searching, saving.

Takes: a faiss index.            Gives: Index.
May import: shapes, ann.base.    Never: normalises a vector whose length carries meaning.

Cells need all vectors of one length to rank by inner product. Where lengths differ, each vector gets one more
coordinate, sqrt(M^2 - |v|^2) with M the largest length, and queries a 0 there: inner products stay as they are and all
lengths become M (Bachrach et al., RecSys 2014). On 30,000 vectors of log-normal lengths this raises the recall of IVF
from 0.55 to 0.92; that of HNSW it lowers from 1.00 to 0.27, so graphs take the vectors as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np

from xc_core.ann.base import checked
from xc_core.shapes import F32, Shortlist

_SAME_LENGTH: Final = 1e-3
"""Relative spread of lengths under which vectors count as equally long."""


def even_lengths(vectors_LD: F32) -> F32:
    """Return the vectors, one coordinate longer where their lengths differ."""
    squares = np.einsum("ld,ld->l", vectors_LD, vectors_LD, dtype=np.float64)
    most = squares.max()
    if np.sqrt(squares.min()) > (1 - _SAME_LENGTH) * np.sqrt(most):
        return vectors_LD
    extra = np.sqrt(np.maximum(most - squares, 0)).astype(np.float32)
    return np.concatenate([vectors_LD, extra[:, None]], axis=1)


class FaissIndex:
    """A faiss index over vectors of width ``width``, perhaps one coordinate wider inside."""

    def __init__(self, inner: Any, width: int) -> None:
        self.inner, self.width, self.size = inner, width, int(inner.ntotal)

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        """Return about the k best labels of each query."""
        queries = checked(queries_BD, self.width, k)
        if self.inner.d > self.width:
            queries = np.pad(queries, ((0, 0), (0, 1)))
        scores, ids = self.inner.search(queries, min(k, self.size))
        return Shortlist.ranked(ids.astype(np.int64), scores).top(k)

    def save(self, folder: Path) -> None:
        """Write faiss's own file."""
        faiss.write_index(self.inner, str(folder / "index.faiss"))


def read(folder: Path) -> Any:
    """Read faiss's own file."""
    return faiss.read_index(str(folder / "index.faiss"))
