"""``xc serve``: answers questions over HTTP with the champion, and swaps to a new one while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import click

from xc_core.cli.champions import source_of
from xc_core.cli.options import Number, OpenedPath, device_option, host_option
from xc_core.errors import UsageError
from xc_core.plugins import importing
from xc_core.serve.limits import Limits

_MAX_POLL_SECONDS: Final = 86_400
"""Seconds between looks for a new champion, at most."""
_MAX_THREADS: Final = 1024
"""Threads of a pass, at most; OpenMP ends the process if there are more than the machine can start."""


def _limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each limit."""
    for limit in reversed(fields(Limits)):
        name = f"--{limit.name.replace('_', '-')}"
        kind = Number() if isinstance(limit.default, float) else int
        option = click.option(name, type=kind, default=limit.default, show_default=True, help=limit.metadata["help"])
        command = option(command)
    return command


@click.command("serve", short_help="Serve the champion over HTTP.")
@click.option("--dataset", default=None, help="Name of the dataset; its champion answers.")
@click.option("--recipe", default=None, help="Serve this recipe's packed model instead of the champion.")
@click.option("--bundle", type=OpenedPath(), default=None, help="Serve the packed model in this folder.")
@host_option
@click.option("--port", default=8080, show_default=True, help="Port to listen on; 0 for a free one.")
@click.option("--allow-host", multiple=True, help="A further host name that requests may address, as of a proxy.")
@click.option("--poll", type=Number(), default=2.0, show_default=True, help="Seconds between looks for a new champion.")
@click.option("--threads", default=0, help="Threads of a pass through the model; by default one per core.")
@device_option
@_limit_options
def command(dataset: str | None, recipe: str | None, bundle: Path | None, **options: Any) -> None:
    """Serve the model of a dataset on loopback. SIGTERM and Ctrl-C stop it after the requests that have arrived.

    A page to try the model is at /, the API at /docs. docs/serving.md says what to put in front.
    """
    host, port, allowed, poll, threads = (
        options.pop(name) for name in ("host", "port", "allow_host", "poll", "threads")
    )
    if not 0 < poll <= _MAX_POLL_SECONDS or not 0 <= threads <= _MAX_THREADS:
        raise UsageError(
            f"--poll {poll}, --threads {threads}",
            expected=f"above 0 up to {_MAX_POLL_SECONDS:,}, and 0 to {_MAX_THREADS:,}",
            do="fix the number",
        )
    limits, source = Limits(**options), source_of(dataset, recipe, bundle)
    with importing():
        import torch

        from xc_core.serve.server import Address, serve

    if threads:
        torch.set_num_threads(threads)
    serve(source, Address(host=host, port=port, allowed=allowed), limits, poll)
