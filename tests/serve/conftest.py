"""The toy model behind a server: in this process, through a client of the ASGI application."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from xc_core.artifacts import MADE, building
from xc_core.chain import Workspace
from xc_core.fusion.dial import Dial
from xc_core.infer.bundle import open_predictor
from xc_core.infer.champion import Champion, in_folder
from xc_core.infer.predictor import Predictor
from xc_core.manifests import MANIFEST
from xc_core.serve.app import Server, make_app, make_server
from xc_core.serve.limits import Limits
from xc_core.serve.meters import Meters
from xc_core.serve.models import Models

HOSTS = ("testserver",)


@dataclass
class Source:
    """A registry whose champion a test sets."""

    folder: Path
    version: str = "1"
    error: Exception | None = None
    asked: int = field(default=0)

    def __call__(self) -> Champion:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return replace(in_folder(self.folder), version=self.version)


@dataclass
class Running:
    """A server and a client of it."""

    client: TestClient
    server: Server
    source: Source

    def ask(self, **question: Any) -> Any:
        """Return the JSON of an answer; fail unless its status is 200."""
        response = self.client.post("/predict", json=question)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, status: int, found: str, **question: Any) -> dict[str, str]:
        """Fail unless the question is refused with ``status`` and ``found``, and says what to do."""
        response = self.client.post("/predict", json=question)
        content: dict[str, str] = response.json()
        assert (response.status_code, content["found"]) == (status, found)
        assert set(content) == {"found", "expected", "do"} and all(content.values())
        return content

    def metric(self, line: str) -> float:
        """Return the value of a metric."""
        found = [one for one in self.client.get("/metrics").text.splitlines() if one.startswith(f"{line} ")]
        assert len(found) == 1, f"{line}: {found}"
        return float(found[0].rsplit(" ", 1)[1])


@pytest.fixture
def folder(trained: Workspace) -> Path:
    """The packed toy model; tests only read it."""
    return trained.folder("model", "toy", "ngame")


@pytest.fixture
def own_folder(folder: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(folder, tmp_path / "bundle"))


def repacked(source: Path, change: Callable[[Path], None], target: Path | None = None) -> Path:
    """Pack the files of a model again after ``change``, with a manifest that fits them; by default in its place."""
    target = target or source
    with building(target, kind="model") as build:
        shutil.copytree(source, build.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST, MADE))
        change(build.path)
    return target


Start = Callable[..., Running]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Start a server with limits; it polls only when a test says so."""
    clients: list[TestClient] = []

    def run(source: Source | None = None, **limits: Any) -> Running:
        source, meters = source or Source(folder), Meters()
        server = make_server(Models(source, meters.watch()), Limits(**limits), meters)
        clients.append(TestClient(make_app(server, HOSTS, 3600.0), raise_server_exceptions=False))
        clients[-1].__enter__()
        return Running(clients[-1], server, source)

    yield run
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def running(start: Start) -> Running:
    """A server with the default limits."""
    return start()


@pytest.fixture(scope="session")
def dialled(trained: Workspace) -> Predictor:
    """The toy model with a dial that prefers labels with higher ids."""
    predictor = open_predictor(trained.folder("model", "toy", "ngame"))
    curve = np.linspace(-5.0, 5.0, 11)
    fusion = replace(predictor.ranker.fusion, dial=Dial(curve, curve, np.arange(10, dtype=np.float32) / 10))
    return replace(predictor, ranker=replace(predictor.ranker, fusion=fusion))
