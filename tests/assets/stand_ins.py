"""What stands in for a stage in ``test_forked``; a fork imports this module alone, neither pytest nor Dagster."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from assets import worker


def describe(arguments: list[str]) -> None:
    """Stand in for a stage: write into its folder, and to standard output and error, what a stage can see."""
    sys.stdout.write("to standard output\n")
    sys.stderr.write("to standard error\n")
    environ, cwd, title = dict(os.environ), str(Path.cwd()), psutil.Process().cmdline()[0]
    seen = {"arguments": arguments, "argv": sys.argv[1:], "cwd": cwd, "environ": environ, "title": title}
    seen["first import from"], seen["frozen"] = sys.path[0], gc.get_freeze_count()
    Path("seen.json").write_text(json.dumps(seen), "utf-8")


def wait(arguments: list[str]) -> None:
    """Stand in for a stage that does not end."""
    Path(arguments[0]).touch()
    time.sleep(60)


def outlive(arguments: list[str]) -> None:
    """Wait as a stage does: it ends with the process that started it."""
    parent = int(os.environ[worker.PARENT])
    threading.Thread(target=worker._end_with, args=[parent], daemon=True).start()
    wait(arguments)


def tidy(arguments: list[str]) -> None:
    """Stand in for a stage that has something to finish when it is asked to end."""

    def finish(*_: Any) -> None:
        time.sleep(0.2)
        Path("finished").touch()
        os._exit(143)

    signal.signal(signal.SIGTERM, finish)
    threading.Thread(target=worker._end_with, args=[0], daemon=True).start()  # a process that has ended
    wait(arguments)


def die(arguments: list[str]) -> None:
    """Stand in for a stage that the system kills."""
    os.kill(os.getpid(), signal.SIGKILL)
