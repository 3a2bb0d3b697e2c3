"""The server's limits: bodies, time, requests at once, the queue; and the headers of every response."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

import pytest

from tests.serve.conftest import Running, Start
from xc_core.ann.both import TOGETHER
from xc_core.errors import ConfigError
from xc_core.infer.explained import Question
from xc_core.serve.batcher import Answers, Batcher
from xc_core.serve.batcher import answer as real
from xc_core.serve.guard import PATHS, Guard
from xc_core.serve.limits import Limits
from xc_core.serve.meters import Meters
from xc_core.serve.models import Served

JSON = {"Content-Type": "application/json"}


def slow(running: Running, gate: threading.Event) -> threading.Event:
    """Let each pass wait for ``gate``; return what is set once a pass has begun."""
    begun = threading.Event()

    def work(served: Served, questions: list[Question]) -> list[Answers]:
        begun.set()
        gate.wait(20)
        return real(served, questions)

    running.server.batcher.stop()
    running.server.batcher = Batcher(running.server.limits, work)
    return begun


def test_a_body_above_the_limit_is_refused_with_and_without_a_length(start: Start) -> None:
    running = start(body_bytes=1000)
    body = b'{"text": "' + b"x" * 1000 + b'"}'
    declared = running.client.post("/predict", content=body, headers=JSON)
    streamed = running.client.post("/predict", content=iter([body[:600], body[600:]]), headers=JSON)
    for response in (declared, streamed):
        assert (response.status_code, response.json()["found"]) == (413, "a body that is too large")
    assert running.ask(text="x" * 900)


def test_a_full_queue_and_a_late_answer_are_503_with_a_time_to_try_again(start: Start) -> None:
    running, gate = start(queue=1, seconds=0.5), threading.Event()
    slow(running, gate)
    statuses: list[tuple[int, str, str]] = []

    def ask() -> None:
        response = running.client.post("/predict", json={"text": "falcon"})
        statuses.append((response.status_code, response.json()["found"], response.headers["Retry-After"]))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(set(statuses)) == [(503, "a full queue", "1"), (503, "no answer after 0.5 s", "1")]
    gate.set()
    assert running.ask(text="falcon")


def test_too_many_requests_at_once_are_refused(start: Start) -> None:
    running, gate = start(requests=1), threading.Event()
    begun = slow(running, gate)
    first = threading.Thread(target=lambda: running.ask(text="falcon"))
    first.start()
    assert begun.wait(20)
    assert running.metric("xc_requests_in_flight") == 2, "the first, and this one"
    response = running.client.post("/predict", json={"text": "falcon"})
    assert (response.status_code, response.json()["found"]) == (503, "1 request at once")
    assert running.client.get("/health").status_code == 200, "a probe is answered"
    gate.set()
    first.join(20)


def test_a_body_that_never_ends_is_given_up(running: Running) -> None:
    async def stuck() -> Any:
        await asyncio.sleep(60)

    assert _called(running, stuck, Limits(seconds=0.05)) == [408]


def test_a_client_that_goes_away_gets_no_answer(running: Running) -> None:
    async def gone() -> Any:
        return {"type": "http.disconnect"}

    assert _called(running, gone, Limits()) == []


@pytest.mark.parametrize("length", [b"\xb2", b"9" * 5000, b"-1", b"1_0", b""])
def test_a_length_that_is_no_number_or_a_huge_one_is_no_fault(running: Running, length: bytes) -> None:
    """Python takes the superscript two for a digit, and reads no number of more than 4,300 digits."""

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    expected = [413] if length.startswith(b"9") else []
    assert _called(running, gone, Limits(), (b"content-length", length)) == expected


@pytest.mark.parametrize(
    ("target", "path"),
    [("/predict", "/predict"), ("http://localhost/predict", "/predict"), ("https://a:8080/", "/"), ("http://a", "/"),
     ("http://[/health", "/health"), ("http://a/b/http://c", "/b/http://c"), ("", ""), ("*", "*")],
)  # fmt: skip
def test_a_whole_address_is_taken_for_its_path(target: str, path: str) -> None:
    seen: list[str] = []

    async def app(scope: Any, *_: Any) -> None:
        seen.append(scope["path"])

    async def nothing(*_: Any) -> Any:
        return None

    scope = {"type": "http", "method": "GET", "path": target, "headers": [(b"host", b"localhost")]}
    asyncio.run(Guard(app, Limits(), Meters(), ["localhost"])(scope, nothing, nothing))
    assert seen == [path]


def test_a_request_that_is_cancelled_after_its_answer_began_gets_no_second_one() -> None:
    sent: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def cancelled() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
        task = asyncio.create_task(guard(scope, lambda: asyncio.sleep(60, {}), send))
        await asyncio.sleep(0)
        task.cancel()
        await task

    guard = Guard(app, Limits(), Meters(), None)
    asyncio.run(cancelled())
    assert (sent, guard.dropped) == (["http.response.start"], 1)


@pytest.mark.parametrize("path", ["/predict", "/predict/", "/health", "/nowhere"])
def test_a_query_that_is_no_text_is_refused(running: Running, path: str) -> None:
    """Found by fuzzing: a redirection decodes it."""
    sent: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            sent.append(message["status"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"testserver")],
             "query_string": b"a=\xe2\xde", "scheme": "http", "server": ("testserver", 80)}  # fmt: skip
    asyncio.run(running.client.app(scope, receive, send))
    assert sent == [400]


def _called(running: Running, receive: Callable[[], Any], limits: Limits, *headers: tuple[bytes, bytes]) -> list[int]:
    """Return the statuses that a request with this body gets."""
    sent: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            sent.append(message["status"])

    async def never(*_: Any) -> None:
        raise AssertionError("the request was passed on")

    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [(b"host", b"testserver"), *headers]}
    guard = Guard(never, limits, Meters(), None)
    asyncio.run(guard(scope, receive, send))
    return sent


def test_a_fault_is_reported_as_one(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("odd")

    monkeypatch.setattr("xc_core.serve.app.question", fail)
    response = running.client.post("/predict", json={"text": "a"})
    assert (response.status_code, response.json()["found"]) == (500, "a fault of xc serve")
    assert "odd" not in response.text


@pytest.mark.parametrize("path", ["/", "/docs", "/ready", "/nowhere"])
def test_every_response_has_the_headers(running: Running, path: str) -> None:
    headers = running.client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_the_openapi_document_and_its_page_describe_every_path(running: Running) -> None:
    document = running.client.get("/openapi.json").json()
    assert set(document["paths"]) == {"/predict", "/health", "/ready", "/metrics", "/", "/docs"}
    asked = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(asked["properties"]) == {"text", "texts", "k", "tail", "min_probability", "exclude", "only", "why"}
    statuses = document["paths"]["/predict"]["post"]["responses"]
    assert set(statuses) == {"200", "408", "413", "415", "421", "422", "503"}, "those of docs/serving.md for a question"
    for path, methods in document["paths"].items():
        assert all(operation.get("summary") for operation in methods.values()), path
    plain = {"uid", "title", "dataset", "recipe", "model", "answers", "found", "expected", "do"}
    for name, schema in document["components"]["schemas"].items():
        missing = {field for field, content in schema["properties"].items() if not content.get("description")}
        assert missing <= plain, f"{name}: fields without a description"
    page = running.client.get("/docs").text
    for word in ("POST /predict", "GET /ready", "exclude", "Labels per text.", "100,000 characters"):
        assert word in page


@pytest.mark.parametrize(("path", "links"), [("", 3), ("docs", 2)])
def test_every_link_works_behind_a_proxy_that_puts_a_path_before_the_server(
    running: Running, path: str, links: int
) -> None:
    public = "https://example.org/labels/"
    (server,) = running.client.get("/openapi.json").json()["servers"]
    assert urljoin(f"{public}openapi.json", server["url"]) == public
    found = re.findall(r'(?:<a href=|fetch\()"([^"]*)"', running.client.get(f"/{path}").text)
    assert len(found) == links
    for link in found:
        target = urljoin(f"{public}{path}", link)
        assert target.startswith(public)
        assert target.removeprefix(public) in {name.removeprefix("/") for name in PATHS}


@pytest.mark.parametrize(("limit", "expected"), [(100, "1 to 10 (the model has 10 labels)"),
                                                 (4, "1 to 4 (the server's limit)")])  # fmt: skip
def test_k_is_bounded_by_the_model_or_by_the_server_and_the_answer_says_which(
    start: Start, limit: int, expected: str
) -> None:
    running, most = start(k=limit), min(limit, 10)
    assert running.refused(422, f"k {most + 1}", text="castle0", k=most + 1)["expected"] == expected
    assert 4 <= len(running.ask(text="castle0", k=most)["answers"][0]) <= most


@pytest.mark.parametrize("limits", [{"texts": 0}, {"seconds": 0.0}, {"queue": -1}, {"max_wait_ms": -1.0},
                                    {"seconds": float("nan")}])  # fmt: skip
def test_a_limit_out_of_range_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Limits(**limits)


def test_texts_that_share_a_pass_are_searched_alike() -> None:
    """A search answers up to this many queries in one way; if more shared a pass, an answer would depend on them."""
    assert Limits().max_batch == TOGETHER
