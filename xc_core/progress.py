"""Progress of long steps: a bar with the time left on a terminal, a sentence every few seconds elsewhere.

A step calls ``Meter`` or ``report``; the process decides once who listens: the CLI prints the lines, a Dagster worker
also forwards them to the event log.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tqdm import tqdm

from xc_core.errors import StorageError
from xc_core.visible import counted

Listener = Callable[[str], None]

QUIET_SECONDS = 3.0
"""A step shorter than this reports nothing by itself."""
LINE_SECONDS = 5.0
"""Without a terminal: at most one line of progress in this many seconds, unless ``pace`` sets another time."""

_BAR_COLUMNS: Final = 100
"""Width of a bar on a terminal that is wider."""

_listeners: list[Listener] = []
_sending = threading.RLock()
"""Held while a line is sent to the listeners; ``Steps`` sends one from another thread."""
_pace = LINE_SECONDS
_subject = ""
"""What the names of new meters begin with."""
_reported: dict[str, float] = {}
"""When a line of a kind was reported last (``time.monotonic``)."""


def listen(listener: Listener) -> None:
    """Send every reported line to ``listener`` from now on."""
    _listeners.append(listener)


def silence() -> None:
    """Forget all listeners, and when lines were reported."""
    _listeners.clear()
    _reported.clear()


def pace(seconds: float) -> None:
    """Report at most one line of progress of a kind in ``seconds`` from now on."""
    global _pace
    _pace = seconds


@contextmanager
def quiet() -> Iterator[None]:
    """Send no lines to the listeners until the end of the block."""
    listeners = list(_listeners)
    _listeners.clear()
    try:
        yield
    finally:
        _listeners.extend(listeners)


@contextmanager
def working_on(name: str) -> Iterator[None]:
    """Begin the lines of meters in this block with ``name``: the same step may run for several parts of a stage."""
    global _subject
    previous, _subject = _subject, f"{name}: "
    try:
        yield
    finally:
        _subject = previous


def report(line: str) -> None:
    """Send one line to every listener."""
    with _sending:
        for listener in _listeners:
            listener(line)


@contextmanager
def between_lines() -> Iterator[None]:
    """Let no line be sent in this block, which changes what listeners write to."""
    with _sending:
        yield


@contextmanager
def optional(note: str) -> Iterator[None]:
    """Report ``note`` instead of a StorageError in the block, so that reading works without permission or space."""
    try:
        yield
    except StorageError as error:
        report(f"note: {note}: {error.found}")


def report_paced(kind: str, line: str) -> None:
    """Report a line of a kind that comes often, such as one per epoch: it is dropped if the last one is too recent."""
    now = time.monotonic()
    if now - _reported.get(kind, -math.inf) >= _pace:
        _reported[kind] = now
        report(line)


def duration(seconds: float) -> str:
    """Return a time in words, in its two largest units: 12 s, 3 min 20 s, 2 h 5 min, 1 d 3 h."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _columns() -> int:
    """Return the width of a bar: one that takes a second line of the terminal is not erased when the next is drawn."""
    columns = 0
    with suppress(OSError, ValueError):
        columns = os.get_terminal_size(sys.stderr.fileno()).columns  # 0 if the terminal does not know
    return min(columns - 1, _BAR_COLUMNS) if columns > 1 else _BAR_COLUMNS


class Steps:
    """Progress of work in steps that take very different times: a line as each begins.

    In the first 3 seconds none is named, so short work reports nothing. The step that lasts longer is named then.
    """

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, total, 0
        self._start = time.monotonic()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()

    def begin(self, name: str) -> None:
        """Report which step begins; the one before has ended."""
        self._forget()
        self.done += 1
        line = f"{self.title}: {self.done} of {self.total}, {name}"
        if (quiet_seconds := self._start + QUIET_SECONDS - time.monotonic()) <= 0:
            report(line)
            return
        self._timer = threading.Timer(quiet_seconds, report, [line])  # the step itself may be one call of a library
        self._timer.daemon = True
        self._timer.start()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Meter:
    """Progress of one step: call ``update`` as work is done. It is shown once the step has lasted 3 seconds.

    ``already`` is the work done before a resume; it counts as progress, not as speed.
    """

    def __init__(self, title: str, total: int, unit: str = "items", *, already: int = 0) -> None:
        self.title, self.total, self.unit, self.already = _subject + title, max(total, 1), unit, already
        self.done, self.note = already, ""
        self._start = self._last = time.monotonic()
        self._other_seconds = 0.0
        self._bar_shown = False

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._bar_shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
        now = time.monotonic()
        if (seconds := now - self._start) > QUIET_SECONDS:
            outcome = "done in" if error is None else f"stopped at {self._amount()} after"
            note = f", {self.note}" if self.note else ""
            report(f"{self.title}: {outcome} {duration(seconds)}, {self._rate_text(self._rate(now))}{note}")

    @contextmanager
    def other_work(self) -> Iterator[None]:
        """Leave the time of this block out of the rate and so out of the time left."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._other_seconds += time.monotonic() - start

    def update(self, amount: int = 1, note: str = "") -> None:
        """Add ``amount`` to the work done; ``note`` is shown beside the bar."""
        self.done += amount
        self.note = note or self.note
        now = time.monotonic()
        terminal = bool(_listeners) and sys.stderr.isatty()
        if now - self._start < QUIET_SECONDS or now - self._last < (0.2 if terminal else _pace):
            return
        self._last = now
        if terminal:
            self._bar_shown = True
            sys.stderr.write(f"\r\x1b[2K{self.bar(now)}")
            sys.stderr.flush()
        else:
            report(self.sentence(now))

    def sentence(self, now: float) -> str:
        """Return share, amount, rate, time left and note in words; without a total only the amount, rate and note."""
        rate = self._rate(now)
        left = [f"{duration((self.total - self.done) / rate)} left"] if self.total > 1 and rate > 0 else []
        return f"{self.title}: {', '.join([self._amount(), self._rate_text(rate), *left, *filter(None, [self.note])])}"

    def _amount(self) -> str:
        if self.total <= 1:
            return counted(self.done, self.unit.removesuffix("s"))
        return f"{100 * min(self.done / self.total, 1):.0f} % ({self.done:,} of {self.total:,} {self.unit})"

    def _rate(self, now: float) -> float:
        """Return the work of this process per second."""
        return (self.done - self.already) / max(now - self._start - self._other_seconds, 1e-9)

    def _rate_text(self, rate: float) -> str:
        return f"{rate:,.1f} {self.unit}/s" if rate >= 0.995 else f"{rate:.2g} {self.unit}/s"

    def bar(self, now: float) -> str:
        """Return share, bar, elapsed and remaining time, rate and note as one line."""
        return str(
            tqdm.format_meter(
                self.done,
                self.total,
                now - self._start,
                ncols=_columns(),
                prefix=self.title,
                unit=f" {self.unit}",
                postfix=self.note,
                ascii=False,
                rate=self._rate(now),
            )
        )
