"""Progress of long steps: a bar with an ETA on a terminal, one plain line every few seconds elsewhere.

A step calls ``track`` or ``report``; the process decides once who listens: the CLI prints the lines, a Dagster worker
also forwards them to the event log.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
Listener = Callable[[str], None]

QUIET_SECONDS = 3.0
"""A step shorter than this reports nothing by itself."""
LINE_SECONDS = 5.0
"""Without a terminal: at most one line of progress in this many seconds."""

_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """Send every reported line to ``listener`` from now on."""
    _listeners.append(listener)


def silence() -> None:
    """Forget all listeners."""
    _listeners.clear()


@contextmanager
def quiet() -> Iterator[None]:
    """Send no lines to the listeners until the end of the block."""
    kept = list(_listeners)
    _listeners.clear()
    try:
        yield
    finally:
        _listeners.extend(kept)


def report(line: str) -> None:
    """Send one line to every listener."""
    for listener in _listeners:
        listener(line)


class Meter:
    """Progress of one step: call ``update`` as work is done. It is shown once the step has lasted 3 seconds.

    ``already`` is the work done before a resume; it counts as progress, not as speed.
    """

    def __init__(self, what: str, total: int, unit: str = "", *, already: int = 0) -> None:
        self.what, self.total, self.unit, self.already = what, max(total, 1), unit, already
        self.done, self.note = already, ""
        self._start = self._last = time.monotonic()
        self._bar_shown = False

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar_shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
        seconds = time.monotonic() - self._start
        if seconds > QUIET_SECONDS:
            rate = f", {(self.done - self.already) / seconds:,.1f} {self.unit}/s" if self.unit else ""
            note = f", {self.note}" if self.note else ""
            report(f"{self.what}: done in {seconds:.0f} s{rate}{note}")

    def update(self, amount: int = 1, note: str = "") -> None:
        """Add ``amount`` to the work done; ``note`` is shown beside the bar."""
        self.done += amount
        self.note = note or self.note
        now = time.monotonic()
        terminal = bool(_listeners) and sys.stderr.isatty()
        if now - self._start < QUIET_SECONDS or now - self._last < (0.2 if terminal else LINE_SECONDS):
            return
        self._last = now
        if terminal:
            self._bar_shown = True
            sys.stderr.write(f"\r\x1b[2K{self.line(now)}")
            sys.stderr.flush()
        else:
            report(self.line(now))

    def line(self, now: float) -> str:
        """Return share, bar, elapsed and remaining time, rate and note as one line."""
        return str(
            tqdm.format_meter(
                self.done,
                self.total,
                now - self._start,
                ncols=100,
                prefix=self.what,
                unit=f" {self.unit}".rstrip(),
                postfix=self.note,
                ascii=False,
                initial=self.already,
            )
        )


def track(items: Iterable[T], what: str, total: int, unit: str = "") -> Iterator[T]:
    """Yield ``items`` and show progress towards ``total`` of them."""
    with Meter(what, total, unit) as meter:
        for item in items:
            yield item
            meter.update()
