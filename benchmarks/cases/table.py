"""The table of comparisons: each is a function that takes a World and returns rows."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness import Row
from benchmarks.world import World

CASES: dict[str, Callable[[World], list[Row]]] = {}


def case(function: Callable[[World], list[Row]]) -> Callable[[World], list[Row]]:
    """Register a function under its name."""
    CASES[function.__name__] = function
    return function
