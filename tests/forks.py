"""Runs functions in processes of their own, forked from a server that has imported torch and the project.

A process starts in some hundredths of a second instead of one to three, and is a real one: it has its own environment,
folder and files, may be killed, and ends with an exit code. Only the start of Python and its imports are not seen.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LIBRARIES: Final = (
    "numpy",
    "scipy.sparse",
    "torch",
    "torch._dynamo",
    "xc_core.cli.ingest",
    "xc_core.cli.main",
    "xc_core.infer.bundle",
    "xc_core.recipes",
    "xc_core.serve.server",
)
"""What the server imports, and never uses: threads that pyarrow and polars start at their import wait and hold no lock,
so a fork without them is safe."""
_DVC: Final = """
configobj dulwich.ignore dulwich.index dulwich.worktree dvc._debug dvc.cachemgr dvc.cli.parser dvc.data_cloud dvc.dirs
dvc.lock dvc.repo.artifacts dvc.repo.datasets dvc.repo.graph dvc.repo.index dvc.repo.init dvc.repo.metrics
dvc.repo.open_repo dvc.repo.params dvc.repo.plots dvc.repo.stage dvc.repo.trie dvc.rwlock dvc.types
dvc.utils.strictyaml dvc_data.hashfile._progress dvc_data.hashfile.db.local dvc_data.hashfile.status
fsspec.implementations.memory rich.status scmrepo.git.backend.pygit2.filter
"""
"""What DVC imports when it runs a command."""


@dataclass
class Forked:
    """A process that was started, and the folder of its standard files."""

    args: list[str]
    pid: int
    files: tempfile.TemporaryDirectory[str]
    code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        if self.code is None:
            self.code = _asked(wait=self.pid, timeout=0)
        return self.code

    def wait(self, timeout: float = 250) -> subprocess.CompletedProcess[str]:
        """Return how the process ended; kill it and raise ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        while self.code is None and (left := until - time.monotonic()) > 0:
            self.code = _asked(wait=self.pid, timeout=min(left, _TURN))
        if self.code is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.args, timeout)
        with self.files as folder:
            out, err = (Path(folder, name).read_text("utf-8") for name in ("out", "err"))
        return subprocess.CompletedProcess(self.args, self.code, out, err)

    def kill(self) -> None:
        """Kill the process if it runs, and forget it."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.code = _asked(wait=self.pid, timeout=60)
            self.files.cleanup()

    def said(self) -> str:
        """Return what the process has written to its standard error so far."""
        return Path(self.files.name, "err").read_text("utf-8")


def start(target: str, *arguments: object, env: Mapping[str, str] | None = None, stdin: str = "") -> Forked:
    """Call the function ``MODULE:NAME`` in another process, with ``arguments`` as ``sys.argv[1:]``."""
    files, argv = tempfile.TemporaryDirectory(), [target, *map(str, arguments)]
    for name, content in (("in", stdin), ("out", ""), ("err", "")):
        Path(files.name, name).write_text(content, "utf-8")
    return Forked(argv, _asked(start=argv, folder=files.name, env=dict(os.environ if env is None else env)), files)


XC: Final = "xc_core.cli.main:main"
"""The command ``xc``."""


def run(
    target: str, *arguments: object, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Do ``start`` and wait for the end."""
    return start(target, *arguments, env=env, stdin=stdin).wait()


PROGRAMS: Final = ("benchmarks.gpu_proof", "dvc", "xc_core.cli.main", "xc_core.infer.acceptance")
"""Modules that the project and its tests run as programs, many times: ``python -m dvc status``."""
_OPTIONS: Final = {"cwd", "env", "capture_output", "text", "check", "timeout"}
STARTED: Final[Callable[..., Any]] = subprocess.run
"""``subprocess.run``, which starts Python."""
_PLACES: Final = os.environ.get("PYTHONPATH")


def forking(command: Any, **options: Any) -> Any:
    """Do what ``subprocess.run`` does, with a fork if the command is ``python -m`` of one of ``PROGRAMS``.

    Python is started if the process finds its modules in other places than this one, or if its files are given.
    """
    environment = os.environ if options.get("env") is None else options["env"]
    program = isinstance(command, list) and command[:2] == [sys.executable, "-m"] and command[2] in PROGRAMS
    here = environment.get("PYTHONPATH") == _PLACES
    if not (program and here and options.keys() <= _OPTIONS and options.get("capture_output")):
        return STARTED(command, **options)
    folder = Path(options.get("cwd") or "").resolve()
    done = start("tests.forks:_program", folder, *command[2:], env=environment).wait(options.get("timeout") or 250)
    out, err = (text if options.get("text") else text.encode() for text in (done.stdout, done.stderr))
    if options.get("check") and done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, out, err)
    return subprocess.CompletedProcess(command, done.returncode, out, err)


def _program() -> None:
    """Do what ``python -m MODULE ...`` does in a folder; ``sys.argv`` has the folder, MODULE and its arguments."""
    folder, module = sys.argv[1:3]
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv[:] = [module, *sys.argv[3:]]
    if module == "dvc":
        import_module("dvc.stage.run")._run = _stage  # type: ignore[attr-defined]
    else:
        sys.modules.pop(module, None)  # runpy warns if the module of a program was imported before
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _stage(executable: str, command: str, *, cwd: str, env: Mapping[str, str], **_: Any) -> None:
    """Run a stage's command for ``dvc repro``: in a fork of this process, which has imported what ``xc`` needs."""
    xc, *arguments = shlex.split(command)
    assert xc == "xc", command
    sys.stdout.flush()
    if not (pid := os.fork()):
        os.chdir(cwd)
        _end_as_python([XC, *arguments], env)
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise import_module("dvc.stage.exceptions").StageCmdFailedError(command, code)


_server: list[subprocess.Popen[str]] = []
_TURNS: Final = threading.Lock()
_TURN: Final = 0.2
"""Seconds that the server waits for one process before it answers another thread of the tests."""


def _asked(**request: Any) -> Any:
    """Return the server's answer; start it first if it does not run."""
    with _TURNS:
        if not _server:
            command = [sys.executable, "-m", "tests.forks"]
            _server.append(
                subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            atexit.register(_end)
        sent, received = _server[0].stdin, _server[0].stdout
        assert sent is not None and received is not None
        sent.write(json.dumps(request) + "\n")
        sent.flush()
        return json.loads(received.readline())


def _end() -> None:
    """End the server: it reads no more requests."""
    for server in _server:
        with server:
            pass


def _serve() -> None:
    for name in (*LIBRARIES, *_DVC.split()):
        import_module(name)
    import_module("dvc.cli.parser").get_main_parser()  # it is kept
    gc.freeze()  # the libraries' objects are not garbage; to search them would copy their pages
    answers, running = os.fdopen(os.dup(1), "w"), set()
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = _ended(request["wait"], request["timeout"])
            running -= set() if answer is None else {request["wait"]}
        elif not (answer := os.fork()):
            answers.close()
            _call(request["start"], Path(request["folder"]), request["env"])
        else:
            running.add(answer)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    for pid in running:  # of tests that failed
        os.kill(pid, signal.SIGKILL)


def _ended(pid: int, timeout: float) -> int | None:
    """Return the exit code of a process, -N after signal N, None if it runs for longer."""
    until = time.monotonic() + timeout
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.01)


def _call(argv: list[str], folder: Path, env: Mapping[str, str]) -> None:
    """Call the function in this process, with its own standard files."""
    for number, (name, mode) in enumerate((("in", os.O_RDONLY), ("out", os.O_RDWR), ("err", os.O_RDWR))):
        opened = os.open(folder / name, mode | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # the one before has read ahead
    for signal_number in (signal.SIGHUP, signal.SIGTERM):  # under nohup the tests ignore SIGHUP
        signal.signal(signal_number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _end_as_python(argv, env)


def _end_as_python(argv: list[str], env: Mapping[str, str]) -> None:
    """Call a function in this process and end as Python ends."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:], code = argv, 0
    module, _, name = argv[0].partition(":")
    try:
        getattr(import_module(module), name)()
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else int(request.code is not None)
        if isinstance(request.code, str):
            print(request.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons, as Python does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
