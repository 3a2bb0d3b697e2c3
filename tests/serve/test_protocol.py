"""Answers to what never reaches the application have the form of all others."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from xc_core.serve import server
from xc_core.serve.app import Server, make_app
from xc_core.serve.limits import Limits
from xc_core.serve.meters import Meters
from xc_core.serve.server import Address, Protocol, _connections, _Uvicorn


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.2 if scope["path"] == "/slow" else 0.01)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def test_a_client_that_does_not_read_cannot_keep_a_server_that_has_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def waits_for_its_client() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    async def ended() -> None:
        config = uvicorn.Config(_app, lifespan="off")
        config.load()
        process = _Uvicorn(config, Server(*[None] * 4))  # type: ignore[arg-type]
        process.servers, process.lifespan, process.force_exit = [], config.lifespan_class(config), True
        process.server_state.tasks.add(asyncio.create_task(waits_for_its_client()))
        await asyncio.sleep(0)
        await asyncio.wait_for(process.shutdown(), 5)

    monkeypatch.setattr(server, "_LAST_SECONDS", 0.01)
    asyncio.run(ended())


@pytest.mark.parametrize("hurried", [False, True])
def test_a_server_waits_for_its_threads_unless_it_has_to_end_at_once(hurried: bool) -> None:
    """A pass of the model can be long."""
    ended: list[str] = []
    models = SimpleNamespace(start=lambda _: None, stop=lambda: ended.append("models"))
    batcher = SimpleNamespace(stop=lambda: ended.append("batcher"))
    app: Any = make_app(Server(models, Limits(), Meters(), batcher, hurried=hurried), None, 1.0).app  # type: ignore[arg-type]

    async def lived() -> None:
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(lived())
    assert ended == ([] if hurried else ["models", "batcher"])


async def _answer(
    sent: bytes, most: int | None = None, log_level: str = "critical", *, sends_no_more: bool = False,
    later: Iterable[bytes] = (),
) -> bytes:  # fmt: skip
    """Return all that a server writes until it closes the connection; ``later`` is sent every 30 ms."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(_app, http=Protocol, ws="none", lifespan="off", limit_concurrency=most, log_level=log_level)
    process = uvicorn.Server(config)
    running = asyncio.create_task(process.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(sent)
    for part in later:
        await asyncio.sleep(0.03)
        writer.write(part)
    if sends_no_more:
        writer.write_eof()
    found = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    process.should_exit = True
    await asyncio.wait_for(running, 20)
    return found


ASKED = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "most", "status", "found"),
    [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", None, b"400 Bad Request", "bytes that are not an HTTP/1.1 request"),
        (ASKED, 1, b"503 Service Unavailable", "1 connections or requests"),
        (ASKED, 0, b"503 Service Unavailable", "1 connections or requests"),  # more than the limit, not just as many
    ],
)  # fmt: skip
def test_what_never_reaches_the_application_is_answered_in_json(
    sent: bytes, most: int | None, status: bytes, found: str
) -> None:
    head, _, body = asyncio.run(_answer(sent, most)).partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert {b"content-type: application/json", b"connection: close"} <= set(lines)
    content = json.loads(body)
    assert content["found"].startswith(found) and content.keys() == {"found", "expected", "do"}
    assert (b"retry-after: 1" in lines) == (most is not None)


def test_other_requests_reach_the_application() -> None:
    assert asyncio.run(_answer(ASKED, 2)).startswith(b"HTTP/1.1 200")


KEPT = ASKED.replace(b"Connection: close\r\n", b"")
LONG = KEPT.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 40\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "answers"),
    [(KEPT, 1), (3 * KEPT, 3), (KEPT + KEPT[:-2], 1), (KEPT[:-2], 0), (LONG, 0), (b"", 0)],
)
def test_a_client_that_has_closed_its_side_gets_the_answers_to_what_it_has_sent(sent: bytes, answers: int) -> None:
    """As `nc -N` does; the connection was closed without an answer."""
    began = time.monotonic()
    assert asyncio.run(_answer(sent, sends_no_more=True)).count(b"HTTP/1.1 200") == answers
    assert time.monotonic() - began < 4, "it is not kept open for another request"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [(b"", []), (KEPT[:-2], [b"408"]), (KEPT + KEPT[:-2], [b"200", b"408"])],
    ids=["nothing", "a part of the headers", "a part of those of a second request"],
)
def test_headers_that_do_not_end_in_time_end_the_connection(
    sent: bytes, answers: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,040 such connections kept every other client out for ever."""
    monkeypatch.setattr(server, "_HEADER_SECONDS", 0.1)
    found = asyncio.run(_answer(sent))
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == answers
    assert (b'"found":"headers that have not ended"' in found) == (b"408" in answers)


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_request_that_has_begun_may_take_longer_than_its_headers(
    earlier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has come together with an earlier one."""
    monkeypatch.setattr(server, "_HEADER_SECONDS", 0.05)
    sent = earlier * KEPT + ASKED.replace(b"/health", b"/slow")
    assert asyncio.run(_answer(sent)).count(b"HTTP/1.1 200") == 1 + earlier


def test_the_rest_of_a_body_that_was_answered_may_take_longer_than_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a 413: a client that sends all of it before it reads found the connection reset, and no answer."""
    monkeypatch.setattr(server, "_HEADER_SECONDS", 0.1)
    found = asyncio.run(_answer(LONG, later=[*[b"xxxx"] * 9, b"xxxx" + ASKED]))
    assert found.count(b"HTTP/1.1 200") == 2


def test_the_rest_of_a_body_that_was_answered_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REST_SECONDS", 0.1)
    began = time.monotonic()
    assert asyncio.run(_answer(LONG)).count(b"HTTP/1.1 200") == 1
    assert time.monotonic() - began < 4, "uvicorn waits 5 s after each byte"


def test_a_client_that_never_reads_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(1 << 24)})

    async def cut_off() -> None:
        lost = asyncio.Event()

        class Noted(Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                lost.set()

        process = uvicorn.Server(uvicorn.Config(large, http=Noted, ws="none", lifespan="off", log_level="critical"))
        listener = Address(port=0).bound()
        running = asyncio.create_task(process.serve(sockets=[listener]))
        while not process.started:
            await asyncio.sleep(0.01)
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(lost.wait(), 20)
        process.should_exit = True
        await running

    monkeypatch.setattr(server, "_UNREAD_SECONDS", 0.05)
    asyncio.run(cut_off())


def test_an_offer_of_another_protocol_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """Java's client offers HTTP/2 at each request; the log asked to install a library of websockets."""
    offer = ASKED.replace(b"Connection: close", b"Connection: Upgrade, close\r\nUpgrade: h2c")
    assert asyncio.run(_answer(offer, 2, "warning")).startswith(b"HTTP/1.1 200")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("limits", "files", "connections"),
    [
        ((1024, 4096), 2080, 1040),
        ((1024, 1024), 1024, 512),
        ((1024, resource.RLIM_INFINITY), 2080, 1040),
        ((20_000, 20_000), 20_000, 1040),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), resource.RLIM_INFINITY, 1040),
    ],
)
def test_connections_leave_half_of_the_open_files_that_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], files: int, connections: int
) -> None:
    """With 1,024, the usual limit, the 1,040 connections used up all files: clients got no 503, and a swap failed."""
    now = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda _: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, asked: now.append(asked))
    assert (_connections(1040), now[-1]) == (connections, (files, limits[1]))


def test_a_limit_of_open_files_that_cannot_be_raised_bounds_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert _connections(1040) == 128
