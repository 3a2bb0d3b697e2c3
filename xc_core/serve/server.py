"""Runs the web application until a signal ends it; SIGTERM and SIGINT answer what has come, then end with code 0."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import h11
import uvicorn
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from xc_core.errors import UnavailableError, UsageError, bare
from xc_core.infer.champion import Source
from xc_core.progress import report
from xc_core.serve.app import Server, make_app, make_server
from xc_core.serve.guard import LOOPBACK, Guard, busy, problem
from xc_core.serve.limits import Limits
from xc_core.serve.meters import Meters
from xc_core.serve.models import Models, log
from xc_core.visible import counted, http_address

_BACKLOG: Final = 2048
_HEADER_SECONDS: Final = 10.0
"""Until the headers of a connection's next request have come."""
_REST_SECONDS: Final = 30.0
"""Until the rest of a body has come whose request is answered already: many clients send all of it before they read."""
_UNREAD_SECONDS: Final = 30.0
"""Until a connection is cut off whose client takes nothing of an answer; only on Linux."""
_LAST_SECONDS: Final = 1.0
"""For the answers to requests that a second Ctrl-C cancels."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens, and which host names it answers to."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0 for a free one."""
    allowed: tuple[str, ...] = ()
    """Further host names that requests may address."""

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        return self.host in LOOPBACK or self.host.startswith("127.")

    def names(self) -> Iterable[str] | None:
        """Return the host names that requests may address; None for any."""
        if self.is_loopback:
            return {*LOOPBACK, self.host, *self.allowed}
        return {*LOOPBACK, *self.allowed} if self.allowed else None

    def bound(self) -> socket.socket:
        """Return a socket that is bound to it; raise UsageError if that is impossible."""
        if not self.host:  # the system would take it for all addresses of this machine
            raise UsageError("an empty --host", expected="an address of this machine", do="0.0.0.0 means all of them")
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections have it from the listener
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _UNREAD_SECONDS))
            listener.bind((self.host, self.port))
        except (OSError, OverflowError, TypeError, ValueError) as error:  # TypeError: a name that cannot be encoded
            listener.close()
            raise self._address_error(error) from error
        return listener

    def listening(self, listener: socket.socket) -> None:
        """Let clients connect from now on; raise UsageError if another server does so already."""
        try:
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise self._address_error(error) from error

    def _address_error(self, error: Exception) -> UsageError:
        return UsageError(
            f"{bare(self.host)}, port {self.port}, where no server can listen ({error})",
            expected="an address of this machine and a free port",
            do="choose another --port, or another --host",
        )


class Protocol(H11Protocol):
    """HTTP/1.1 whose own answers, to what never reaches the application, are JSON as all others.

    Headers must come in time, and a client that has closed its side for writing gets the answers to what it has sent.
    """

    def __init__(self, config: uvicorn.Config, *arguments: Any, **keywords: Any) -> None:
        super().__init__(config, *arguments, **keywords)
        self._max_connections, self._inner_app = self.limit_concurrency, self.app
        self.limit_concurrency, self.app = None, self._bounded
        self._sends_no_more = False
        self._timer: asyncio.TimerHandle | None = None

    async def _bounded(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer 503 if there are too many connections or requests."""
        count = max(len(self.connections), len(self.tasks))
        if self._max_connections is None or count < self._max_connections:
            await self._inner_app(scope, receive, send)
            return
        response = busy(f"{count} connections or requests", f"fewer than {self._max_connections}")
        response.headers["Connection"] = "close"
        await response(scope, receive, send)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing if a client offers another protocol: some do at each request, and uvicorn asks for a library."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait(_HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return True, so that the connection stays open for writing, if an answer to a whole request is due."""
        self._sends_no_more = True
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def handle_events(self) -> None:
        """Begin the requests whose headers have come."""
        previous = self.cycle
        super().handle_events()
        if self.cycle is not previous:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begin the next request if it has come, or wait for it."""
        super().on_response_complete()
        if not self.cycle.response_complete or self.transport.is_closing():
            return
        if self._sends_no_more:
            self.transport.close()
        else:
            self._wait(_REST_SECONDS if self.conn.their_state is h11.SEND_BODY else _HEADER_SECONDS)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._end_waiting)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end_waiting(self) -> None:
        """Close the connection; first answer headers that have not ended."""
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            limit = f"all of them within {_HEADER_SECONDS:g} s"
            self._end_with(
                "408 Request Timeout", problem(408, "headers that have not ended", limit, "send them faster")
            )
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no request, and close the connection."""
        self._end_with("400 Bad Request", problem(
            400, "bytes that are not an HTTP/1.1 request, or headers that are too long",
            "a request line and headers", "check the client; this port does not speak TLS"))  # fmt: skip

    def _end_with(self, status: str, response: Response) -> None:
        headers = [*response.raw_headers, (b"connection", b"close")]
        lines = [f"HTTP/1.1 {status}".encode(), *(b": ".join(header) for header in headers), b"", bytes(response.body)]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()


class _Uvicorn(uvicorn.Server):
    """Tells the application that it ends, so that /ready says so."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end."""
        self._server.draining = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; after a second Ctrl-C cancel the remaining tasks, which uvicorn would leave to asyncio's tracebacks."""
        await super().shutdown(sockets)
        if self.force_exit:
            for task in (tasks := list(self.server_state.tasks)):
                task.cancel()
            if tasks:  # a client that does not read would keep its answer waiting for ever
                await asyncio.wait(tasks, timeout=_LAST_SECONDS)
            self._server.hurried = True
            await self.lifespan.shutdown()


def serve(source: Source, address: Address, limits: Limits, poll_seconds: float) -> None:
    """Answer requests until a signal comes.

    Raises UsageError for an address that cannot be listened on, what ``Models`` raises if there is no model, and
    UnavailableError if it ended before every request was answered.
    """
    listener = address.bound()
    meters = Meters()
    try:
        server = make_server(Models(source, meters.watch()), limits, meters)
    except BaseException:
        listener.close()
        raise
    name = server.models.current.name
    url = http_address(*listener.getsockname()[:2])
    if not address.is_loopback:
        report(
            f"warning: other machines can reach {url}. This server has no TLS, no authentication and no rate "
            "limit; put a proxy in front of it (docs/serving.md)"
        )
    address.listening(listener)
    report(f"version {name['version']} of {name['dataset']} ({name['recipe']}) answers on {url}")
    app = make_app(server, address.names(), poll_seconds)
    _run(_Uvicorn(_config(app, limits), server), listener)
    if app.dropped:
        raise UnavailableError(
            f"{counted(app.dropped, 'request')} without an answer at the end",
            expected="an answer to every request that had come",
            do=f"send one signal, and wait up to {2 * limits.seconds:g} s",
        )
    log("stopped; every request that had come was answered")


def _config(app: Guard, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Protocol,  # h11 bounds the size of headers
        ws="none",
        access_log=False,
        log_level=logging.WARNING,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_connections(4 * limits.requests + 16),
        timeout_graceful_shutdown=int(2 * limits.seconds) + 1,
    )


def _connections(limit: int) -> int:
    """Return how many connections may be open: as many as wanted, but no more than half of the files that may be.

    Without a free file no connection is accepted, so none could be answered with 503. A shell allows 1,024 by default,
    fewer than the system does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= 2 * limit:
        return limit
    files = 2 * limit if hard == resource.RLIM_INFINITY else min(2 * limit, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        soft = files
    return soft // 2


def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Run until a signal; a closed terminal (SIGHUP) is one too, unless it is ignored as under nohup.

    uvicorn handles signals only while it runs, and raises them again when it has ended.
    """
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    previous_handlers = {number: signal.signal(number, server.handle_exit) for number in numbers}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
