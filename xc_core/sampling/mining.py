"""Hard negatives from a search, and how many of them a batch would have held anyway.

Takes: Shortlist, LabelMatrix.             Gives: Shortlist, a share.
May import: ann, shapes, data.labels, metrics.  Never: builds an index.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from xc_core.ann import Index
from xc_core.data.labels import LabelMatrix
from xc_core.metrics.ranking import without
from xc_core.shapes import F32, I64, Shortlist

_DOCS_AT_ONCE: Final = 4096


def search_rows(index: Index, doc_ND: F32, rows: I64, k: int) -> Shortlist:
    """Return the ``k`` best labels of the documents ``rows``, searched block by block (``doc_ND`` may be mapped)."""
    starts = range(0, max(len(rows), 1), _DOCS_AT_ONCE)
    blocks = [np.ascontiguousarray(doc_ND[rows[start : start + _DOCS_AT_ONCE]]) for start in starts]
    return Shortlist.stack([index.search(block, k) for block in blocks])


def hard_negatives(shortlist: Shortlist, truth: LabelMatrix, k: int) -> Shortlist:
    """Return the ``k`` best-scored labels of each document that are no known positive of it."""
    return without(shortlist, truth).top(k)


def audit_batches(negatives: Shortlist, docs: I64, truth: LabelMatrix, batches: list[I64]) -> float:
    """Return the share of the hard negatives of ``docs`` that is a positive of some document in the same batch.

    ``negatives`` row i belongs to document ``docs[i]``; ``batches`` hold document positions, as an order gives them.
    This is 1 minus the measured miss of in-batch mining (NGAME, theorem 1), for the batches as they really are.
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
