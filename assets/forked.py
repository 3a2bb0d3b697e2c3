"""Starts the process of a stage from a server that has imported the large libraries already (``multiprocessing``).

A stage, or a command of DVC, then starts in a fraction of a second, in a process of its own as before. The project's
code is not imported by the server, so each stage runs the code that is on disk when it starts.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, reduction
from multiprocessing.context import ForkServerProcess
from typing import Any, Final, TextIO

from setproctitle import setproctitle

Main = Callable[[list[str]], None]
STAGE: Final = "assets.worker"
"""Module of the program that runs a stage."""

LIBRARIES: Final = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed.tensor",
    "scipy.optimize",
    "matplotlib.figure",
    "transformers.activations",
    "dvc.cli.parser",
    "dvc.repo.open_repo",
    "dvc.repo.commit",
    "dvc.cachemgr",
    "dvc.data_cloud",
    "dvc.dirs",
    "dvc.rwlock",
    "dvc.repo.artifacts",
    "dvc.repo.datasets",
    "dvc.repo.metrics",
    "dvc.repo.plots",
    "dvc.repo.stage",
    "dvc.utils.strictyaml",
    "dvc_data.hashfile.db.local",
    "ruamel.yaml",
    "scmrepo.git.backend.pygit2.filter",
)
"""What the server imports: of torch and others for stages, of DVC for ``dvc commit``. Each of them can be imported
without starting a thread, which a fork would not copy."""


class Forked(ForkServerProcess):
    """A process that does what ``python -m MODULE ARGUMENTS`` does, in ``cwd``, with the environment ``env``.

    ``main`` is called with the arguments; by default that of a stage. ``files`` are the open files that are its
    standard output and error. The process has the methods of ``subprocess.Popen`` that this package uses.
    """

    was_started = False
    """True if this process has forked another one, so the server has imported the libraries."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        main: Main | None = None,
        *,
        module: str = STAGE,
        files: tuple[int, int] = (1, 2),
    ) -> None:
        streams = (_Stream(number, file) for number, file in enumerate(files, 1))
        super().__init__(target=_run, args=(main or _run_stage, module, list(arguments), cwd, dict(env), *streams))
        self.start()
        Forked.was_started = True

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
    """An open file of this process that the new process has too, under the given number."""

    def __init__(self, number: int, file: int) -> None:
        self.number, self.file = number, file

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.number, reduction.DupFd(self.file))


def _reopened(number: int, passed: Any) -> None:
    received = passed.detach()
    os.dup2(received, number)
    os.close(received)


def _run(main: Main, module: str, arguments: list[str], cwd: str, env: dict[str, str], *_: None) -> None:
    """Do what the module does as a program."""
    gc.freeze()  # the libraries' objects are not garbage; to search them would copy their pages
    os.environ["SPT_NOENV"] = "1"  # the title must not overwrite the environment that `ps` shows
    setproctitle(" ".join([*command(module), *arguments]))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    sys.argv[1:] = arguments
    if module == STAGE:  # imported here: DVC does not need it, and it takes as long as ``dvc commit``
        from assets import worker

        os.environ[worker.PARENT] = str(os.getppid())
    main(arguments)


def _run_stage(arguments: list[str]) -> None:
    """Do what the module ``assets.worker`` does as a program."""
    from assets import worker

    worker.run(arguments)


def dvc(arguments: Sequence[str], cwd: str) -> subprocess.CompletedProcess[str]:
    """Run a command of DVC to its end, as ``subprocess.run`` does; kill it if this process is interrupted.

    It is forked if a process was forked before, because then the server has imported DVC.
    """
    if not Forked.was_started:
        return subprocess.run([*command("dvc"), *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    with _memory_file() as out, _memory_file() as err:
        files = out.fileno(), err.fileno()
        process = Forked(arguments, cwd, os.environ, _run_dvc, module="dvc", files=files)
        try:
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess([*command("dvc"), *arguments], code, out.read(), err.read())


def _memory_file() -> TextIO:
    """Return a new file in memory, so that a full disk does not change what DVC says."""
    return os.fdopen(os.memfd_create("dvc"), "w+", encoding="utf-8")


def _run_dvc(arguments: list[str]) -> None:
    """Do what the module ``dvc`` does as a program."""
    sys.argv[0] = "dvc"
    runpy.run_module("dvc", run_name="__main__", alter_sys=True)


def command(module: str = STAGE) -> list[str]:
    """Return the command that runs a module with the arguments that follow it, without a fork."""
    return [sys.executable, "-m", module]


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
