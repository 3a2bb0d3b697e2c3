"""The largest resident memory of this process."""

from __future__ import annotations

import contextlib
import re
import resource
import sys
from pathlib import Path


def forget_peak_memory() -> None:
    """Reset the peak of resident memory, if the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process since ``forget_peak_memory``, or ever, in MiB."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
        if found:
            return round(int(found[1]) / 1024, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)
