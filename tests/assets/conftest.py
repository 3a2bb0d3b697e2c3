"""One MLflow on sqlite for the session, in which each test has its own registered model."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlflow
import pytest

from assets.release import registry
from assets.release.registry import Candidate, Released
from assets.tracking import connect
from tests.cli.conftest import fresh as fresh
from tests.cli.conftest import own as own
from tests.cli.conftest import ready as ready
from tests.cli.conftest import xc as xc
from xc_core.chain import Workspace
from xc_core.infer.bundle import Model

_numbers = itertools.count()
Evaluate = Callable[[Path], dict[str, float]]


@dataclass(frozen=True)
class Store:
    """A tracking store: its places, and a client of it."""

    uri: str
    artifacts: str
    lock: Path
    client: Any


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The database; creating it takes seconds."""
    root = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{root / 'mlflow.db'}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's migrations warn of their own future
        return Store(uri, (root / "artifacts").as_uri(), root / "lock", connect(uri, root / "lock"))


@pytest.fixture
def store(opened: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The session's store, as the environment names it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", opened.uri)
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", opened.artifacts)
    mlflow.set_tracking_uri(opened.uri)
    return opened


@dataclass(frozen=True)
class Registry:
    """A registered model without files: versions are cheap, aliases and the gate are real."""

    client: Any
    dataset: str
    folder: Path
    tests: dict[int, str] = field(default_factory=dict)
    """Digest of the test documents that each version was evaluated on."""

    @property
    def name(self) -> str:
        return registry.model_name(self.dataset)

    @staticmethod
    def digest(number: int) -> str:
        """Return the digest of the model that is version ``number``."""
        return f"digest of {number}"

    def version(self, precision: float | None, test: str = "t1") -> int:
        """Register one more version whose P@5 on the test documents ``test`` is ``precision``."""
        if not self.tests:
            self.client.create_registered_model(self.name)
        number = int(self.client.create_model_version(self.name, str(self.folder)).version)
        (self.folder / str(number)).mkdir(parents=True)  # a version without files would be registered again
        metrics = {} if precision is None else {"P_at_5": precision}
        for key, value in {"bundle": self.digest(number), "metrics": json.dumps(metrics), "test": test}.items():
            self.client.set_model_version_tag(self.name, str(number), key, value)
        self.tests[number] = test
        return number

    def release(
        self, number: int, precision: float, max_drop: float = 1.0, evaluate: Evaluate | None = None
    ) -> Released:
        """Release version ``number`` with this P@5, as the asset model does."""
        digest, metrics = self.digest(number), {"P_at_5": precision}
        candidate = Candidate(
            self.dataset, "ngame", self.folder, digest, self.tests[number], metrics, max_drop, {}, evaluate
        )
        return registry.register(self.client, "", candidate)

    def aliases(self) -> dict[str, int]:
        names = (registry.CHAMPION, registry.CHALLENGER, registry.PREVIOUS)
        found = {name: registry.version_of(self.client, self.name, name) for name in names}
        return {name: int(version.version) for name, version in found.items() if version is not None}


@pytest.fixture
def versions(store: Store, tmp_path: Path) -> Registry:
    return Registry(store.client, f"d{next(_numbers)}", tmp_path / "versions")


@pytest.fixture(scope="session")
def released(opened: Store, trained: Workspace) -> Released:
    """The toy model, registered with its files as xc-toy: the first one, therefore champion."""
    model = Model.open(trained.folder("model", "toy", "ngame"))
    mlflow.set_tracking_uri(opened.uri)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        candidate = Candidate.of(model, {"dagster_run": "r1", "git": "abc"})
        return registry.register(opened.client, opened.artifacts, candidate)


Fail = Callable[..., Any]


def failing(error: Exception) -> Fail:
    """Return a function that raises ``error`` for any arguments."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail
