"""The loops of ``one_vs_rest``, compiled by numba when they are first called.

They do not hold the GIL. Sums are not reordered, so processors give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache

from xc_core.shapes import F32, I32, I64, Array

_CONVERGED: Final = np.float32(0.1)
"""Difference of the largest and the smallest projected gradient below which nothing is left to do (liblinear's)."""
_ZERO, _ONE, _INFINITE = np.float32(0), np.float32(1), np.float32(np.inf)
_F = TypeVar("_F", bound=Callable[..., Any])


class _Kept(FunctionCache):  # type: ignore[misc]  # numba has no types
    """The code of a function in files; one that is damaged is made again, one that cannot be written is not needed."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for these types; None if there is none that can be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # pickle raises any, for instance EOFError of a file that a power failure left empty
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the code, unless the disk refuses it."""
        with suppress(OSError):
            super().save_overload(sig, data)


def compiled(function: _F) -> _F:
    """Compile a function when it is first called; keep the code for other processes where a folder can be written."""
    made = numba.njit(nogil=True)(function)
    with suppress(RuntimeError):  # numba found no folder
        made._cache = _Kept(function)
    return cast(_F, made)


@compiled
def shuffle(order: I64, state: np.uint64) -> np.uint64:
    """Shuffle in place; return the next state of the generator, xorshift64 (Marsaglia, 2003).

    A generator of numpy takes longer to make, and to pass, than a small class takes.
    """
    for last in range(len(order) - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        other = np.int64(state % np.uint64(last + 1))
        order[last], order[other] = order[other], order[last]
    return state


@compiled
def solve(
    matrix: tuple[Array, Array, F32],
    signs_N: Array,
    curvature_N: F32,
    shift: np.float32,
    passes: int,
    seed: int,
    result: tuple[F32, F32, I64],
) -> None:
    """Solve for one class; documents of sign 0 are left out.

    ``matrix`` has ends, columns and values of the documents; ``result`` gets weights (T), dual variables (N) and the
    last order (N).
    """
    (ends, columns, values), (weights_T, duals_N, order_N) = matrix, result
    weights_T[:], duals_N[:] = _ZERO, _ZERO
    size = 0
    for i in range(len(signs_N)):
        if signs_N[i] != 0:
            order_N[size] = i
            size += 1
    active, bound, state = size, _INFINITE, np.uint64(seed)
    for _ in range(passes):
        state = shuffle(order_N[:size], state)
        largest, smallest, at = -_INFINITE, _INFINITE, 0
        while at < active:
            i = order_N[at]
            sign, dual = np.float32(signs_N[i]), duals_N[i]
            margin = _ZERO
            for entry in range(ends[i], ends[i + 1]):
                margin += weights_T[columns[entry]] * values[entry]
            gradient = sign * margin - _ONE + dual * shift
            if dual == _ZERO and gradient > bound:  # set aside
                active -= 1
                order_N[at], order_N[active] = order_N[active], order_N[at]
                continue
            projected = gradient if dual > _ZERO else min(gradient, _ZERO)
            largest, smallest = max(largest, projected), min(smallest, projected)
            if projected != _ZERO:
                duals_N[i] = max(dual - gradient / curvature_N[i], _ZERO)
                change = (duals_N[i] - dual) * sign
                for entry in range(ends[i], ends[i + 1]):
                    weights_T[columns[entry]] += change * values[entry]
            at += 1
        if largest - smallest <= _CONVERGED:
            if active == size:
                break
            active, bound = size, _INFINITE
        else:
            bound = largest if largest > _ZERO else _INFINITE


@compiled
def above(weights_T: F32, threshold: np.float32, terms_T: I32, values_T: F32) -> int:
    """Write the terms and values of weights above ``threshold`` to the start of two arrays; return their number."""
    kept = 0
    for term in range(len(weights_T)):
        if abs(weights_T[term]) > threshold:
            terms_T[kept], values_T[kept] = term, weights_T[term]
            kept += 1
    return kept
