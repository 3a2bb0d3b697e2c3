"""Runs a function in a process of its own, whose address space may grow by a stated amount only.

A test module defines ``prepare``, which builds the inputs without a limit and returns the function to run within it.
"""

import atexit
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tests import forks

ROOT = Path(__file__).parents[1]
_FORKED = 100
"""Least limit, in MB, of a process that is forked: one may take 64 MB more (measured) in the address space that it has
already, in which a bug of that size would not be seen. A process that starts Python has none."""


def bounded(prepare: Callable[[], Callable[[], None]], megabytes: int) -> None:
    """Run what ``prepare`` returns, with at most ``megabytes`` more address space than after ``prepare``.

    The process is forked, unless the limit is small.
    """
    arguments = [prepare.__module__, prepare.__qualname__, str(megabytes)]
    one_thread = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
    if megabytes >= _FORKED:
        done = forks.run("tests.bounded:main", *arguments, env=one_thread)
    else:
        command = [sys.executable, "-m", "tests.bounded", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=one_thread, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]


def scratch() -> Path:
    """Return a folder that is deleted when this process ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


def main() -> None:
    """Prepare and run the function that the arguments name: module, name, MB."""
    module, name, megabytes = sys.argv[1:]
    run = getattr(import_module(module), name)()
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    limit = pages * resource.getpagesize() + (int(megabytes) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    run()


if __name__ == "__main__":
    main()
