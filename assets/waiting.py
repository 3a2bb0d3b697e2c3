"""The first request to MLflow: its time is bounded, and a long wait is reported."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from assets.database import unmade
from assets.settings import hide_secrets
from xc_core.progress import report
from xc_core.sqlite import lockers, sqlite_file

TIMEOUT: Final = "MLFLOW_HTTP_REQUEST_TIMEOUT"
RETRIES: Final = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
_SECONDS: Final = "20"
"""For each try of the first request. MLflow's 120 are for later ones, such as the copy of a large file."""
_QUIET_SECONDS: Final = 5.0
"""A wait that is longer is reported."""
_REPORTED: Final[set[str]] = set()
"""Addresses whose wait was reported, until they answer: `xc serve` asks again every few seconds."""


@contextmanager
def first_contact(uri: str) -> Iterator[None]:
    """Bound the time of each request in the block, unless the user has set it, and report a long wait.

    A server that accepts connections but never answers would keep a command silent for 8 minutes. A new database is
    made, which takes seconds; one that is there may be locked by another process.
    """
    waiting = threading.Timer(_QUIET_SECONDS, _report, [uri])
    waiting.daemon = True
    if not unmade(uri):
        waiting.start()
    set_by_user = TIMEOUT in os.environ
    os.environ.setdefault(TIMEOUT, _SECONDS)
    try:
        yield
        _REPORTED.discard(uri)
    finally:
        waiting.cancel()
        if not set_by_user:
            os.environ.pop(TIMEOUT, None)


@contextmanager
def without_retries() -> Iterator[None]:
    """Send each request in the block once, unless the user has set retries: a command can do without its answer."""
    set_by_user = RETRIES in os.environ
    os.environ.setdefault(RETRIES, "0")
    try:
        yield
    finally:
        if not set_by_user:
            os.environ.pop(RETRIES, None)


def _report(uri: str) -> None:
    if uri not in _REPORTED:
        _REPORTED.add(uri)
        file, address = sqlite_file(uri), hide_secrets(uri)
        if file is None:
            report(f"waiting for an answer from MLflow at {address}")
        elif holders := lockers(file):
            report(f"waiting for MLflow's database at {address}, which {holders} has locked")
        else:
            report(f"opening MLflow's database at {address}")
