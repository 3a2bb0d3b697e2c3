"""A linear support vector machine per class, on sparse documents.

With s_i = 1 for a positive document and -1 for a negative one:

    min_w  |w|^2 / 2 + C sum_i max(0, 1 - s_i w . x_i)^2

Solved by dual coordinate descent (Hsieh et al., ICML 2008, algorithm 3 with the L2 loss): with w = sum_i s_i a_i x_i, a
step on document i is

    a_i <- max(0, a_i - (s_i w . x_i - 1 + a_i / 2C) / (x_i . x_i + 1 / 2C))

A pass visits the documents in a new random order. Those whose a_i is 0 and likely to stay 0 are set aside (shrinking);
when the others have converged, all are visited again. The order is drawn of all documents, as omikuji does, so in each
pass some that were set aside change places with others; the paper draws that of the others alone, which is no better
(docs/lab-notes/2026-12-01-label-trees-with-a-seed.md).

Letters, used here as name suffixes: N documents, T terms, C classes, P pairs of a document and a class, W weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from xc_core.scores.trees.sparse_rows import SparseRows
from xc_core.shapes import F32, I32, I64

COST: Final = 1.0
"""C."""
_SHIFT: Final = np.float32(0.5 / COST)
"""1 / 2C."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a document and a class, by class."""

    docs_P: I64
    firsts: I64
    """The first pair of each class, and the end of the last one's (C + 1)."""

    @classmethod
    def of(cls, docs_P: I64, class_P: I64, classes: int) -> Pairs:
        """Sort pairs by class."""
        order = np.argsort(class_P, kind="stable")
        return cls(docs_P[order], np.concatenate([[0], np.cumsum(np.bincount(class_P, minlength=classes))]))

    def each(self, classes: range) -> list[I64]:
        """Return the documents of each of these classes."""
        return [self.docs_P[start:end] for start, end in pairwise(self.firsts[classes.start : classes.stop + 1])]


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights that are kept, by class: their terms, classes and values (W each)."""

    terms_W: I32
    classes_W: I32
    values_W: F32


def train(
    rows: SparseRows,
    positives: Pairs,
    left_out: Pairs | None,
    classes: range,
    *,
    passes: int,
    threshold: float,
    seed_of: Callable[[int], int],
) -> Weights:
    """Return the weights above ``threshold`` of these classes after so many passes, fewer if they converge.

    A document is negative for a class if it is neither positive nor ``left_out``. ``seed_of`` returns the seed of a
    class, which is not 0, so its weights do not depend on which others are trained with it.
    """
    from xc_core.scores.trees.coordinate_descent import above, solve

    matrix, curvature_N = (rows.ends, rows.columns, rows.values), rows.squares() + _SHIFT
    weights_T, duals_N = np.empty(rows.width, np.float32), np.empty(len(rows), np.float32)
    signs_N, order_N = np.empty(len(rows), np.int8), np.empty(len(rows), np.int64)
    terms_T, values_T = np.empty(rows.width, np.int32), np.empty(rows.width, np.float32)
    terms, values = list[I32](), list[F32]()
    skipped = [order_N[:0]] * len(classes) if left_out is None else left_out.each(classes)
    for own, positive, skip in zip(classes, positives.each(classes), skipped, strict=True):
        signs_N[:], signs_N[skip], signs_N[positive] = -1, 0, 1
        solve(matrix, signs_N, curvature_N, _SHIFT, passes, seed_of(own), (weights_T, duals_N, order_N))
        kept = above(weights_T, np.float32(threshold), terms_T, values_T)
        terms.append(terms_T[:kept].copy())
        values.append(values_T[:kept].copy())
    classes_W = np.repeat(np.array(classes, np.int32), [len(of_class) for of_class in terms])
    return Weights(np.concatenate(terms), classes_W, np.concatenate(values))
