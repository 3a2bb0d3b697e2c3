"""Which labels a model names instead of which: pairs of a wrong first label and a label that it missed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.shapes import I64, PAD_ID, Shortlist


@dataclass(frozen=True)
class Confusion:
    """A label named first although it is wrong, a positive that is not among the first k, and how often both happen."""

    named: int
    missed: int
    documents: int


def confusions(short: Shortlist, truth: LabelMatrix, *, k: int = 5, most: int = 20) -> list[Confusion]:
    """Return the ``most`` pairs with the most documents, at least two each; equal ones by label ids.

    Raises ValueError if shortlist and truth have different numbers of documents.
    """
    if len(short) != len(truth):
        raise ValueError(f"{len(short)} shortlists for {len(truth)} documents")
    docs, labels = truth.pairs()
    first = short.ids_NK[docs, 0] if short.ids_NK.shape[1] else np.full(len(docs), PAD_ID)
    wrong = (first != PAD_ID) & ~truth.contains(docs, first)
    docs, labels, first = docs[wrong], labels[wrong], first[wrong]
    missed = ~(short.ids_NK[docs, :k] == labels[:, None]).any(axis=1)
    keys: I64 = first[missed].astype(np.int64) * truth.num_labels + labels[missed]
    pairs, counts = np.unique(keys, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    named, not_found = np.divmod(pairs[order], max(truth.num_labels, 1))
    rows = zip(named.tolist(), not_found.tolist(), counts[order].tolist(), strict=True)
    return [Confusion(*row) for row in rows if row[2] > 1]
