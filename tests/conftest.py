"""Fixtures: a toy world with a known answer, as files, as a workspace, as a trained chain, and as copies of it."""

from __future__ import annotations

import gc
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest

from tests import forks
from xc_core import artifacts, memory, progress
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import IngestConfig

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("XC_DEVICE", "cpu")  # digits are those of a CPU, on a machine with a GPU too
for address in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "XC_MLFLOW_ARTIFACTS"):
    os.environ.pop(address, None)  # tests wrote to the server of whoever ran them
os.environ["HF_HUB_OFFLINE"] = "1"  # a name is not looked for on the hub, which takes half a minute without a network
os.environ["DVC_NO_ANALYTICS"] = "true"  # each command would start another process, which sends a report
# a shell script ignores SIGINT in what it ends with &; Dagster then ignores SIGTERM too, and so do all its children
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# no test is about power cuts, and waiting for the disk leaves a core idle
os.fsync = lambda descriptor: None
# Python and its imports take seconds, most programs a tenth of one; the fixture ``starting`` starts them
subprocess.run = forks.forking
_ENTRY_POINTS: Final[Callable[[], Any]] = metadata.entry_points


@cache
def _installed(path: tuple[str, ...]) -> Any:
    return _ENTRY_POINTS()


# the files of hundreds of packages are read at each call, several times per command
metadata.entry_points = lambda **asked: _installed(tuple(sys.path)).select(**asked)

TOPICS = ("river", "castle", "engine", "violin", "glacier", "falcon", "orchard", "lantern", "harbour", "saddle")
"""Each topic is a label; a document about two topics names words of both and of nothing else."""


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file, gzipped where its name ends in .gz; the same lines are the same bytes."""
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def write_json(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    write_lines(path, map(json.dumps, rows))


CHAIN = ("tests/pipelines/test_chain.py", "tests/pipelines/test_authority.py")
"""Files of tests that share the fixture ``materialised``, which takes a minute: one worker runs them all."""
LONGEST = (*CHAIN, "tests/tune", "tests/train")
"""Tests that take minutes together. They start first, so that no worker is left with them at the end."""


MEMORY = Path("/dev/shm")
"""Files here are in memory (Linux)."""
ROOM = 1 << 30
"""Bytes that must be free for them; the default tests have 72 MB at a time, at most."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of the tests in memory if there is room, but not those of slow tests, which may be large.

    The databases of MLflow and Dagster wait for the disk at each commit: their tests take a quarter less time.
    """
    if "not slow" in config.option.markexpr and min(memory.free_bytes(), _free_bytes(MEMORY)) >= ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def _free_bytes(folder: Path) -> int:
    """Return how much a user may write into a folder; 0 if there is none."""
    try:
        return shutil.disk_usage(folder).free if os.access(folder, os.W_OK) else 0
    except OSError:
        return 0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search for no garbage while modules are imported and tests are made, and never among them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Set the environment back after each test: MLflow writes its address there, for all later tests of the worker."""
    before = dict(os.environ)
    try:
        return (yield)
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return CHAIN[0] if file in CHAIN else file

    return Files(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Register the fake card if a test that will run needs it: torch's autograd counts devices at its first use."""
    if not session.config.option.collectonly and any("fake_card" in item.fixturenames for item in session.items):  # type: ignore[attr-defined]
        _register_fake_card()


def _register_fake_card() -> bool:
    """Register the device of ``tests/card.py``; return False if there is a GPU.

    It stays torch's accelerator until the process ends, so with it no memory can be pinned for a GPU.
    """
    from tests.card import install
    from xc_core.devices import num_cards

    if num_cards():
        return False
    install()
    return True


@pytest.fixture(scope="session")
def fake_card() -> None:
    """Let a test use the device of ``tests/card.py``; skip it on a machine with a GPU."""
    if not _register_fake_card():
        pytest.skip("torch has one accelerator per process, and here it is a GPU")


@dataclass
class ToyWorld:
    """Documents made of the words of their labels: whoever learns anything answers right.

    A document has two labels, a and b, and the text "a1 b2 a3 ... n17": words that only these labels' documents have,
    and its number, so that no two texts are equal. A label's own text is its name and its first
    words, so label text alone finds it too.
    """

    train: list[dict[str, Any]] = field(default_factory=list)
    test: list[dict[str, Any]] = field(default_factory=list)
    labels: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def make(cls, documents: int = 240, tests: int = 40) -> ToyWorld:
        world = cls()
        world.labels = [{"uid": f"L{i}", "title": t, "content": f"{t}0 {t}1"} for i, t in enumerate(TOPICS)]
        for number in range(documents + tests):
            a, b = number % len(TOPICS), (number * 3 + 1 + number // len(TOPICS)) % len(TOPICS)
            targets = sorted({a, b})
            words = [f"{TOPICS[i]}{(number + j) % 4}" for j in range(3) for i in targets] + [f"n{number}"]
            row = {
                "uid": f"D{number:04}",
                "title": words[0],
                "content": " ".join(words[1:]),
                "target_ind": targets,
                "target_rel": [1.0] * len(targets),
            }
            (world.train if number < documents else world.test).append(row)
        return world

    def write(self, folder: Path) -> Path:
        """Write the world in the XC JSON layout, with filter files."""
        folder.mkdir(parents=True, exist_ok=True)
        for stem, rows in (("trn", self.train), ("tst", self.test), ("lbl", self.labels)):
            write_json(folder / f"{stem}.json.gz", rows)
        (folder / "filter_labels_train.txt").write_text("", "utf-8")
        (folder / "filter_labels_test.txt").write_text("", "utf-8")
        return folder


@pytest.fixture(autouse=True)
def no_earlier_instance() -> None:
    """Forget the Dagster instance of an earlier test.

    Dagster remembers the last instance that was opened. If an instance is closed late, by the garbage collector, it
    remembers one that is gone, and definitions that are built without an instance fail.
    """
    if state := sys.modules.get("dagster._core.storage.defs_state.base"):
        state._current_storage.set(None)


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all programs be started as users start them, none be forked."""
    monkeypatch.setattr(subprocess, "run", forks.STARTED)


WITHOUT_PICTURES = tuple(
    f"tests/{folder}/" for folder in ("chain", "cli", "lifecycle", "planning", "recipes", "stages", "tune")
)
"""Folders of tests that run chains and read no picture: to render pictures takes a third of the time of a chain."""
WITH_PICTURES = ("same_bytes", "packed_before_the_last_evaluation")
"""Parts of the names of tests that need them: those that compare artefacts with the ones of ``trained``."""


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the folders ``WITHOUT_PICTURES`` write empty pictures, but not the tests ``WITH_PICTURES``.

    All that a plot shows is still computed, and the fixture ``trained`` has pictures.
    """
    name = request.node.nodeid
    if name.startswith(WITHOUT_PICTURES) and not any(part in name for part in WITH_PICTURES):
        from xc_core.metrics import plots

        monkeypatch.setattr(plots, "_save", lambda figure, path: path.write_bytes(b""))


@pytest.fixture
def toy() -> ToyWorld:
    return ToyWorld.make()


TOY_CHANGES: dict[str, Any] = {
    "encoder": {
        "encoder": {"name": "bag", "width": 32, "max_length": 16},
        "order": {"batch_size": 32},
        "optim": {"lr": 0.02},
        "epochs": 4.0,
    },
    "classifier": {"order": {"batch_size": 32}, "epochs": 6.0, "table": {"lr": 0.02}},
    "clusters": {"size": 4},
    "audit": {"sample": 50, "k": 4},
    "fusion": {"candidates": 6},
    "evaluation": {"latency_queries": 3},
}
"""The recipe ngame, small enough to train in a second on the toy world."""


def make_workspace(root: Path, world: ToyWorld | None = None) -> Workspace:
    """Return a workspace at ``root`` with the dataset ``toy`` (raw files only) and the experiment toy/ngame."""
    workspace = Workspace(root)
    artifacts.write_file(root / "params.yaml", "datasets: {}\nexperiments: {}\n")
    (world or ToyWorld.make()).write(workspace.raw("toy"))
    workspace.params.declare_dataset("toy", IngestConfig())
    workspace.params.declare_experiment("toy", "ngame", "ngame", TOY_CHANGES)
    return workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path)


def open_corpus(workspace: Workspace) -> Corpus:
    """Open the corpus of the dataset ``toy``."""
    return Corpus.open(workspace.folder("corpus", "toy"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace whose whole chain has run; tests only read it."""
    workspace = make_workspace(tmp_path_factory.mktemp("trained"))
    for name in STAGES:
        run_stage(workspace, name, "toy", "ngame")
    _content_of[workspace] = _content(workspace)
    return workspace


_content_of: dict[Workspace, dict[Path, tuple[int, int]]] = {}
"""What ``_content`` returned for ``trained``, once it is made."""


def _content(workspace: Workspace) -> dict[Path, tuple[int, int]]:
    """Return size and time of params.yaml and of each file of a workspace's data; commands leave locks elsewhere."""
    files = [path for path in workspace.data.rglob("*") if path.is_file()]
    found = [(path, path.stat()) for path in (*files, workspace.root / "params.yaml")]
    return {path: (now.st_size, now.st_mtime_ns) for path, now in found}


@pytest.fixture(autouse=True)
def trained_is_only_read(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that changes ``trained``: the result of others would depend on the order of tests."""
    yield
    if "trained" in request.fixturenames:
        for workspace, before in _content_of.items():
            now = _content_of[workspace] = _content(workspace)  # so that only this test fails, not all later ones
            assert not sorted({path for path, _ in now.items() ^ before.items()})


@pytest.fixture
def copied(trained: Workspace, tmp_path: Path) -> Workspace:
    """The trained workspace, to be changed."""
    shutil.copytree(trained.root, tmp_path / "copied")
    return Workspace(tmp_path / "copied")


@pytest.fixture
def edit() -> Callable[[Workspace, Any], None]:
    """Edit params.yaml as a user does, with an editor: the value of a dotted name is set."""
    from ruamel.yaml import YAML

    def set_value(workspace: Workspace, changes: dict[str, Any]) -> None:
        yaml, path = YAML(), workspace.root / "params.yaml"
        content = yaml.load(path.read_text())
        for name, value in changes.items():
            *parents, last = name.split("/")
            place = content
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        with path.open("w") as stream:
            yaml.dump(content, stream)

    return set_value


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is said of a long step."""
    heard: list[str] = []
    progress.silence()
    progress.listen(heard.append)
    yield heard
    progress.silence()
