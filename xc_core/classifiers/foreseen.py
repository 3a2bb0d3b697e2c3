"""Predict rows of labels that are newer than the training: a linear map from text vectors to trained rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from xc_core.shapes import F32, F64, extended

_RIDGE: Final = 1.0
"""Weight of the map's squared norm. On validation documents of WordNetTags, 10 and 100 lose 3 and 6 points of P@1."""


def foreseen_rows(text_ND: F32, trained_LD: F32, rows_LD: F32, *, unit: bool) -> F32:
    """Return rows for N labels with the text vectors ``text_ND``, as wide as trained rows; unit vectors if ``unit``.

    Training moves rows away from the region where all text vectors lie, so a text vector used as a row would come first
    in every list. A ridge regression from the text vectors of the L trained labels (``trained_LD``, L x D) to their
    rows (``rows_LD``) predicts where training would move a new row. Rows may have a bias as one more column, which the
    unit vector leaves out. If L is 0, the text vectors are returned, with a bias of 0; if N is 0, nothing is computed.
    Raises ValueError for arrays whose shapes do not fit.

    A predicted row is shorter than a unit vector, most of all with few labels, because the ridge draws it to the mean
    row. Its difference from the mean row is made longer, not the whole row: the mean row is near all documents, so a
    new label would come first in every list.
    """
    width = text_ND.shape[1]
    bias = rows_LD.shape[1] - width
    if len(trained_LD) != len(rows_LD) or trained_LD.shape[1] != width or bias not in (0, 1):
        raise ValueError(f"texts {text_ND.shape} and {trained_LD.shape}, rows {rows_LD.shape}")
    if not len(rows_LD) or not len(text_ND):
        return extended(text_ND, 0.0) if bias else text_ND
    text_D, row_D = trained_LD.mean(0, dtype=np.float64), rows_LD.mean(0, dtype=np.float64)
    centred_LD = trained_LD - text_D
    gram_DD = centred_LD.T @ centred_LD + _RIDGE * np.eye(len(text_D))
    offset_ND = (text_ND - text_D) @ np.linalg.solve(gram_DD, centred_LD.T @ (rows_LD - row_D))
    if unit:
        offset_ND[:, :width] *= _lengthening(offset_ND[:, :width], row_D[:width])[:, None]
    predicted_ND = offset_ND + row_D
    if unit:  # rounding, and mean rows that are no shorter than 1
        predicted_ND[:, :width] /= np.maximum(np.linalg.norm(predicted_ND[:, :width], axis=1, keepdims=True), 1e-12)
    return np.asarray(predicted_ND, np.float32)


def _lengthening(offset_ND: F64, mean_D: F64) -> F64:
    """Return the factors f, from 0, for which ``mean + f * offset`` is a unit vector, if the mean is shorter than 1."""
    square_N, along_N = np.maximum((offset_ND**2).sum(1), 1e-24), offset_ND @ mean_D
    missing = max(1.0 - float(mean_D @ mean_D), 0.0)
    return np.asarray((np.sqrt(along_N**2 + square_N * missing) - along_N) / square_N)
