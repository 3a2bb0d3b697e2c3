"""Times two ways of doing the same in turn in one process, so that their ratio is fair on a shared machine.

The median of the rounds is reported, never the best.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xc_core.chain.costs import processor

Work = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One comparison: median seconds of ours and of the other, and a note on how far their results agree."""

    what: str
    ours: float
    other: str
    seconds: float
    note: str

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.seconds / self.ours


def compare(what: str, ours: Work, other_name: str, other: Work, *, rounds: int = 5, note: str = "") -> Row:
    """Return the medians of ``rounds`` rounds, after one warm-up round; in each round, ours runs first."""
    times: dict[str, list[float]] = {"ours": [], "other": []}
    for number in range(rounds + 1):
        for name, work in (("ours", ours), ("other", other)):
            started = time.perf_counter()
            work()
            if number:
                times[name].append(time.perf_counter() - started)
    own, theirs = (statistics.median(times[name]) for name in ("ours", "other"))
    return Row(what, own, other_name, theirs, note)


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| what | ours | beside | its time | ours is faster by | agreement |",
        "| --- | ---: | --- | ---: | ---: | --- |",
    ]
    for row in rows:
        times = f"| {_seconds(row.ours)} | {row.other} | {_seconds(row.seconds)} | {row.ratio:.2f} x |"
        lines.append(f"| {row.what} {times} {row.note} |")
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.2f} ms"


def machine() -> str:
    """Return processor and number of threads, as the kernel names them."""
    import torch

    return f"{processor()}, {torch.get_num_threads()} torch threads, torch {torch.__version__}"
