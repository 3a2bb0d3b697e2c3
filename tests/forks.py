"""Runs functions in processes of their own, forked from a server that has imported torch and the project.

A process starts in some hundredths of a second instead of one to three, and is a real one: it has its own environment,
folder and files, may be killed, and ends with an exit code. Only the start of Python and its imports are not seen.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
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
    "xc_core.cli.ingest",
    "xc_core.cli.main",
    "xc_core.recipes",
)
"""What the server imports, and never uses: threads that pyarrow and polars start at their import wait and hold no lock,
so a fork without them is safe."""


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
        if self.code is None:
            self.code = _asked(wait=self.pid, timeout=timeout)
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


def start(target: str, *arguments: object, env: Mapping[str, str] | None = None, stdin: str = "") -> Forked:
    """Call the function ``MODULE:NAME`` in another process, with ``arguments`` as ``sys.argv[1:]``."""
    files, argv = tempfile.TemporaryDirectory(), [target, *map(str, arguments)]
    Path(files.name, "in").write_text(stdin, "utf-8")
    return Forked(argv, _asked(start=argv, folder=files.name, env=dict(os.environ if env is None else env)), files)


XC: Final = "xc_core.cli.main:main"
"""The command ``xc``."""


def run(
    target: str, *arguments: object, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Do ``start`` and wait for the end."""
    return start(target, *arguments, env=env, stdin=stdin).wait()


_server: list[subprocess.Popen[str]] = []


def _asked(**request: Any) -> Any:
    """Return the server's answer; start it first if it does not run."""
    if not _server:
        command = [sys.executable, "-m", "tests.forks"]
        _server.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
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
    for name in LIBRARIES:
        import_module(name)
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
    """Call the function in this process, with its own standard files, and end as Python ends."""
    for number, (name, mode) in enumerate((("in", os.O_RDONLY), ("out", os.O_RDWR), ("err", os.O_RDWR))):
        opened = os.open(folder / name, mode | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # the one before has read ahead
    for signal_number in (signal.SIGHUP, signal.SIGTERM):  # under nohup the tests ignore SIGHUP
        signal.signal(signal_number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:], code = argv, 0
    module, _, name = argv[0].partition(":")
    try:
        getattr(import_module(module), name)()
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else int(request.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
