"""The letters of every shape, array types, and two types that many modules exchange: TokenBatch and Shortlist.

Letters, used as name suffixes (``emb_ND``, ``ids_BT``):
    N documents    L labels    B rows of a mini-batch    T tokens    D width of a vector
    K length of a shortlist    P positives of a document    U labels pooled by a mini-batch    F scores that are fused
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xc_core.errors import DataError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

PAD_ID: Final = -1
"""The label id that pads a shortlist row with fewer than K labels; its score is -inf."""


def as_slice(ids_N: I64) -> slice | I64:
    """Return an index for rows: a slice, which copies nothing, if the ids follow one another; otherwise the ids."""
    if len(ids_N) and np.array_equal(ids_N, ids_N[0] + np.arange(len(ids_N))):
        return slice(int(ids_N[0]), int(ids_N[-1]) + 1)
    return ids_N


def spans(size: int, step: int) -> Iterator[slice]:
    """Yield slices of ``step`` rows, in order, that cover ``size`` rows; the last one may be shorter."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


@dataclass(frozen=True)
class Computed:
    """N vectors of width D that are computed when they are read, so that an array of all of them need not exist."""

    shape: tuple[int, int]
    read: Callable[[Any], F32]
    """Returns the vectors at a slice, or at positions."""
    ndim: Final = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | I64) -> F32:
        return self.read(slice(*rows.indices(len(self))) if isinstance(rows, slice) else rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> F32:
        """Return an array of all vectors, filled in blocks."""
        out_ND = np.empty(self.shape, np.float32)
        for rows in spans(len(self), max(_BLOCK // max(self.shape[1], 1), 1)):
            out_ND[rows] = self.read(rows)
        return out_ND if dtype is None else out_ND.astype(dtype, copy=False)


Vectors = F32 | Computed
"""N vectors of width D: an array, or one that is computed in parts."""
_BLOCK: Final = 1 << 22
"""Numbers that are computed together: 16 MB."""


def extended(vectors_ND: F32, last: float) -> F32:
    """Return vectors with ``last`` as one more coordinate (N x (D + 1)).

    A row (w, b) has the product x . w + b with a document (x, 1), so a search by inner products finds rows with a bias.
    """
    return np.concatenate([vectors_ND, np.full((len(vectors_ND), 1), last, np.float32)], axis=1)


def in_order(bits: Any) -> Any:
    """Return integers in the order of the numbers whose bits are given as signed integers of the same size.

    Bits of a negative number fall as it rises, so all but the sign are inverted. Of its own result it gives the bits.
    """
    sign = bits.itemsize * 8 - 1
    return bits ^ ((bits >> sign) & ((1 << sign) - 1))


def _keys(ids_NK: Array, scores_NK: F32) -> I64:
    """Return one integer per pair, larger for a higher score and, among equal scores, for a lower id.

    So one sort ranks both, many times as fast as two stable sorts. Upper half: the bits of the score, inverted below 0,
    where a larger number of bits is a lower score. Lower half: the inverted id. NaN counts as the lowest score.
    """
    bits_NK = np.where(np.isnan(scores_NK), np.int32(-1), (scores_NK + np.float32(0)).view(np.int32))  # -0 + 0 is 0
    return np.asarray(
        (in_order(bits_NK).astype(np.int64) << 32) | (~ids_NK.astype(np.int32, copy=False)).view(np.uint32)
    )


def _from_keys(keys_NK: I64) -> tuple[I32, F32]:
    """Return ids and scores of ``_keys``."""
    order_NK = (keys_NK >> 32).astype(np.int32)
    return (~keys_NK).astype(np.int32), in_order(order_NK).view(np.float32)


def among(ids_NK: I32, known_NM: I32) -> Bool:
    """Return True for each id that is in the same row of ``known_NM`` (N x K); False for a hole."""
    width = 2 + max(ids_NK.max(initial=0), known_NM.max(initial=0))  # the key of a hole is that of no label
    first_N1 = np.arange(len(ids_NK))[:, None] * np.int64(width)
    return np.asarray(np.isin(first_N1 + ids_NK, first_N1 + known_NM) & (ids_NK != PAD_ID))


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids of B texts, padded to the longest of them.

    ``ids_BT`` (int64) holds token ids, special tokens included; ``lengths_B`` (int64) is the number of tokens per row.
    ``states_BTH`` (float32): the states of the tokens after an encoder's frozen layers, if they are known; zero for
    padding.
    """

    ids_BT: I64
    lengths_B: I64
    states_BTH: F32 | None = None

    @property
    def mask_BT(self) -> Bool:
        """True where a token is real, False for padding (B x T)."""
        return np.asarray(np.arange(self.ids_BT.shape[1])[None, :] < self.lengths_B[:, None])

    def __len__(self) -> int:
        return len(self.lengths_B)


def repeated(ids_NK: I32) -> tuple[I64, I32]:
    """Return the rows that have a label more than once, and this label, for each repetition."""
    ordered_NK = np.sort(ids_NK, axis=1)
    rows, columns = np.nonzero((ordered_NK[:, 1:] == ordered_NK[:, :-1]) & (ordered_NK[:, 1:] != PAD_ID))
    return rows, ordered_NK[rows, columns]


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
        if k == self.k:
            return self
        if k < self.k:
            return Shortlist(self.ids_NK[:, :k], self.scores_NK[:, :k])
        extra = ((0, 0), (0, k - self.k))
        return Shortlist(
            np.pad(self.ids_NK, extra, constant_values=PAD_ID),
            np.pad(self.scores_NK, extra, constant_values=-np.inf),
        )

    def rows(self, rows: I64 | slice) -> Shortlist:
        """Return the shortlists of ``rows``."""
        return Shortlist(self.ids_NK[rows], self.scores_NK[rows])

    def without(self, drop_NK: Bool) -> Shortlist:
        """Return the shortlist without the marked labels, gaps closed."""
        order = np.argsort(drop_NK, axis=1, kind="stable")
        ids_NK = np.where(drop_NK, np.int32(PAD_ID), self.ids_NK)
        scores_NK = np.where(drop_NK, np.float32(-np.inf), self.scores_NK)
        return Shortlist(np.take_along_axis(ids_NK, order, 1), np.take_along_axis(scores_NK, order, 1))

    @classmethod
    def nothing(cls, documents: int) -> Shortlist:
        """Return no label for each of N documents (N x 0)."""
        return cls(np.zeros((documents, 0), np.int32), np.zeros((documents, 0), np.float32))

    @classmethod
    def of(cls, rows: Iterable[npt.ArrayLike], num_labels: int) -> Shortlist:
        """Build from the labels of each document, best first, as another program ranks them; -1 stands for no label.

        Raises DataError for a label that is not there, or twice in a row: it would count as two right answers.
        """
        lists = [np.asarray(row).ravel() for row in rows]
        counts_N = np.array([len(row) for row in lists], np.int64)
        labels = np.concatenate([row for row in lists if len(row)] or [np.zeros(0, np.int64)])
        docs = np.repeat(np.arange(len(lists)), counts_N)[filled := labels != PAD_ID]
        labels = labels[filled]
        if not np.issubdtype(labels.dtype, np.integer):
            raise _labels_error(f"labels of the type {labels.dtype}", num_labels)
        if len(wrong := np.flatnonzero((labels < 0) | (labels >= num_labels))):
            raise _labels_error(f"the label {labels[wrong[0]]} in row {docs[wrong[0]]}", num_labels)
        pairs, first = np.unique(docs * num_labels + labels, return_index=True)
        if len(pairs) < len(labels):
            duplicate = np.setdiff1d(np.arange(len(labels)), first)[0]
            raise _labels_error(f"the label {labels[duplicate]} twice in row {docs[duplicate]}", num_labels)
        ranks = np.arange(len(labels)) - np.searchsorted(docs, docs)
        ids_NK = np.full((len(lists), int(ranks.max(initial=-1)) + 1), PAD_ID, np.int32)
        scores_NK = np.full(ids_NK.shape, -np.inf, np.float32)
        ids_NK[docs, ranks], scores_NK[docs, ranks] = labels, -ranks
        return cls(ids_NK, scores_NK)

    @classmethod
    def ranked(cls, ids_NK: Array, scores_NK: Array) -> Shortlist:
        """Sort every row by descending score, equal scores by ascending id; then ``PAD_ID``, then labels with NaN."""
        scores = np.where(ids_NK == PAD_ID, -np.inf, scores_NK).astype(np.float32, copy=False)
        keys_NK = _keys(ids_NK, scores)
        keys_NK.sort(axis=1)
        return cls(*_from_keys(keys_NK[:, ::-1]))

    @classmethod
    def stack(cls, parts: list[Shortlist]) -> Shortlist:
        """Concatenate shortlists along the documents; shorter rows are padded to the longest K."""
        k = max(part.k for part in parts)
        padded = [part.top(k) for part in parts]
        return cls(np.concatenate([p.ids_NK for p in padded]), np.concatenate([p.scores_NK for p in padded]))


def _labels_error(found: str, num_labels: int) -> DataError:
    return DataError(
        found,
        expected=f"whole numbers from 0 to {num_labels - 1:,}, each once in a row, or {PAD_ID} for none",
        do="give the places of the labels in corpus.table('labels')",
    )
