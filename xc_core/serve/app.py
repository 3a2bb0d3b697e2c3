"""The web application: its paths, and how a question gets its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse

from xc_core import __version__
from xc_core.errors import UsageError, bare, preview
from xc_core.infer.predictor import asked_labels, first
from xc_core.serve.batcher import Answers, Batcher, QueueFullError
from xc_core.serve.guard import PATHS, Guard, busy, problem
from xc_core.serve.limits import Limits
from xc_core.serve.meters import Meters
from xc_core.serve.models import Models, Served
from xc_core.serve.pages import HtmlPage, described, home
from xc_core.serve.questions import PredictRequest, TooLargeError, parsed, question
from xc_core.serve.replies import Problem, Reply, reply

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Server:
    """What the paths of a server share."""

    models: Models
    limits: Limits
    meters: Meters
    batcher: Batcher
    draining: bool = False
    """True once the server ends: it answers what has come, and is not ready for more."""
    hurried: bool = False
    """True once it has to end without waiting for its threads."""

    async def answered(self, body: bytes) -> Response:
        """Return the answer to the question in ``body``; all of it is from the model that is current now."""
        served = self.models.current
        try:
            request = parsed(body)
            labels, cut = await self._labels(served, request)
            self.meters.answered(labels)
        except UsageError as error:
            status = 413 if isinstance(error, TooLargeError) else 422
            return problem(status, error.found, error.expected, error.do)
        except QueueFullError:
            return busy("a full queue", f"at most {self.limits.queue:,} texts that wait")
        except (TimeoutError, asyncio.CancelledError):
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            return busy(f"no answer after {self.limits.seconds:g} s", "an answer in that time")
        content = await asyncio.to_thread(reply, served, request.tail, labels, cut, request.why)
        return Response(content, media_type="application/json")

    async def _labels(self, served: Served, request: PredictRequest) -> tuple[Answers, list[int]]:
        """Return the labels of each text, and the places of texts with more labels above the least probability."""
        asked = question(request, served, self.limits)
        enough = asked_labels(asked.k, asked.min_probability)
        futures = self.batcher.submit(served, replace(asked, k=enough), self.limits.seconds)
        async with asyncio.timeout(self.limits.seconds):
            parts = await asyncio.gather(*map(asyncio.wrap_future, futures))
        return first([labels for part in parts for labels in part], asked.k)

    def ready(self) -> tuple[int, dict[str, Any]]:
        """Return the status and the content of /ready."""
        refusal = self.models.refusal
        content = {
            "ready": not self.draining,
            "model": self.models.current.name,
            "dial": self.models.current.predictor.ranker.fusion.turns,
            "probabilities": self.models.current.has_dial,
            "refused": refusal and {"version": refusal.version, "reason": refusal.reason},
            "registry": self.models.source_error or "ok",
        }
        return 503 if self.draining else 200, content


def make_server(models: Models, limits: Limits, meters: Meters) -> Server:
    """Return a server of ``models``; its batcher runs."""
    return Server(models, limits, meters, Batcher(limits, passed=meters.passed))


def make_app(server: Server, hosts: Iterable[str] | None, poll_seconds: float) -> Guard:
    """Return the ASGI application; it polls for a new champion while it runs."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        server.models.start(poll_seconds)
        yield
        if server.hurried:
            return
        await asyncio.to_thread(server.models.stop)
        await asyncio.to_thread(server.batcher.stop)

    app = FastAPI(
        title="xc serve", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        redirect_slashes=False,  # /predict/ is an unknown path: a redirection has no words
        servers=[{"url": "."}],  # paths are beside the document, also behind a proxy that puts a prefix before them
        description="Labels for texts. Every error is JSON with `found`, `expected` and `do`.",
    )  # fmt: skip
    _add_predict(app, server)
    _add_state(app, server)
    _add_pages(app)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(Exception, _internal_error)
    return Guard(app, server.limits, server.meters, hosts)


def _add_predict(app: FastAPI, server: Server) -> None:
    limits = server.limits
    about = (
        f"Limits: {limits.texts:,} texts of {limits.text_chars:,} characters, {limits.body_bytes:,} bytes, "
        f"{limits.k} labels per text, {limits.filter_labels:,} labels in a filter, {limits.seconds:g} s."
    )
    schema = {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": PredictRequest.model_json_schema()}},
        }
    }
    errors = {408: "slow body", 413: "above a limit of size", 415: "no JSON, or compressed", 421: "unknown host name",
              422: "a wrong value", 503: "too much to do; see Retry-After"}  # fmt: skip
    responses: dict[int | str, dict[str, Any]] = {200: {"model": Reply, "description": "The labels of each text."}}
    responses |= {code: {"model": Problem, "description": text} for code, text in errors.items()}

    @app.post("/predict", summary="Return the labels of texts", description=about, openapi_extra=schema,
              responses=responses)  # fmt: skip
    async def predict(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            found = f"content type {bare(kind) if kind else 'none'}"
            return problem(415, found, "application/json", "send the header Content-Type: application/json")
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding != "identity":
            return problem(415, f"content encoding {bare(coding)}", "none", "send the body without compression")
        if request.url.query:
            found = f"the query {preview(f'?{request.url.query}')}"
            return problem(422, found, "parameters in the body, and no query", "move them into the JSON of the body")
        return await server.answered(await request.body())


def _add_state(app: FastAPI, server: Server) -> None:
    @app.get("/health", summary="Say that the process answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", summary="Say which model answers, and what is wrong with a newer one",
             responses={503: {"description": "The server ends."}})  # fmt: skip
    async def ready() -> JSONResponse:
        status, content = server.ready()
        return JSONResponse(content, status)

    @app.get("/metrics", summary="Metrics for Prometheus")
    async def metrics() -> Response:
        text = server.meters.text(server.batcher.waiting, server.models.refusal)
        return Response(text, media_type=_METRICS_TYPE)


def _add_pages(app: FastAPI) -> None:
    @app.get("/", summary="A page to try the model", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        return _html(home())

    @app.get("/docs", summary="This description as a page", response_class=HTMLResponse)
    async def docs() -> HTMLResponse:
        return _html(described(app.openapi()))


def _html(page: HtmlPage) -> HTMLResponse:
    return HTMLResponse(page.html, headers={"Content-Security-Policy": page.policy})


async def _not_found(request: Request, error: Exception) -> Response:
    """Answer a path or method that does not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    if status == 405:
        allowed = dict(getattr(error, "headers", None) or {})
        expected = f"the method {allowed.get('Allow', 'in /docs')}"
        do = "send the question as JSON in a POST; see /docs" if request.url.path == "/predict" else "see /docs"
        answer = problem(405, f"{bare(request.method)} {request.url.path}", expected, do)
        answer.headers.update(allowed)  # RFC 9110 asks for Allow
        return answer
    return problem(status, "an unknown path", f"one of {', '.join(PATHS)}", "fix the path; see /docs")


async def _internal_error(request: Request, error: Exception) -> Response:
    """Answer if something went wrong that should not; the server's log has the traceback."""
    return problem(500, "a fault of xc serve", "an answer", "look into the server's log; please report it")
