"""Searches of MLflow, whose answers come in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def paged(search: Callable[..., Any], *arguments: Any, **named: Any) -> Iterator[Any]:
    """Yield all that ``search``, a method of MLflow's client, finds with these arguments, one page after another."""
    token = None
    while True:
        page = search(*arguments, **named, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
