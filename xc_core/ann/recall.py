"""How many of the true nearest labels an index finds.

Takes: two shortlists.   Gives: a share.
May import: shapes.      Never: counts holes.
"""

from __future__ import annotations

import numpy as np

from xc_core.shapes import PAD_ID, Shortlist


def recall(found: Shortlist, true: Shortlist) -> float:
    """Return the share of ``true``'s labels that ``found`` has, over all documents; 1.0 where ``true`` has none.

    Raises ValueError where the two have different N.
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
