"""The letters of every shape, array types, and two types that many modules exchange: TokenBatch and Shortlist.

Letters, used as name suffixes (``emb_ND``, ``ids_BT``):
    N documents    L labels    B rows of a mini-batch    T tokens    D width of a vector
    K length of a shortlist    P positives of a document    U labels pooled by a mini-batch    F scores that are fused
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

PAD_ID: Final = -1
"""The label id that pads a shortlist row with fewer than K labels; its score is -inf."""


def spans(size: int, step: int) -> Iterator[slice]:
    """Yield slices of ``step`` rows, in order, that cover ``size`` rows; the last one may be shorter."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def extended(vectors_ND: F32, last: float) -> F32:
    """Return vectors with ``last`` as one more coordinate (N x (D + 1)).

    A row (w, b) has the product x . w + b with a document (x, 1), so a search by inner products finds rows with a bias.
    """
    return np.concatenate([vectors_ND, np.full((len(vectors_ND), 1), last, np.float32)], axis=1)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids of B texts, padded to the longest of them.

    ``ids_BT`` (int64) holds token ids, special tokens included; ``lengths_B`` (int64) is the number of tokens per row.
    """

    ids_BT: I64
    lengths_B: I64

    @property
    def mask_BT(self) -> Bool:
        """True where a token is real, False for padding (B x T)."""
        return np.asarray(np.arange(self.ids_BT.shape[1])[None, :] < self.lengths_B[:, None])

    def __len__(self) -> int:
        return len(self.lengths_B)


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The K best labels of each of N documents.

    ``ids_NK`` (int32) and ``scores_NK`` (float32), best first, equal scores by ascending id. A row with fewer than K
    labels ends in ``PAD_ID`` with score -inf. Scores are similarities: higher is better. Raises ValueError if the two
    are not N x K alike.
    """

    ids_NK: I32
    scores_NK: F32

    def __post_init__(self) -> None:
        if self.ids_NK.shape != self.scores_NK.shape or self.ids_NK.ndim != 2:
            raise ValueError(f"ids {self.ids_NK.shape} and scores {self.scores_NK.shape} must have one shape, N x K")

    def __len__(self) -> int:
        return len(self.ids_NK)

    @property
    def k(self) -> int:
        """K."""
        return int(self.ids_NK.shape[1])

    @property
    def filled_NK(self) -> Bool:
        """True where there is a label (N x K)."""
        return np.asarray(self.ids_NK != PAD_ID)

    def top(self, k: int) -> Shortlist:
        """Return the first ``k`` columns, padded if the shortlist is shorter than ``k``."""
        if k <= self.k:
            return Shortlist(self.ids_NK[:, :k], self.scores_NK[:, :k])
        extra = ((0, 0), (0, k - self.k))
        return Shortlist(
            np.pad(self.ids_NK, extra, constant_values=PAD_ID),
            np.pad(self.scores_NK, extra, constant_values=-np.inf),
        )

    def rows(self, rows: I64 | slice) -> Shortlist:
        """Return the shortlists of ``rows``."""
        return Shortlist(self.ids_NK[rows], self.scores_NK[rows])

    @classmethod
    def ranked(cls, ids_NK: Array, scores_NK: Array) -> Shortlist:
        """Sort every row by descending score, equal scores by ascending id; ``PAD_ID`` comes last."""
        scores = np.where(ids_NK == PAD_ID, -np.inf, scores_NK).astype(np.float32, copy=False)
        by_id = np.argsort(np.where(ids_NK == PAD_ID, np.iinfo(np.int32).max, ids_NK), axis=1, kind="stable")
        ids, scores = np.take_along_axis(ids_NK, by_id, 1), np.take_along_axis(scores, by_id, 1)
        by_score = np.argsort(-scores, axis=1, kind="stable")
        return cls(
            np.take_along_axis(ids, by_score, 1).astype(np.int32, copy=False),
            np.take_along_axis(scores, by_score, 1),
        )

    @classmethod
    def stack(cls, parts: list[Shortlist]) -> Shortlist:
        """Concatenate shortlists along the documents; shorter rows are padded to the longest K."""
        k = max(part.k for part in parts)
        padded = [part.top(k) for part in parts]
        return cls(np.concatenate([p.ids_NK for p in padded]), np.concatenate([p.scores_NK for p in padded]))
