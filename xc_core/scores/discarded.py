"""Discards what a library prints past Python, and keeps lines of progress."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import sys
from collections.abc import Iterator

from xc_core.progress import between_lines


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard stdout and stderr of the process: omikuji logs to one and draws progress bars on the other.

    Python still writes to the real stderr, as a line of progress is. If omikuji ends the process, where it was is
    written there too: it would end without a word.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in (1, 2)]
    devnull = os.open(os.devnull, os.O_WRONLY)
    reports = not faulthandler.is_enabled()
    try:
        with _errors_to(saved[1]):
            try:
                for number in (1, 2):
                    os.dup2(devnull, number)
                if reports:
                    faulthandler.enable(saved[1], all_threads=False)
                yield
            finally:
                if reports:
                    faulthandler.disable()
                for number, descriptor in zip((1, 2), saved, strict=True):
                    os.dup2(descriptor, number)
    finally:
        for descriptor in (*saved, devnull):
            os.close(descriptor)


@contextlib.contextmanager
def _errors_to(descriptor: int) -> Iterator[None]:
    """Let ``sys.stderr`` write to a copy of the process's stderr, unless it writes elsewhere, as in a test."""
    before = sys.stderr
    if not isinstance(before, io.TextIOWrapper) or _descriptor(before) != 2:
        yield
        return
    copy = open(descriptor, "w", 1, before.encoding, before.errors, closefd=False)  # noqa: SIM115
    try:
        sys.stderr = copy
        yield
    finally:
        with between_lines(), contextlib.suppress(OSError):  # of a terminal that is gone
            sys.stderr = before
            copy.close()


def _descriptor(stream: io.TextIOWrapper) -> int | None:
    """Return the file descriptor that a stream writes to, None if it has none."""
    try:
        return stream.fileno()
    except io.UnsupportedOperation:
        return None
