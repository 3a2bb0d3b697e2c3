"""The memory that this process may use, and free memory that the C library keeps for later.

Tensors of many sizes come and go in a training. glibc keeps the memory of those that are gone, and later ones often do
not fit into the pieces. So a process grows although its tensors do not.
"""

from __future__ import annotations

import ctypes
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import psutil

_PROCESS_GROUPS: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")
_FILES: Final = {
    "memory.max": ("memory.current", "inactive_file"),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}
"""The file with the limit of a control group (version 2 and 1), that with what it uses, and the name, in memory.stat,
of the part that the kernel gives back when memory is short."""


def total_bytes() -> int:
    """Return the memory of this machine, or the limit of a control group or of this process if that is less."""
    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _limits())])


def free_bytes() -> int:
    """Return how much of it is free."""
    return max(0, min([int(psutil.virtual_memory().available), *(limit - used for limit, used in _limits())]))


def _limits() -> Iterator[tuple[int, int]]:
    """Yield the limits of the address space and of the control groups, and how much of each is used."""
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        yield address_space, psutil.Process().memory_info().vms
    for folder in _control_groups():
        for name, (usage, given_back) in _FILES.items():
            with suppress(OSError, ValueError):  # "max" is no limit
                limit, used = (int((folder / file).read_text("ascii")) for file in (name, usage))
                match = re.search(rf"^{given_back} (\d+)$", (folder / "memory.stat").read_text("ascii"), re.MULTILINE)
                yield limit, used - (int(match[1]) if match else 0)


def _control_groups() -> Iterator[Path]:
    """Yield the folders of the control groups of this process: its own, and those around it, which limit it too.

    In a container the kernel may name groups that are not visible there; the outermost folder is then its own.
    """
    with suppress(OSError):
        for line in _PROCESS_GROUPS.read_text("utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds or "memory" in kinds.split(","):
                root = _GROUPS / "memory" if kinds else _GROUPS
                group = root / path.lstrip("/")
                yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


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
