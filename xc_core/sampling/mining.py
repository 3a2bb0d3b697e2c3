"""Hard negatives from a search, and the share of them that mini-batches hold or miss."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

import numpy as np

from xc_core.ann import Search
from xc_core.data.labels import LabelMatrix
from xc_core.metrics.ranking import without
from xc_core.sampling.base import NegativeSource, Pool, mask
from xc_core.seeds import generator
from xc_core.shapes import F32, I32, I64, PAD_ID, Bool, Shortlist, Vectors

_DOCS_AT_ONCE: Final = 4096
_CELLS: Final = 1 << 19
"""Candidates of a search in memory at a time; 512 K of them take about 30 MB while they are sorted."""
_SCORES: Final = 1 << 22
"""Scores of documents and labels in memory at a time: 16 MB."""
_SAMPLE: Final = 512
"""Documents, at least, on which hard negatives missed by batches are counted (fewer if there are fewer)."""


def search_negatives(index: Search, doc_ND: F32, rows_N: I64, known: LabelMatrix, k: int) -> Shortlist:
    """Return the ``k`` best labels of the documents ``rows_N`` that are not among their ``known`` ones (N x k).

    Row i of ``known`` belongs to document ``rows_N[i]``; ``doc_ND`` may be memory-mapped. A document is searched for k
    labels more than it has known ones, rounded up to a power of two, so one with very many costs the others nothing.
    """
    ids_NK = np.full((len(rows_N), k), PAD_ID, np.int32)
    scores_NK = np.full((len(rows_N), k), -np.inf, np.float32)
    for rows, best in _search_blocks(index, doc_ND, rows_N, known, k):
        ids_NK[rows], scores_NK[rows] = best.ids_NK, best.scores_NK
    return Shortlist(ids_NK, scores_NK)


def negative_ids(index: Search, doc_ND: F32, rows_N: I64, known: LabelMatrix, k: int) -> I32:
    """Return the ids of ``search_negatives`` (N x k); the scores of all documents are not kept."""
    ids_NK = np.full((len(rows_N), k), PAD_ID, np.int32)
    for rows, best in _search_blocks(index, doc_ND, rows_N, known, k):
        ids_NK[rows] = best.ids_NK
    return ids_NK


def _search_blocks(
    index: Search, doc_ND: F32, rows_N: I64, known: LabelMatrix, k: int
) -> Iterator[tuple[I64, Shortlist]]:
    """Yield documents, as positions in ``rows_N``, and their ``k`` best labels."""
    for rows, width in _blocks_by_width(known.counts_N + k, index.size):
        if not threading.main_thread().is_alive():  # before the process ends, Python waits for its threads
            raise RuntimeError("a search whose process ends")
        candidates = index.search(np.ascontiguousarray(doc_ND[rows_N[rows]]), width)
        yield rows, hard_negatives(candidates, known.rows(rows), k)


def _blocks_by_width(needed_N: I64, size: int) -> Iterator[tuple[I64, int]]:
    """Yield (documents, labels to search for) such that each document gets as many as it needs, at most ``size``."""
    power_N = np.ceil(np.log2(np.maximum(needed_N, 1))).astype(np.int64)
    for power in np.unique(power_N).tolist():
        width = min(1 << power, size)
        docs, step = np.flatnonzero(power_N == power), max(min(_DOCS_AT_ONCE, _CELLS // width), 1)
        yield from ((docs[start : start + step], width) for start in range(0, len(docs), step))


def hard_negatives(shortlist: Shortlist, known: LabelMatrix, k: int) -> Shortlist:
    """Return the ``k`` best-scored labels of each document that are not among its ``known``."""
    return without(shortlist, known).top(k)


def missed_by_pools(
    vectors: tuple[Vectors, F32],
    truth: LabelMatrix,
    batches: list[I64],
    source: NegativeSource,
    *,
    radius: float,
    seed: int,
) -> float:
    """Return the share of r-hard negatives that are not in the pool of their document's batch; nan if there are none.

    ``vectors`` are those of documents and labels (unit). An r-hard negative lies within ``radius`` of the document, is
    not among its ``source.known`` and is a positive of some document of ``truth``. Measured on random whole batches of
    about 512 documents in all, with the pools of ``source``, including sampled positives and mined labels.
    """
    doc_ND, label_LD = vectors
    used_L = truth.frequency_L() > 0
    hard_total = missed_total = documents = 0
    for number in generator(seed, "missed").permutation(len(batches)).tolist():
        docs = batches[number]
        known, pool = source.known.rows(docs), source.pool(docs, -1 - number)
        for start, hard_BU in _hard_blocks(doc_ND[docs], label_LD, used_L, 1 - radius**2 / 2):
            labels_U = np.arange(start, start + hard_BU.shape[1])
            hard_BU &= ~mask(known, labels_U)
            hard_total += int(hard_BU.sum())
            missed_total += int(hard_BU.sum()) - _count_in_pool(hard_BU, pool, start)
        documents += len(docs)
        if documents >= _SAMPLE:
            break
    return missed_total / hard_total if hard_total else float("nan")


def _hard_blocks(doc_BD: F32, label_LD: F32, used_L: Bool, nearest: float) -> Iterator[tuple[int, Bool]]:
    """Yield, per block of labels, its first label and whether each used label has a cosine of ``nearest`` (B x U)."""
    step = max(_SCORES // max(len(doc_BD), 1), 1)
    for start in range(0, len(label_LD), step):
        block = slice(start, start + step)
        yield start, ((doc_BD @ label_LD[block].T) >= nearest) & used_L[block]


def _count_in_pool(hard_BU: Bool, pool: Pool, start: int) -> int:
    """Return how many hard negatives of a block of labels that begins at ``start`` are negatives of the pool."""
    first, last = np.searchsorted(pool.labels_U, (start, start + hard_BU.shape[1]))
    in_pool_BU = hard_BU[:, pool.labels_U[first:last] - start]
    if pool.weight_BU is not None:
        in_pool_BU = in_pool_BU & (pool.weight_BU[:, first:last] != 0)
    return int(in_pool_BU.sum())


def audit_batches(negatives: Shortlist, docs: I64, truth: LabelMatrix, batches: list[I64]) -> float:
    """Return the share of the hard negatives of ``docs`` that are positives of a document in the same batch.

    nan if there are none. Row i of ``negatives`` belongs to document ``docs[i]``; ``batches`` hold positions of
    documents. The result is 1 minus the measured miss of in-batch mining (NGAME, theorem 1) in these batches.
    """
    batch_of = np.full(len(truth), -1, np.int64)
    for number, rows in enumerate(batches):
        batch_of[rows] = number
    row_docs, row_labels = truth.pairs()
    width = np.int64(truth.num_labels)
    batch_positives = np.unique(batch_of[row_docs] * width + row_labels)
    filled = negatives.filled_NK
    keys = (batch_of[docs][:, None] * width + negatives.ids_NK)[filled]
    return float(np.isin(keys, batch_positives).mean()) if len(keys) else float("nan")
