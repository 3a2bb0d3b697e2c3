"""Hard negatives from a search, and the share of them that mini-batches hold or miss."""

from __future__ import annotations

from typing import Final

import numpy as np

from xc_core.ann import Index
from xc_core.data.labels import LabelMatrix
from xc_core.metrics.ranking import without
from xc_core.sampling.base import NegativeSource
from xc_core.seeds import generator
from xc_core.shapes import F32, I64, Shortlist

_DOCS_AT_ONCE: Final = 4096
_SAMPLE: Final = 512
"""Documents, at least, on which hard negatives missed by batches are counted (fewer if there are fewer)."""


def search_rows(index: Index, doc_ND: F32, rows: I64, k: int) -> Shortlist:
    """Return the ``k`` best labels of the documents ``rows``, block by block (``doc_ND`` may be memory-mapped)."""
    starts = range(0, max(len(rows), 1), _DOCS_AT_ONCE)
    blocks = [np.ascontiguousarray(doc_ND[rows[start : start + _DOCS_AT_ONCE]]) for start in starts]
    return Shortlist.stack([index.search(block, k) for block in blocks])


def hard_negatives(shortlist: Shortlist, known: LabelMatrix, k: int) -> Shortlist:
    """Return the ``k`` best-scored labels of each document that are not among its ``known``."""
    return without(shortlist, known).top(k)


def missed_by_pools(
    vectors: tuple[F32, F32],
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
        hard_BL = ((doc_ND[docs] @ label_LD.T) >= 1 - radius**2 / 2) & used_L
        hard_BL[source.known.rows(docs).pairs()] = False
        hard_total += int(hard_BL.sum())
        pool = source.pool(docs, -1 - number)
        hard_BL[:, pool.labels_U] &= False if pool.weight_BU is None else pool.weight_BU == 0
        missed_total += int(hard_BL.sum())
        documents += len(docs)
        if documents >= _SAMPLE:
            break
    return missed_total / hard_total if hard_total else float("nan")


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
    held = np.unique(batch_of[row_docs] * width + row_labels)
    wanted = negatives.filled_NK
    keys = (batch_of[docs][:, None] * width + negatives.ids_NK)[wanted]
    return float(np.isin(keys, held).mean()) if len(keys) else float("nan")
