"""Runs the process of a stage for Dagster, and ends it with the run: asked first, killed after a grace period."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

import dagster as dg

from assets import forked
from assets.worker import GRACE_SECONDS, PARENT, REASON

HOST_TAG: Final = "xc/host"
"""Run tag: the machine on which the process of the run was started."""
PID_TAG: Final = "xc/pid"
"""Run tag: the process that executes a run itself, without a launcher."""
_EXPLAINED: Final = frozenset({*range(64, 79)} - {75})
"""Exit codes of errors with a message: the command would fail again in the same way. 75, busy, passes by itself."""
_STOPS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
STOPPED: Final = frozenset({code for number in _STOPS for code in (128 + number, -number)})
"""Exit codes of a process that somebody stopped."""
_COLD_STARTS: Final = 2
"""Stages of a run that start Python themselves; the libraries for forks are imported while the last of them runs."""
Started = subprocess.Popen[bytes] | forked.Forked
"""A process, both kinds with the same methods."""


def own_tags() -> dict[str, str]:
    """Return the tags of a run that this process executes: if it is killed, the run is marked as failed."""
    return {HOST_TAG: socket.gethostname(), PID_TAG: str(os.getpid())}


class ProcessFailedError(Exception):
    """The process of a stage ended with another exit code than 0."""

    def __init__(self, code: int, why: str = "") -> None:
        """Take the exit code, and what the process said about its end."""
        self.code, self.why = code, why
        super().__init__(f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}")

    @property
    def lost(self) -> bool:
        """True if the same command may succeed now: the process was killed, or another one was at work."""
        return self.code not in _EXPLAINED and self.code not in STOPPED


class StageProcesses(dg.PipesSubprocessClient):
    """Dagster's client for subprocesses, with three differences.

    No process outlives its run, exit codes are kept, and from the third stage on a process is forked
    (``assets.forked``): a run of one or two stages ends before the libraries of a fork are imported.
    """

    def __init__(self) -> None:
        """Count the processes of this run."""
        super().__init__()
        self._started = 0

    def run(  # type: ignore[override]  # nothing is returned; all results are messages
        self, *, context: dg.AssetExecutionContext, arguments: Sequence[str], root: str
    ) -> None:
        """Run ``xc`` with ``arguments`` on the project at ``root`` to its end. If the run is cancelled, stop it first.

        Raises ProcessFailedError if the command fails.
        """
        session: Any
        with dg.open_pipes_session(
            context=context, context_injector=self.context_injector, message_reader=self.message_reader
        ) as session:
            process = self._start(arguments, root, {**os.environ, "XC_ROOT": root, **session.get_bootstrap_env_vars()})
            try:
                code = process.wait()
            finally:
                stop(process)
        if code:
            raise ProcessFailedError(code, _reported_reason(session.get_custom_messages()))

    def _start(self, arguments: Sequence[str], root: str, env: Mapping[str, str]) -> Started:
        self._started += 1
        if self._started >= _COLD_STARTS and forked.prepare() and self._started > _COLD_STARTS:
            return forked.Forked(arguments, root, env)
        command = [*forked.command(), *arguments]
        return subprocess.Popen(command, cwd=root, env={**env, PARENT: str(os.getpid())})


def _reported_reason(messages: Sequence[Any]) -> str:
    """Return what the process said about its end, an empty string if it said nothing."""
    reasons = [str(message[REASON]) for message in messages if isinstance(message, dict) and REASON in message]
    return reasons[-1] if reasons else ""


def stop(process: Started, patience: float = GRACE_SECONDS) -> None:
    """End a process that may still run: SIGTERM first, SIGKILL after ``patience`` seconds.

    Not SIGINT: a shell starts background processes with SIGINT ignored, and their children inherit that.
    """
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is None:
        process.kill()
        process.wait()
