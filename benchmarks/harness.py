"""Times two ways of doing the same in turn in one process, so that their ratio is fair on a shared machine.

Times are running time of this process (CPU seconds) with one thread: other processes do not count. The median of the
rounds is reported with its spread, never the best.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xc_core.chain.costs import processor
from xc_core.errors import CorruptError

Work = Callable[[], Any]

LEAST: Final = 5
"""Rounds at least, whatever a case asks for."""
_MAX_LOSS: Final = 0.2
"""Share of a recorded ratio that may be lost."""
_UNITS: Final = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 bf16", "avx512f": "AVX-512", "avx2": "AVX2"}
"""Vector and matrix units by their flag in /proc/cpuinfo, widest first."""
_MAX_SPREAD: Final = 0.3
"""Largest spread of a ratio that is recorded."""
_MIN_SECONDS: Final = 0.002
"""Seconds that a timing lasts at least: shorter work is repeated, because the clock advances in steps."""


@dataclass(frozen=True)
class Row:
    """One comparison: median CPU seconds of ours and of the other, and a note on how far their results agree."""

    what: str
    ours: float
    other: str
    seconds: float
    note: str
    spread: float = 0.0
    """Half the distance between the quartiles of the rounds' ratios, as a share of their median."""
    case: str = ""
    """Name of the case, and its number there."""

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.seconds / self.ours


def compare(what: str, ours: Work, other_name: str, other: Work, *, rounds: int = LEAST, note: str = "") -> Row:
    """Return the medians of ``rounds`` rounds (5 at least), after one warm-up round; who runs first alternates."""
    works = {"ours": ours, "other": other}
    repeats = {name: _repeats(work) for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(max(rounds, LEAST)):
        for name in list(works)[:: 1 if number % 2 else -1]:
            times[name].append(_timed(works[name], repeats[name]))
    our_median, their_median = (statistics.median(times[name]) for name in works)
    ratios = [b / a for a, b in zip(times["ours"], times["other"], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return Row(what, our_median, other_name, their_median, note, (high - low) / 2 / median)


def _timed(work: Work, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        work()
    return max((time.process_time() - start) / repeats, 1e-9)


def _repeats(work: Work) -> int:
    """Return how often ``work`` is repeated per timing; this is the warm-up round."""
    work()
    return max(round(_MIN_SECONDS / _timed(work, 1)), 1)


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown; each says which processor it was measured on."""
    name = this_processor()
    lines = [
        "| case | what | ours | beside | its time | ratio | spread | agreement | machine |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for row in rows:
        times = f"{_seconds(row.ours)} | {row.other} | {_seconds(row.seconds)} | {row.ratio:.2f} | {row.spread:.0%}"
        lines.append(f"| {row.case} | {row.what} | {times} | {row.note} | {name} |")
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def this_processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor and its widest units: virtual machines hide which model it is."""
    with contextlib.suppress(OSError):
        flags = set(info.read_text("ascii", "replace").split())
        for flag, units in _UNITS.items():
            if flag in flags:
                return f"{processor()} ({units})"
    return processor()


def machine() -> str:
    """Return the processor, the number of torch's threads and torch's version."""
    import torch

    return f"{this_processor()}, {torch.get_num_threads()} torch threads, torch {torch.__version__}"


def today() -> str:
    """Return the day, for the head of a table."""
    return f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}"


def single_thread() -> None:
    """Let torch, faiss and BLAS use one thread."""
    import faiss
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    threadpool_limits(1)


def read_floors(path: Path) -> dict[str, dict[str, float]]:
    """Return the recorded ratio of each case by processor; raise CorruptError for a file that has none."""
    try:
        return {
            str(name): {str(case): float(ratio) for case, ratio in ratios.items()}
            for name, ratios in json.loads(path.read_text("utf-8")).items()
        }
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CorruptError(
            f"recorded ratios in {path} that cannot be read: {error}",
            expected="a JSON object: processor -> case -> ratio",
            do="record them: delete the file, then python -m benchmarks --record",
        ) from error


def write_floors(path: Path, rows: list[Row]) -> None:
    """Record the steady ratios of ``rows`` for this processor; those of other cases and processors stay."""
    floors = read_floors(path) if path.is_file() else {}
    steady = {row.case: float(f"{row.ratio:.3g}") for row in rows if row.spread <= _MAX_SPREAD}
    floors.setdefault(this_processor(), {}).update(steady)
    path.write_text(json.dumps(floors, indent=1, sort_keys=True) + "\n", "utf-8")


def slower(rows: list[Row], floors: dict[str, float]) -> list[Row]:
    """Return the rows whose ratio is more than a fifth below the recorded one."""
    return [row for row in rows if row.case in floors and row.ratio < (1 - _MAX_LOSS) * floors[row.case]]
