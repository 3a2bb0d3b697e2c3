"""What tests that start servers and trainings need: a free port, waiting until something is true, open files."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(what: Callable[[], bool], seconds: float, name: str) -> float:
    """Wait until ``what`` is true and return the seconds; fail after ``seconds``."""
    started = time.monotonic()
    while not what():
        assert time.monotonic() - started < seconds, f"{name}: not within {seconds:.0f} s"
        time.sleep(0.2)
    return time.monotonic() - started


def open_files() -> int:
    """Return how many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
