"""Stops work when a time budget ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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

    started, before = time.monotonic(), signal.signal(signal.SIGALRM, stop)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # another timer of this process, which goes on
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - started), 0.001))
