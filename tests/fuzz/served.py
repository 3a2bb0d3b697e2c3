"""The server as a boundary: whole HTTP requests, given to the ASGI application or sent through a socket on loopback.

A request is answered with 200 and an answer that keeps the rules, or refused with a status below 500 and the three
parts of a message. Anything else is a failure, and the server has to answer the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import uvicorn

from tests.conftest import make_workspace
from tests.fuzz import mutate
from xc_core.chain import STAGES, run_stage
from xc_core.errors import UsageError
from xc_core.infer.champion import Champion, in_folder
from xc_core.serve.app import make_app, make_server
from xc_core.serve.guard import Guard
from xc_core.serve.limits import Limits
from xc_core.serve.meters import Meters
from xc_core.serve.models import Models
from xc_core.serve.server import Address, _config

MODEL_STAGES = tuple(name for name in STAGES if name not in ("audit", "leaderboard"))
LIMITS = Limits(max_wait_ms=0.0, body_bytes=1 << 15, texts=4, text_chars=2000, filter_labels=8, seconds=5.0)
BODIES = (
    b'{"text": "falcon0 castle1", "k": 2, "tail": 0, "exclude": ["L1"], "only": ["L0", "L2"], "why": true}',
    b'{"texts": ["river1", "falcon0 engine2"], "k": 3, "why": false}',
)
HEAD = b"%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s\r\n"
SEEDS = (
    *(HEAD % (b"POST /predict", b"Connection: close\r\nContent-Length: %d\r\n" % len(body)) + body for body in BODIES),
    *(HEAD % (b"GET " + path, b"Connection: close\r\n") for path in (b"/", b"/ready", b"/metrics", b"/openapi.json")),
)
SILENCE_SECONDS = 0.2
"""How long a client waits for the answer to a request that may not have ended."""
PLACES = (
    b"Host: \xff", b"Host: [", b"Host: evil.example", b"Content-Length: 99999999999999999999", b"Content-Length: \xb2",
    b"Content-Length: " + b"9" * 5000, b"Content-Length: -1", b"Transfer-Encoding: chunked", b"Expect: 100-continue",
    b"Content-Type: text/plain", b"Content-Type: application/json;charset=\xff", b"X: " + b"y" * 70000, b"Upgrade: h2c",
    b"Connection: keep-alive",
)  # fmt: skip
METHODS = (b"GET", b"PUT", b"HEAD", b"OPTIONS", b"CONNECT", b"TRACE", b"post", b"x" * 3000, b"")
PATHS = (
    b"/predict/",
    b"//",
    b"/%00",
    b"/..%2f",
    b"/predict?k=1",
    b"*",
    b"http://evil.example/predict",
    b"/\xff",
    b"/docs",
)


class RefusedError(UsageError):
    """The server refused a request; ``place`` says where, so that cases which reach a new one become seeds."""

    def __init__(self, status: int, content: dict[str, str]) -> None:
        super().__init__(content["found"], expected=content["expected"], do=content["do"])
        self.place = f"{status} {re.sub('[0-9]+', '0', content['expected'])[:40]} {content['do'][:20]}"


@dataclass
class Answer:
    """A response."""

    status: int = 0
    kind: str = ""
    body: bytes = b""


@dataclass(frozen=True)
class Client:
    """Both ways to the same server."""

    app: Guard
    port: int
    labels: frozenset[str]
    runner: asyncio.Runner = field(repr=False)

    def by_asgi(self, data: bytes) -> None:
        """Give a request to the application, its body in two pieces."""
        scope, body = _scope(data)
        answer, pieces = Answer(), [body[: len(body) // 2], body[len(body) // 2 :]]

        async def receive() -> dict[str, Any]:
            piece = pieces.pop(0) if pieces else b""
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.kind = dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
            answer.body += message.get("body", b"")

        self.runner.run(self.app(scope, receive, send))
        check(answer, body, self.labels)

    def by_socket(self, data: bytes) -> None:
        """Send a request through a socket. It may be no HTTP at all; then the HTTP library refuses it."""
        received = _exchanged(self.port, data)
        if b"Invalid HTTP request received" in received:
            raise RefusedError(400, {"found": "no HTTP", "expected": "HTTP", "do": "send HTTP"})
        if not received:  # the request has not ended, and its connection was closed
            raise RefusedError(0, {"found": "half a request", "expected": "the rest", "do": "send it"})
        assert received.startswith(b"HTTP/1.1 "), received[:80]
        assert not received.startswith(b"HTTP/1.1 5") or b" 503 " in received[:20], received[:300]
        health = _exchanged(self.port, HEAD % (b"GET /health", b"Connection: close\r\n"), seconds=5)
        assert health.startswith(b"HTTP/1.1 200"), "the server does not answer any more"
        if received.startswith(b"HTTP/1.1 4"):
            raise RefusedError(int(received[9:12]), {"found": "a request", "expected": "another", "do": "fix it"})


def check(answer: Answer, body: bytes, labels: frozenset[str]) -> None:
    """Raise RefusedError for a refusal with a message, AssertionError for a response that breaks a rule."""
    assert answer.status, "no response"
    assert answer.status < 500 or answer.status == 503, f"{answer.status}: {answer.body[:200]!r}"
    if answer.status >= 400:
        content = json.loads(answer.body)
        assert set(content) == {"found", "expected", "do"} and all(content.values()), content
        assert len(answer.body) < 2000, f"a message of {len(answer.body)} bytes"
        raise RefusedError(answer.status, content)
    if answer.kind == "application/json" and answer.body.startswith(b'{"model":'):
        _check_labels(json.loads(answer.body, parse_constant=_no_number), json.loads(body), labels)


def _no_number(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def _check_labels(content: dict[str, Any], asked: dict[str, Any], labels: frozenset[str]) -> None:
    texts = asked["texts"] if asked.get("texts") is not None else [asked["text"]]
    assert len(content["answers"]) == len(texts)
    allowed = labels - set(asked.get("exclude", []))
    allowed &= labels if asked.get("only") is None else set(asked["only"])
    for answer in content["answers"]:
        uids = [label["uid"] for label in answer]
        assert len(set(uids)) == len(uids) <= asked.get("k", 5) and allowed.issuperset(uids), uids
        scores = [label["score"] for label in answer]
        assert scores == sorted(scores, reverse=True) and all(map(math.isfinite, scores)), scores


def _scope(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the ASGI scope and the body of a request, however odd; an HTTP library would refuse some of them."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    method, path = [*first.split(b" "), b"/"][:2]
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    path, _, query = path.partition(b"?")
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
        "method": method.decode("latin-1").upper(), "path": path.decode("utf-8", "replace"), "raw_path": path,
        "query_string": query, "headers": headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80),
    }, body  # fmt: skip


def _exchanged(port: int, data: bytes, seconds: float = SILENCE_SECONDS) -> bytes:
    """Send bytes and return what comes back, until the server closes or says nothing more."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.settimeout(seconds)
        while piece := connection.recv(1 << 16):
            received += piece
    return received


def request_changed(data: bytes, random: Random) -> bytes:
    """Change the JSON of a request and its length, its method, path or headers, or any bytes."""
    head, gap, body = data.partition(b"\r\n\r\n")
    choice = random.random()
    if choice < 0.5 and body:
        new = mutate.document_changed(body, random)
        right = re.sub(rb"(?i)(content-length: *)[0-9]+", lambda found: found[1] + b"%d" % len(new), head)
        return right + gap + new
    lines = head.split(b"\r\n")
    if choice < 0.7:
        lines[random.randrange(len(lines))] = random.choice(PLACES)
    elif choice < 0.85:
        method, _, rest = lines[0].partition(b" ")
        path, _, version = rest.partition(b" ")
        method, path = random.choice(((random.choice(METHODS), path), (method, random.choice(PATHS))))
        lines[0] = b" ".join((method, path, version))
    else:
        return mutate.bytes_changed(data, random)
    return b"\r\n".join(lines) + gap + body


def _model(root: Path) -> Path:
    """Train the toy model; it takes some seconds."""
    workspace = make_workspace(root)
    for stage in MODEL_STAGES:
        run_stage(workspace, stage, "toy", "ngame")
    return workspace.folder("model", "toy", "ngame")


@contextlib.contextmanager
def client(root: Path, model: Path | None = None) -> Iterator[Client]:
    """Serve a packed model, by default one that is trained under ``root``."""
    folder = model or _model(root / "served")

    def source() -> Champion:
        return in_folder(folder)

    meters = Meters()
    server = make_server(Models(source, meters.watch()), LIMITS, meters)
    app = make_app(server, Address().names(), 3600.0)
    config = _config(app, LIMITS)
    config.log_level = "critical"
    listener = Address(port=0).bound()
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    with asyncio.Runner() as runner:
        yield Client(app, listener.getsockname()[1], frozenset(server.models.current.ids), runner)
    running.should_exit = True
    thread.join(20)


def boundaries(client: Client) -> list[tuple[str, Callable[[bytes], None], int]]:
    """Return name, function and weight of both."""
    return [("HTTP requests", client.by_asgi, 25), ("HTTP over a socket", client.by_socket, 2)]
