"""Where the row of a label would be that was not there when rows were trained: a linear map from texts to rows.

Takes: label texts' vectors, trained rows.    Gives: rows of the labels that have none.
May import: shapes.                           Never: trains; moves a trained row.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from xc_core.shapes import F32

_RIDGE: Final = 1.0
"""Weight of the map's squared norm; on validation documents of WordNetTags 10 and 100 lose 3 and 6 points of P@1."""


def foreseen_rows(text_ND: F32, known_LD: F32, rows_LD: F32, *, unit: bool) -> F32:
    """Return rows (N x D) for labels with the text vectors ``text_ND``.

    Training takes rows away from where all texts' vectors are near, so an untrained row among trained ones stands first
    in every list. Ridge regression from the L labels' text vectors (``known_LD``, L x D) to their trained rows puts a
    new row about where training would; ``unit`` gives unit rows. ``text_ND`` itself where no label is known.
    Raises ValueError for another number or width of rows.
    """
    if known_LD.shape != rows_LD.shape or text_ND.shape[1] != known_LD.shape[1]:
        raise ValueError(f"texts {text_ND.shape} and {known_LD.shape}, rows {rows_LD.shape}")
    if not len(rows_LD):
        return text_ND
    text_D, row_D = known_LD.mean(0, dtype=np.float64), rows_LD.mean(0, dtype=np.float64)
    centred_LD = known_LD - text_D
    gram_DD = centred_LD.T @ centred_LD + _RIDGE * np.eye(len(text_D))
    found_ND = (text_ND - text_D) @ np.linalg.solve(gram_DD, centred_LD.T @ (rows_LD - row_D)) + row_D
    if unit:
        found_ND /= np.maximum(np.linalg.norm(found_ND, axis=1, keepdims=True), 1e-12)
    return np.asarray(found_ND, np.float32)
