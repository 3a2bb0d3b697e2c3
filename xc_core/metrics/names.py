"""Metrics by name, and which of them tables show. Files and MLflow, which refuses an @, have P_at_5 for P@5."""

from __future__ import annotations

from typing import Final

KS: Final = (1, 3, 5)
RECALL_KS: Final = (10, 100)
BINS: Final = (("tail", 0, 3), ("torso", 4, 20), ("head", 21, None))
"""Bins of labels by number of train and validation documents: at most 3 (tail), 4 to 20 (torso), more (head)."""
RECALL: Final = {name: f"{name}_recall_at_5" for name, *_ in reversed(BINS)}
"""Recall of the labels of each bin among the first five, over all pairs of a document and a true label of the bin."""
KEPT: Final = (*(f"{metric}_at_{k}" for metric in ("P", "nDCG", "PSP") for k in KS), "R_at_10", *RECALL.values())
"""Metrics whose figures of each document an evaluation stores; only these can be compared later."""
TABLE: Final = ("P_at_1", "P_at_3", "P_at_5", "nDCG_at_5", "PSP_at_1", "PSP_at_3", "PSP_at_5", "R_at_10")
"""Columns of a leaderboard and of the table that ``xc train`` prints."""
NARROW: Final = ("P_at_1", "P_at_5", "nDCG_at_5", "PSP_at_1", "PSP_at_5", "R_at_10")
"""Columns of the page of a report, and of Dagster's table: as many as fit beside the list of partitions."""


def titled(name: str) -> str:
    """Return the name that people know, P@5 for ``P_at_5``."""
    return name.replace("_at_", "@")


def stored(title: str) -> str:
    """Return the name in files, ``P_at_5`` for P@5."""
    return title.replace("@", "_at_")
