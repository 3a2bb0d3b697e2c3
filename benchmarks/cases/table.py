"""The table of comparisons; each is a function of a World that returns rows, and a new one is a new function.

Takes: functions.      Gives: CASES, case.
May import: harness, world.  Never: a comparison.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness import Row
from benchmarks.world import World

CASES: dict[str, Callable[[World], list[Row]]] = {}


def case(function: Callable[[World], list[Row]]) -> Callable[[World], list[Row]]:
    """Enter a function into the table under its name."""
    CASES[function.__name__] = function
    return function
