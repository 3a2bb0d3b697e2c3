"""The outermost layer of the server: bounds size, time and number of requests, checks the host, counts requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, TypeAlias

from starlette.responses import JSONResponse

from xc_core.errors import preview
from xc_core.serve.limits import Limits
from xc_core.serve.meters import Meters
from xc_core.visible import counted

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
PATHS: Final = ("/", "/predict", "/health", "/ready", "/metrics", "/docs", "/openapi.json")
HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


def problem(status: int, found: str, expected: str, do: str, *, retry_seconds: int | None = None) -> JSONResponse:
    """Return an error as JSON: what was found, what was expected, what to do."""
    headers = {} if retry_seconds is None else {"Retry-After": str(retry_seconds)}
    return JSONResponse({"found": found, "expected": expected, "do": do}, status, headers)


class _GoneError(Exception):
    """The client closed the connection."""


class _RefusedError(Exception):
    """The request is answered with this response."""

    def __init__(self, response: JSONResponse) -> None:
        self.response = response


class Guard:
    """An ASGI app that reads the whole body of a request, within the limits, before the inner app runs."""

    def __init__(self, app: App, limits: Limits, meters: Meters, hosts: Iterable[str] | None) -> None:
        """``hosts`` are the names that a request may address; any name if None."""
        self.app, self.limits, self.meters = app, limits, meters
        self.hosts = None if hosts is None else frozenset(name.strip("[]").lower() for name in hosts)
        self.dropped = 0
        """Requests that were cancelled because the server had to end."""
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["path"].startswith(("http://", "https://")):  # a whole address: a server has to take it
            scope = {**scope, "path": "/" + "".join(scope["path"].split("/", 3)[3:])}
        if scope["method"] == "HEAD":  # as some monitors ask for health; the protocol leaves the body out
            scope = {**scope, "method": "GET"}
        path = scope["path"] if scope["path"] in PATHS else "other"
        counted = _Counted(send)
        start = time.monotonic()
        self._count_in_flight(1)
        try:
            await self._handle(scope, receive, counted)
        except _RefusedError as refused:
            await refused.response(scope, receive, counted)
        except _GoneError:
            counted.status = 499
        except asyncio.CancelledError:
            self.dropped += 1
            if not counted.started:
                await busy("a server that ends", "a server that answers")(scope, receive, counted)
        finally:
            self._count_in_flight(-1)
            self.meters.requests.labels(path, str(counted.status)).inc()
            self.meters.seconds.labels(path).observe(time.monotonic() - start)

    def _count_in_flight(self, change: int) -> None:
        self._in_flight += change
        self.meters.in_flight.set(self._in_flight)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_host(scope)
        if not scope.get("query_string", b"").isascii():
            raise _RefusedError(problem(400, "a query with bytes that are not ASCII", "none", "leave the query out"))
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if self._in_flight > self.limits.requests:
            raise _RefusedError(
                busy(f"{counted(self._in_flight - 1, 'request')} at once", f"at most {self.limits.requests}")
            )
        body = await self._body(scope, receive)
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)

    def _check_host(self, scope: Scope) -> None:
        """Refuse another host name: a page of the web could otherwise reach the server by a name of its own.

        A request without one is of no browser; a load balancer that asks for health by HTTP/1.0 sends none.
        """
        host = _header(scope, b"host")
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        name = name.strip("[]").lower()
        if self.hosts is not None and name and name not in self.hosts:
            raise _RefusedError(
                problem(421, f"host {preview(name)}", f"one of {', '.join(sorted(self.hosts))}",
                        "address the server by such a name, or start it with --allow-host NAME")
            )  # fmt: skip

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body; raise _RefusedError if it is too large or comes too slowly."""
        declared = _header(scope, b"content-length")
        digits = declared[:19] if declared.isascii() and declared.isdigit() else "0"  # int() refuses some more
        if int(digits) > self.limits.body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self._read(receive)
        except TimeoutError:
            limit = f"all of it within {self.limits.seconds:g} s"
            raise _RefusedError(problem(408, "a body that has not ended", limit, "send it faster")) from None

    async def _read(self, receive: Receive) -> bytes:
        chunks, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self.limits.body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _too_large(self) -> _RefusedError:
        limit = f"at most {self.limits.body_bytes:,} bytes"
        return _RefusedError(problem(413, "a body that is too large", limit, "send fewer or shorter texts a request"))


def busy(found: str, expected: str) -> JSONResponse:
    """Return the answer of a server that has too much to do."""
    return problem(503, found, expected, "try again after the seconds in Retry-After", retry_seconds=1)


class _Counted:
    """Sends a response with the headers of every response, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self.status = 500
        self.started = False
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
            message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
        await self._send(message)


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
