"""Recall of an index: the share of the true nearest labels that it finds."""

from __future__ import annotations

import numpy as np

from xc_core.shapes import PAD_ID, Shortlist


def recall(found: Shortlist, true: Shortlist) -> float:
    """Return the share of the labels in ``true`` that ``found`` has too, over all documents; 1.0 if ``true`` is empty.

    Holes (PAD_ID) are not counted. Raises ValueError for shortlists of different N.
    """
    if len(found) != len(true):
        raise ValueError(f"{len(found)} shortlists against {len(true)}")
    wanted = true.ids_NK != PAD_ID
    total = int(wanted.sum())
    if not total:
        return 1.0
    limit = np.int64(max(int(found.ids_NK.max(initial=0)), int(true.ids_NK.max(initial=0))) + 2)
    rows = np.arange(len(true), dtype=np.int64)[:, None] * limit
    return float(np.isin((rows + true.ids_NK)[wanted], rows + found.ids_NK).sum()) / total
