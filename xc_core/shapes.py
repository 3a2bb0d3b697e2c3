"""The letters of every shape and the passing types that travel between rooms.

Takes: numpy arrays.   Gives: TokenBatch, Embeddings, Shortlist (LabelMatrix is in data.labels, Bundle in bundle).
May import: errors.    Never: torch, files other than a memory map.

Letters, used as name suffixes (``emb_ND``, ``ids_BT``):
    N documents    L labels    B rows of a mini-batch    T tokens    D width of a vector
    K length of a shortlist    P positives of a document    U labels pooled by a mini-batch    F fusion features
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xc_core.errors import CorruptError, MissingError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

PAD_ID: Final = -1
"""The label id that fills a shortlist row which has fewer than K labels; its score is -inf."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids of B texts, padded to the longest of them.

    ``ids_BT`` (int64) holds token ids, special tokens included; ``lengths_B`` (int64) says how many of a row are real.
    """

    ids_BT: I64
    lengths_B: I64

    @property
    def mask_BT(self) -> Bool:
        """True where a token is real."""
        return np.asarray(np.arange(self.ids_BT.shape[1])[None, :] < self.lengths_B[:, None])

    def __len__(self) -> int:
        return len(self.lengths_B)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """N vectors of width D, in memory or mapped from a ``.npy`` file."""

    vectors_ND: F32

    @classmethod
    def open(cls, path: Path) -> Embeddings:
        """Map the float32 matrix of ``path``, copy-on-write: the file never changes, and torch takes it as it is.

        Raises MissingError where there is no file, CorruptError where it is no float32 matrix.
        """
        if not path.is_file():
            raise MissingError(
                f"no {path.name} in {path.parent}",
                expected="an embeddings artefact",
                do="run the stage that writes it: xc run embeddings",
            )
        vectors = np.load(path, mmap_mode="c", allow_pickle=False)
        if vectors.ndim != 2 or vectors.dtype != np.float32:
            raise CorruptError(
                f"{vectors.dtype} of shape {vectors.shape} in {path}",
                expected="float32 of shape (N, D)",
                do="run the stage that writes it again",
            )
        return cls(vectors)

    @property
    def width(self) -> int:
        """D."""
        return int(self.vectors_ND.shape[1])

    def __len__(self) -> int:
        return len(self.vectors_ND)


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The K best labels of each of N documents.

    ``ids_NK`` (int32) and ``scores_NK`` (float32), best first, equal scores by ascending id; short rows end in
    ``PAD_ID`` with score -inf. Scores are similarities: higher is better, always.
    """

    ids_NK: I32
    scores_NK: F32

    def __post_init__(self) -> None:
        if self.ids_NK.shape != self.scores_NK.shape or self.ids_NK.ndim != 2:
            raise ValueError(f"ids {self.ids_NK.shape} and scores {self.scores_NK.shape} must be two equal N x K")

    def __len__(self) -> int:
        return len(self.ids_NK)

    @property
    def k(self) -> int:
        """K."""
        return int(self.ids_NK.shape[1])

    @property
    def filled_NK(self) -> Bool:
        """True where there is a label."""
        return np.asarray(self.ids_NK != PAD_ID)

    def top(self, k: int) -> Shortlist:
        """Return the first ``k`` columns, padded where the shortlist is shorter than ``k``."""
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
        """Sort every row by falling score, equal scores by rising id, holes (``PAD_ID``) last."""
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
        """Concatenate shortlists along the documents, shorter ones padded to the longest K."""
        k = max(part.k for part in parts)
        own = [part.top(k) for part in parts]
        return cls(np.concatenate([p.ids_NK for p in own]), np.concatenate([p.scores_NK for p in own]))
