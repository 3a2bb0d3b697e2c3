"""Stops work when a time budget ends, and counts the time of work that is killed."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from xc_core.artifacts import write_file
from xc_core.errors import StorageError
from xc_core.leftovers import drop

_RECORD_SECONDS: Final = 5.0
"""Seconds between two records of the time that a trial has run."""


class TimeIsUpError(BaseException):
    """The budget ended while a stage ran. Not an Exception, so that no stage handles it as a failure."""


@contextmanager
def stopped_after(seconds: float | None) -> Iterator[None]:
    """Raise TimeIsUpError in the block after ``seconds``; not at all if None.

    Outside the main thread no signal can be received; then the block runs to its end.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    if seconds <= 0:
        raise TimeIsUpError

    def stop(*_: Any) -> None:
        raise TimeIsUpError

    start, previous_handler = time.monotonic(), signal.signal(signal.SIGALRM, stop)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, min(seconds, threading.TIMEOUT_MAX))  # the timer takes no more
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
        if remaining:  # another timer of this process, which goes on
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - start), 0.001))


@contextmanager
def seconds_kept(path: Path, number: int) -> Iterator[None]:
    """Keep the seconds that trial ``number`` has run in the file ``path`` during the block, up to 5 seconds behind."""
    start, ended = time.monotonic(), threading.Event()

    def count() -> None:
        while not ended.wait(_RECORD_SECONDS):
            with suppress(StorageError):  # the trial itself meets it too
                write_file(path, json.dumps({"trial": number, "seconds": round(time.monotonic() - start, 3)}))

    thread = threading.Thread(target=count, name="seconds", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        drop(path)


def count_of_killed(path: Path, number: int) -> float:
    """Return the seconds that trial ``number`` ran before its process was killed; 0 if none are recorded."""
    with suppress(FileNotFoundError, ValueError, TypeError, KeyError):  # also of a file that is damaged
        content = json.loads(path.read_text("utf-8"))
        return float(content["seconds"]) if content["trial"] == number else 0.0
    return 0.0
