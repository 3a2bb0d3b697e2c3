"""The score ``neighbours``: the nearest train documents vote for their labels, the nearer ones with more weight.

Files: an index over the train documents (those of ``ann``) and their labels (``labels.safetensors``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save_file

from xc_core.ann import Exact, ExactIndex, Index, Ivf, exact_search, load_index, recall, save_index
from xc_core.arrays import read_arrays
from xc_core.data.labels import LabelMatrix, ragged_positions
from xc_core.errors import CorruptError
from xc_core.params import at_least, within
from xc_core.scores.base import SCORES, FittedScore, Footprint, NewLabels, Query, Score, ScoreData, Size
from xc_core.shapes import F32, I32, I64, PAD_ID, Shortlist

_LABELS: Final = "labels.safetensors"
MOST: Final = 1_000
"""Labels with a vote that are proposed of a document, at most: a train document may have tens of thousands, which would
widen the candidates of all documents that are ranked together."""
_MEASURED: Final = 100
"""Documents on which the recall of the index is measured; each is compared with all train documents."""


@SCORES.register("neighbours")
@dataclass(frozen=True, kw_only=True)
class Neighbours(Score):
    """vote(x, l) = sum_j w_j [ l in P_j ] / sum_j w_j,  w_j = exp(cos(x, x_j) / temperature), over the nearest j."""

    nearest: int = 30
    """Train documents that vote. On validation documents of WordNetMini, 20 and 50 are within 0.2 points of P@1."""
    temperature: float = 0.05
    """Softmax temperature of the votes' weights; 0.02 and 0.1 lose 0.3 points there."""
    exact_up_to: int = 50_000
    """Number of documents up to which search is exact; above it, IVF search answers a single text ten times faster."""
    probes: int = 128
    """Cells that an IVF search visits."""

    def __post_init__(self) -> None:
        at_least(self, nearest=1, exact_up_to=0, probes=1)
        within(self, temperature=(1e-6, 100))

    def fit(self, data: ScoreData) -> FittedScore:
        """Build an index over the documents; raise ValueError if vectors and labels are of different documents."""
        vectors_ND = np.ascontiguousarray(data.vectors())
        if len(vectors_ND) != len(data.truth):
            raise ValueError(f"{len(vectors_ND)} vectors for {len(data.truth)} documents")
        part = Exact() if len(vectors_ND) <= self.exact_up_to else Ivf(probes=self.probes)
        return Voters(self, part.build(vectors_ND), data.truth)

    def footprint(self, size: Size) -> Footprint:
        """Return the bytes of the vectors in the files, and what a query is compared with: all of them, or cells."""
        written = size.documents * size.width * np.dtype(np.float32).itemsize
        if size.documents <= self.exact_up_to:
            return Footprint(written=written, compared=size.documents)
        cells = Ivf().cells(size.documents)
        return Footprint(written=written, compared=cells + self.probes * size.documents // cells, cells=(cells,))

    def extended(self, fitted: FittedScore, new: NewLabels) -> FittedScore:
        """Add the labels; no document votes for them."""
        assert isinstance(fitted, Voters)
        truth = fitted.truth
        return Voters(self, fitted.index, LabelMatrix(truth.indptr, truth.indices, truth.num_labels + len(new)))

    def open(self, folder: Path) -> FittedScore:
        """Open the index and the labels; raise CorruptError if they are of different documents."""
        content, do = "the labels of the documents", "run the stage scores again"
        rows = read_arrays(folder / _LABELS, "indptr", "indices", "num_labels", content=content, do=do)
        truth = LabelMatrix(rows["indptr"], rows["indices"], int(rows["num_labels"][0]))
        index = load_index(folder)
        if index.size != len(truth):
            raise CorruptError(
                f"{index.size} vectors and labels of {len(truth)} documents in {folder}",
                expected="the same number in both",
                do=do,
            )
        return Voters(self, index, truth)


@dataclass(frozen=True)
class Votes:
    """The votes for the labels of B documents, as M pairs of a document and a label that has a vote."""

    keys_M: I64
    """document * num_labels + label, ascending, each once."""
    share_M: F32
    """Share of each pair in the votes of its document."""
    documents: int
    num_labels: int

    def labels(self, limit: int) -> I32:
        """Return the labels with a vote, by document, each once, holes last.

        Of more than ``limit`` labels of a document, those with the most votes are kept; of equal ones, the first.
        """
        rows, ids = np.divmod(self.keys_M, self.num_labels)
        counts = np.bincount(rows, minlength=self.documents)
        if counts.max(initial=0) > limit:
            kept = np.sort(np.lexsort((ids, -self.share_M, rows))[_positions_in_group(counts) < limit])
            rows, ids, counts = rows[kept], ids[kept], np.minimum(counts, limit)
        out = np.full((self.documents, int(counts.max(initial=0))), PAD_ID, np.int32)
        out[rows, _positions_in_group(counts)] = ids
        return out

    def of(self, ids_BK: I32) -> F32:
        """Return each candidate's share of its document's votes, between 0 and 1; 0 for a hole."""
        if not len(self.keys_M):
            return np.zeros(ids_BK.shape, np.float32)
        queries = np.arange(len(ids_BK))[:, None] * np.int64(self.num_labels) + ids_BK
        positions = np.minimum(np.searchsorted(self.keys_M, queries), len(self.keys_M) - 1)
        voted = (self.keys_M[positions] == queries) & (ids_BK != PAD_ID)
        return np.where(voted, self.share_M[positions], 0).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Voters(FittedScore):
    """Train documents, indexed by their vectors, with their labels."""

    settings: Neighbours
    index: Index
    truth: LabelMatrix

    @property
    def num_labels(self) -> int:
        """Number of labels, L."""
        return self.truth.num_labels

    def candidates(self, query: Query, k: int) -> I32 | None:
        """Return the labels that have a vote: all of them up to ``MOST``, more only if ``k`` is larger."""
        return self._votes(query).labels(max(k, MOST))

    def values(self, query: Query, ids_NK: I32) -> F32:
        """Return each candidate's share of its document's votes, between 0 and 1."""
        return self._votes(query).of(ids_NK)

    def figures(self, query: Query) -> dict[str, float]:
        """Return the share of the nearest train documents that an approximate index finds (``document_recall``).

        It is no ``recall``, for which a recipe has a minimum: a vote without a few of its documents is nearly the same.
        A validation document that the index has too finds itself.
        """
        query_BD, nearest = query.doc_ND[:_MEASURED], self.settings.nearest
        measured = len(query_BD) and not isinstance(self.index, ExactIndex)
        exact = exact_search(self.index, query_BD, nearest) if measured else None
        return {} if exact is None else {"document_recall": recall(self.index.search(query_BD, nearest), exact)}

    def save(self, folder: Path) -> None:
        """Write the index and the labels."""
        save_index(self.index, folder)
        sizes = np.array([self.truth.num_labels], np.int64)
        save_file({"indptr": self.truth.indptr, "indices": self.truth.indices, "num_labels": sizes}, folder / _LABELS)

    def _votes(self, query: Query) -> Votes:
        return query.cache.once(("neighbours", self), lambda: self.vote(query.doc_ND))

    def vote(self, doc_BD: F32) -> Votes:
        """Return the votes of the nearest train documents of each document."""
        docs, labels, weights = self._ballots(self.index.search(doc_BD, self.settings.nearest))
        keys_M, place = np.unique(docs * np.int64(self.truth.num_labels) + labels, return_inverse=True)
        share_M = np.bincount(place, weights, minlength=len(keys_M)).astype(np.float32)
        return Votes(keys_M, share_M, len(doc_BD), self.truth.num_labels)

    def _ballots(self, nearest: Shortlist) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return document, label and weight for every label of every neighbour."""
        best_B1 = nearest.scores_NK[:, :1].astype(np.float64)
        weights_BK = np.where(nearest.filled_NK, np.exp((nearest.scores_NK - best_B1) / self.settings.temperature), 0.0)
        weights_BK /= weights_BK.sum(1, keepdims=True)
        rows, columns = np.nonzero(nearest.filled_NK)
        voters = self.truth.rows(nearest.ids_NK[rows, columns].astype(np.int64))
        voter, labels = voters.pairs()
        return rows[voter], labels.astype(np.int64), weights_BK[rows, columns][voter]


def _positions_in_group(counts_B: I64) -> I64:
    """Return 0, 1, ... for the members of each of B groups."""
    return ragged_positions(np.zeros(len(counts_B), np.int64), counts_B)
