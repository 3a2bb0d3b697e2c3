"""The process that runs a stage for Dagster: the command ``xc``, whose messages Dagster Pipes sends to the event log.

Outside Dagster, Pipes does nothing, so this runs in a shell too. With several processes only rank 0 sends messages.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from typing import Final

from dagster_pipes import PipesContext, open_dagster_pipes

from assets.cards import own_card
from xc_core.chain.workspace import Workspace
from xc_core.cli.main import main
from xc_core.distributed import World
from xc_core.progress import listen, pace

PARENT: Final = "XC_PARENT"
"""Environment variable with the id of the process that this one must not outlive."""
REASON: Final = "why"
"""Key of the message with which the process tells the run why it ends."""
GRACE_SECONDS: Final = 5.0
"""Time that a stage has after SIGTERM to end by itself; a single call into a library may take longer than this."""
_LOOK_SECONDS: Final = 0.5
PROGRESS_SECONDS: Final = 15.0
"""Dagster keeps every line of a run in its database, so progress is logged at most this often."""


def run(arguments: list[str]) -> None:
    """Run ``xc`` with ``arguments`` and exit with its code."""
    if parent := os.environ.pop(PARENT, ""):
        threading.Thread(target=_end_with, args=[int(parent)], daemon=True).start()
    if World.from_environment().rank != 0:
        main(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = open_dagster_pipes()
    with opened as pipes:
        code = _exit_code(pipes, arguments)
    sys.exit(code)  # after Pipes is closed: it would log a traceback of an error that has a message


def _exit_code(pipes: PipesContext, arguments: list[str]) -> int:
    """Run ``xc``, pass its lines on to the run, and return its exit code."""
    last_error = [""]
    pace(PROGRESS_SECONDS)
    listen(lambda line: _pass_on(pipes, last_error, line))
    try:
        with own_card(arguments, Workspace.find().root / ".xc" / "lock"):
            main(arguments)
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else int(request.code is not None)
        if code:
            pipes.report_custom_message({REASON: last_error[0]})
        return code
    return 0


def _pass_on(pipes: PipesContext, last_error: list[str], line: str) -> None:
    """Log a line; keep one that says why the command ends."""
    if line.startswith("xc: "):
        last_error[0] = line.removeprefix("xc: ")
        pipes.log.error(line)
    else:
        pipes.log.info(line)


def _end_with(parent: int) -> None:
    """End this process once ``parent`` has ended: a killed run must not train on and hold the lock of its stage."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run(sys.argv[1:])
