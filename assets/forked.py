"""Starts the process of a stage from a server that has imported the large libraries already (``multiprocessing``).

A stage then starts in a fraction of a second, in a process of its own as before. The project's code is not imported by
the server, so each stage runs the code that is on disk when it starts.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, reduction
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

from setproctitle import setproctitle

from assets.worker import PARENT, run

LIBRARIES: Final = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed.tensor",
    "scipy.optimize",
    "matplotlib.figure",
    "transformers.activations",
)
"""What the server imports. Each of them can be imported without starting a thread, which a fork would not copy."""


class Forked(ForkServerProcess):
    """A process that does what ``command()`` and ``arguments`` do, in ``cwd``, with the environment ``env``.

    ``main`` is called with the arguments. The process has the methods of ``subprocess.Popen`` that this package uses.
    """

    def __init__(
        self, arguments: Sequence[str], cwd: str, env: Mapping[str, str], main: Callable[[list[str]], None] = run
    ) -> None:
        super().__init__(target=_run, args=(main, list(arguments), cwd, dict(env), _Stream(1), _Stream(2)))
        self.start()

    @property
    def returncode(self) -> int | None:
        """Exit code, -N after signal N, None while the process runs."""
        code: int | None = self.exitcode
        return code

    def poll(self) -> int | None:
        """Return ``returncode``."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; raise ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        self.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.name, timeout or 0.0)
        return self.returncode


class _Stream:
    """An open file of this process that the new process has too, under the same number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.number, reduction.DupFd(self.number))


def _reopened(number: int, passed: Any) -> None:
    received = passed.detach()
    os.dup2(received, number)
    os.close(received)


def _run(main: Callable[[list[str]], None], arguments: list[str], cwd: str, env: dict[str, str], *_: None) -> None:
    """Do what the module ``assets.worker`` does as a program."""
    gc.freeze()  # the libraries' objects are not garbage; to search them would copy their pages
    os.environ["SPT_NOENV"] = "1"  # the title must not overwrite the environment that `ps` shows
    setproctitle(" ".join([*command(), *arguments]))
    os.environ.clear()
    os.environ.update({**env, PARENT: str(os.getppid())})
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    sys.argv[1:] = arguments
    main(arguments)


def command() -> list[str]:
    """Return the command that runs ``xc`` with the arguments that follow it, without a fork."""
    return [sys.executable, "-m", "assets.worker"]


def prepare() -> bool:
    """Start the server if it does not run; it imports the libraries while this process goes on.

    Returns False if processes cannot be forked here: on another system than Linux, or if the path of the server's
    socket, which is in the folder for temporary files, is too long.
    """
    if sys.platform != "linux":
        return False
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(LIBRARIES))
    try:
        forkserver.ensure_running()
    except OSError:
        return False
    return True
