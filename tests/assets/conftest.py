"""One MLflow on sqlite for the session, in which each test has its own registered model."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlflow
import pytest

from assets.forked import Forked
from assets.release import aliases, registry
from assets.release import versions as released_versions
from assets.release.candidate import candidate
from assets.release.gate import Line, Verdict
from assets.release.registry import Candidate, Released
from assets.release.versions import download, model_name
from assets.tracking import connect
from tests import stores
from tests.cli.conftest import fresh as fresh
from tests.cli.conftest import own as own
from tests.cli.conftest import ready as ready
from tests.cli.conftest import xc as xc
from xc_core.chain import Workspace

stores.install()
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def nothing_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test start DVC as the first stages of a run do, whatever another test has forked."""
    monkeypatch.setattr(Forked, "was_started", False)


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
    """A registered model without files: versions are cheap, aliases are real, and the gate says what it is told."""

    client: Any
    dataset: str
    folder: Path
    digests: dict[int, str] = field(default_factory=dict)
    asked: list[int | None] = field(default_factory=list)
    """The version of each champion that a model was compared with."""
    meanwhile: list[int] = field(default_factory=list)
    """Versions that become champion while the gate judges, one at each judgement."""
    before: list[int] = field(default_factory=list)
    """Versions that become champion before the lock of the champion is taken, one each time."""

    @property
    def name(self) -> str:
        return model_name(self.dataset)

    def version(self) -> int:
        """Register one more version."""
        if not self.digests:
            self.client.create_registered_model(self.name)
        number = int(self.client.create_model_version(self.name, str(self.folder)).version)
        self.digests[number] = f"digest of {number}"
        self.client.set_model_version_tag(self.name, str(number), "bundle", self.digests[number])
        return number

    def release(self, number: int, passes: bool = True, auto: bool = True) -> Released:
        """Release version ``number``, which the gate lets pass or not."""
        return registry.register(self.client, "", self.candidate(number, passes, auto))

    def candidate(self, number: int, passes: bool = True, auto: bool = True) -> Candidate:
        """Return version ``number`` as a candidate, which the gate lets pass or not."""
        line = Line("P@5", passes, "39.00 against 40.00", "at most 1 point less")

        def judge(_: Any, champion: Any | None) -> Verdict:
            self.asked.append(None if champion is None else int(champion.version))
            if self.meanwhile:
                aliases.set_champion(self.client, self.name, self.meanwhile.pop(0))
            return Verdict((line,), "40 documents")

        @contextmanager
        def moving() -> Iterator[None]:
            if self.before:
                aliases.set_champion(self.client, self.name, self.before.pop(0))
            yield

        digest = self.digests[number]
        return Candidate(self.dataset, "ngame", self.folder, digest, judge, auto=auto, moving=moving)

    def aliases(self) -> dict[str, int]:
        names = (aliases.CHAMPION, aliases.CHALLENGER, aliases.PREVIOUS)
        found = {name: aliases.version_of(self.client, self.name, name) for name in names}
        return {name: int(version.version) for name, version in found.items() if version is not None}


@pytest.fixture
def versions(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    found, opens, folder = released_versions.own_folder, released_versions.check_opens, str(tmp_path / "versions")
    monkeypatch.setattr(
        registry, "own_folder", lambda version, root: folder if version.source == folder else found(version, root)
    )
    for module in (aliases, released_versions):
        monkeypatch.setattr(module, "check_opens", lambda version: version.source == folder or opens(version))
    return Registry(store.client, f"d{next(_numbers)}", tmp_path / "versions")


FIRST: list[Any] = []
"""The version of ``released`` as it was registered: later tests promote it by hand, which changes its page."""


@pytest.fixture(scope="session")
def releasing(trained: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A copy of the trained toy project, for all tests that release its model: a release draws an acceptance set."""
    root = tmp_path_factory.mktemp("releasing") / "project"
    return Workspace(Path(shutil.copytree(trained.root, root)))


@pytest.fixture(scope="session")
def released(opened: Store, releasing: Workspace) -> Released:
    """The toy model, registered with its files as xc-toy: the first one, therefore champion."""
    mlflow.set_tracking_uri(opened.uri)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = registry.register(opened.client, opened.artifacts, candidate(releasing, "toy", "ngame", "r1"))
    FIRST.append(opened.client.get_model_version("xc-toy", str(found.version)))
    return found


def champion_files(store: Store, dataset: str) -> Path:
    """Return the folder with the packed model of a champion."""
    champion = aliases.version_of(store.client, model_name(dataset), aliases.CHAMPION)
    assert champion is not None
    return download(champion)


Fail = Callable[..., Any]


def failing(error: Exception) -> Fail:
    """Return a function that raises ``error`` for any arguments."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.fixture
def project(releasing: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The project that ``released`` is from, with the MLflow of the session."""
    monkeypatch.setenv("XC_ROOT", str(releasing.root))
    return releasing
