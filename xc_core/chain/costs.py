"""What a run costs: the largest resident memory of this process, the machine, and the record of a stage's last run."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import resource
import sys
from pathlib import Path

from xc_core import artifacts
from xc_core.chain.fingerprints import readable
from xc_core.chain.registry import versioned_stages
from xc_core.chain.workspace import Workspace
from xc_core.visible import counted

_MACHINE = "machine"
"""Key of the machine in the record of a run."""


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


def gigabytes(size: float) -> str:
    """Return bytes for people."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def processor() -> str:
    """Return the name of the processor, or of its architecture if the system does not tell."""
    with contextlib.suppress(OSError):
        if found := re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text("ascii", "replace")):
            return found[1].strip()
    return platform.processor() or platform.machine()


def machine() -> str:
    """Return the processor, the number of threads that this process may use, and the GPU if torch uses one.

    Raises ConfigError, UnavailableError for a wrong or absent device, as ``Device.chosen`` does.
    """
    omp_threads = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(omp_threads) if omp_threads.isdecimal() else os.cpu_count() or 1
    gpu = "no GPU"
    if "torch" in sys.modules:  # a stage without it uses no GPU
        from xc_core.devices import Device

        gpu = Device.chosen().in_words()
    return f"{processor()}, {counted(threads, 'thread')}, {gpu}"


def write_costs(path: Path, costs: dict[str, float], machine_name: str) -> None:
    """Record the costs of a run of a stage on a machine."""
    content = {**costs, _MACHINE: machine_name}
    artifacts.write_file(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_costs(workspace: Workspace, stage: str, dataset: str, recipe: str | None = None) -> dict[str, float]:
    """Return the costs of the last run of a stage in this workspace; empty if it never ran here."""
    content = readable(workspace.scratch("cost", stage, dataset, recipe))
    return {name: value for name, value in content.items() if isinstance(value, int | float)}


def machines(workspace: Workspace, dataset: str, recipe: str) -> set[str]:
    """Return the machines that the stages of an experiment last ran on."""
    files = (workspace.scratch("cost", stage.name, dataset, recipe) for stage in versioned_stages("experiment"))
    return {str(name) for file in files if (name := readable(file).get(_MACHINE)) is not None}
