"""Recall of an index: the share of the true nearest labels that it finds."""

from __future__ import annotations

from xc_core.shapes import Shortlist, among


def recall(found: Shortlist, true: Shortlist) -> float:
    """Return the share of the labels in ``true`` that ``found`` has too, over all documents; 1.0 if ``true`` is empty.

    Holes (PAD_ID) are not counted. Raises ValueError for shortlists of different N.
    """
    if len(found) != len(true):
        raise ValueError(f"{len(found)} shortlists against {len(true)}")
    total = int(true.filled_NK.sum())
    return float(among(true.ids_NK, found.ids_NK).sum()) / total if total else 1.0
