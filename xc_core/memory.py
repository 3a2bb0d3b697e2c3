"""Free memory that the C library keeps for later.

Tensors of many sizes come and go in a training. glibc keeps the memory of those that are gone, and later ones often do
not fit into the pieces. So a process grows although its tensors do not.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


def give_back() -> None:
    """Return free memory to the system; do nothing if the C library is not glibc."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
