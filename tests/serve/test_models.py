"""The swap to a new champion: only a model that works replaces the old one, and the server says what is wrong."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.serve.conftest import Running, Source, Start, repacked
from xc_core.errors import CorruptError, MissingError, UnavailableError
from xc_core.infer.champion import Champion, in_folder
from xc_core.infer.explained import Question
from xc_core.scores import Query
from xc_core.serve import models as module
from xc_core.serve.models import Models, Watch, load
from xc_core.shapes import I32, PAD_ID


def cut_encoder(folder: Path) -> None:
    data = (folder / "encoder.safetensors").read_bytes()
    (folder / "encoder.safetensors").write_bytes(data[: len(data) // 2])


def nan_weights(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = {name: value * float("nan") for name, value in load_file(folder / "encoder.safetensors").items()}
    save_file(weights, folder / "encoder.safetensors")


def no_fusion(folder: Path) -> None:
    (folder / "fusion.json").unlink()


def infinite_scores(folder: Path) -> None:
    """Nothing fails: the vectors are finite, and the trees of the fusion answer."""
    content = json.loads((folder / "fusion.json").read_text())
    content["tree"]["value"] = [float("inf")] * len(content["tree"]["value"])
    (folder / "fusion.json").write_text(json.dumps(content))


def odd_facts(folder: Path) -> None:
    (folder / "model.json").write_text(json.dumps({"dataset": 1}))


def test_a_new_version_answers_after_a_poll(running: Running) -> None:
    assert running.ask(text="falcon")["model"]["version"] == "1"
    running.source.version = "2"
    running.server.models.poll()
    assert running.ask(text="falcon")["model"]["version"] == "2"
    assert running.client.get("/ready").json()["model"]["version"] == "2"
    assert running.metric("xc_model_swaps_total") == 2
    assert 'version="2"' in running.client.get("/metrics").text
    running.source.version = "1"  # a rollback is a swap like any other
    running.server.models.poll()
    assert running.ask(text="falcon")["model"]["version"] == "1"


def test_a_server_that_starts_while_its_source_is_down_answers_with_the_last_model_and_says_so(
    folder: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, unanswered, lines = in_folder(folder), list[int](), list[str]()
    monkeypatch.setattr(module, "report", lines.append)
    champion = Champion("1", last.digest, last.fetch, unconfirmed="no answer from a registry")
    models = Models(lambda: champion, Watch(unanswered=lambda: unanswered.append(1)))
    assert (models.current.version, models.source_error) == ("1", "no answer from a registry")
    assert lines == ["there is no model to swap to (no answer from a registry); version 1 stays"]
    champion = replace(champion, version="2")
    models.poll()
    assert (models.current.version, models.source_error) == ("1", "no answer from a registry")
    assert len(unanswered) == 2
    champion = replace(champion, unconfirmed="")
    models.poll()
    assert (models.current.version, models.source_error) == ("2", "")


def test_the_source_is_asked_again_and_again_until_the_end(folder: Path) -> None:
    asked = threading.Semaphore(0)

    def source() -> Champion:
        asked.release()
        return in_folder(folder)

    models = Models(source)
    models.start(0.001)
    for _ in range(4):  # at the start, and three times by the thread
        assert asked.acquire(timeout=60)
    models.stop()
    assert models._thread is not None and not models._thread.is_alive()


def test_the_same_version_is_not_loaded_again(running: Running) -> None:
    before = running.server.models.current
    running.server.models.poll()
    assert running.server.models.current is before


def test_a_folder_that_is_packed_again_is_another_version(own_folder: Path) -> None:
    models = Models(lambda: in_folder(own_folder))
    before = models.current.version
    repacked(own_folder, lambda _: None)
    models.poll()
    assert models.current.version == before, "the same content"
    repacked(own_folder, lambda work: (work / "note.txt").write_text("new"))
    models.poll()
    assert models.current.version != before


@pytest.mark.parametrize("spoil", [cut_encoder, nan_weights, infinite_scores, no_fusion, odd_facts])
def test_a_damaged_model_never_replaces_the_good_one(
    running: Running, own_folder: Path, spoil: Callable[[Path], None]
) -> None:
    """Its hashes fit its files: it was damaged before it was packed."""
    repacked(own_folder, spoil)
    before = running.ask(text="falcon")
    running.source.folder, running.source.version = own_folder, "2"
    running.server.models.poll()
    assert running.ask(text="falcon") == before
    ready = running.client.get("/ready")
    assert (ready.status_code, ready.json()["refused"]["version"]) == (200, "2")
    assert ready.json()["refused"]["reason"]
    assert running.metric("xc_model_refusals_total") == running.metric("xc_model_refused") == 1


def test_a_model_that_proposes_no_label_for_the_text_it_is_tried_with_is_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linear model of words in another language was refused as damaged."""

    def nothing(_: object, query: Query, k: int) -> I32:
        return np.full((len(query), k), PAD_ID, np.int32)

    monkeypatch.setattr("xc_core.infer.explained.candidates", nothing)
    assert load(in_folder(folder)).facts.recipe == "ngame"


@pytest.mark.parametrize(("proposed", "scored"), [([np.nan], [1.0]), ([1.0], [np.inf]), ([], []), ([1.0], [])])
def test_a_model_without_a_finite_score_is_refused(
    proposed: list[float], scored: list[float], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [[[SimpleNamespace(score=score) for score in scores]] for scores in (proposed, scored)]
    monkeypatch.setattr(module, "explained", lambda *_: answers)
    with pytest.raises(CorruptError, match="no finite score"):
        load(in_folder(folder))


def test_a_model_is_tried_with_the_label_that_it_proposes_and_with_one_that_it_may_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first label has a finite score; the label that would be the answer has none."""

    def answers(predictor: Any, questions: list[Question]) -> list[list[list[Any]]]:
        found = (SimpleNamespace(score=1.0 if question.only == frozenset((0,)) else np.nan) for question in questions)
        return [[[label] * question.k] for label, question in zip(found, questions, strict=True)]

    monkeypatch.setattr(module, "explained", answers)
    with pytest.raises(CorruptError, match="no finite score"):
        load(in_folder(folder))


def test_a_model_whose_bytes_changed_is_refused_and_taken_when_it_is_repaired(
    running: Running, own_folder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray((own_folder / "encoder.safetensors").read_bytes())
    data[-1] ^= 1
    (own_folder / "encoder.safetensors").write_bytes(data)
    running.source.folder, running.source.version = own_folder, "2"
    running.server.models.poll()
    assert "content has changed" in running.client.get("/ready").json()["refused"]["reason"]
    shutil.copy(folder / "encoder.safetensors", own_folder / "encoder.safetensors")
    running.server.models.poll()
    assert running.metric("xc_model_refusals_total") == 1, "not tried again at each poll"
    assert running.ask(text="falcon")["model"]["version"] == "1"
    monkeypatch.setattr(module, "RETRY_SECONDS", -1.0)
    running.server.models.poll()
    assert running.ask(text="falcon")["model"]["version"] == "2"
    assert running.client.get("/ready").json()["refused"] is None
    assert running.metric("xc_model_refused") == 0


def test_another_model_than_the_registered_one_is_refused(running: Running, own_folder: Path, folder: Path) -> None:
    repacked(own_folder, lambda work: (work / "note.txt").write_text("new"))
    registered = in_folder(folder).digest
    running.server.models._source = lambda: Champion("2", registered, lambda: own_folder)
    running.server.models.poll()
    assert running.server.models.current.version == "1"
    assert running.server.models.refusal is not None and "content" in running.server.models.refusal.reason


def test_a_model_of_another_dataset_is_refused(running: Running, own_folder: Path) -> None:
    """MLflow registers any model under any name."""
    running.server.models._source = lambda: Champion("2", "", lambda: own_folder, dataset="other")
    running.server.models.poll()
    assert running.server.models.current.version == "1"
    assert running.server.models.refusal is not None
    assert running.server.models.refusal.reason.startswith("a model of the dataset toy, ")


class PanicError(BaseException):
    """A panic in Rust, which is no Exception."""


@dataclass
class Registry:
    """A registry whose models open unless a test says otherwise."""

    champion: Champion
    damaged: set[str] = field(default_factory=set)
    loaded: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self) -> Champion:
        return self.champion

    def names(self, version: str, digest: str = "") -> None:
        self.champion = Champion(version, digest, Path)

    def load(self, champion: Champion) -> Any:
        self.loaded.append((champion.version, champion.digest))
        if champion.version == "panic":
            raise PanicError("index out of bounds")
        if champion.version in self.damaged:
            raise CorruptError("a damaged file", expected="a whole one", do="repair it")
        return SimpleNamespace(version=champion.version, digest=champion.digest or "unknown")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    own = Registry(Champion("1", "aa", Path), damaged={"2"})
    monkeypatch.setattr(module, "load", own.load)
    return own


def test_a_version_after_a_damaged_one_is_loaded_at_once(registry: Registry) -> None:
    """Only the damaged one waits until it is tried again."""
    models = Models(registry)
    for version, current in (("2", "1"), ("3", "3")):
        registry.names(version)
        models.poll()
        assert models.current.version == current
    assert models.refusal is None


def test_a_panic_while_a_model_is_loaded_does_not_end_the_polls(registry: Registry) -> None:
    models = Models(registry)
    registry.names("panic")
    models.poll()
    assert models.refusal is not None and models.refusal.reason == "PanicError: index out of bounds"
    assert models.current.version == "1"


def test_a_champion_that_returns_to_the_model_that_answers_is_no_refusal(registry: Registry) -> None:
    """A rollback while the server refuses the newer version."""
    models = Models(registry)
    registry.names("2")
    models.poll()
    assert models.refusal is not None
    registry.names("1", "aa")
    models.poll()
    assert models.refusal is None
    assert registry.loaded == [("1", "aa"), ("2", "")], "the model is not loaded again"


def test_a_version_that_is_rolled_back_while_it_is_loaded_never_answers(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answered until the old model had been loaded again, minutes for a large one."""
    models = Models(registry)
    registry.names("3")
    with monkeypatch.context() as patched:
        patched.setattr(module, "load", lambda champion: (registry.load(champion), registry.names("1", "aa"))[0])
        models.poll()
    assert (models.current.version, models.refusal) == ("1", None)
    models.poll()
    assert registry.loaded == [("1", "aa"), ("3", "")], "the old model is not loaded again"


def test_a_registry_that_does_not_answer_after_a_load_stops_no_swap(registry: Registry) -> None:
    answers = iter([Champion("1", "aa", Path), Champion("3", "cc", Path)])
    models = Models(lambda: next(answers))
    models.poll()
    assert models.current.version == "3"


def test_a_version_with_another_content_is_another_model(registry: Registry) -> None:
    """Another database in the place of the old one gives its versions the same numbers."""
    models = Models(registry)
    registry.names("1", "bb")
    models.poll()
    assert models.current.digest == "bb"


@pytest.mark.parametrize(
    "error",
    [UnavailableError("no answer from MLflow", expected="a", do="b"), MissingError("no champion", expected="a", do="b"),
     RuntimeError("no answer from MLflow")],
)  # fmt: skip
def test_a_registry_that_does_not_answer_changes_nothing_and_is_shown(running: Running, error: Exception) -> None:
    running.source.error = error
    running.server.models.poll()
    ready = running.client.get("/ready")
    assert ready.status_code == 200
    assert ready.json()["registry"].endswith(getattr(error, "found", str(error)))
    assert running.metric("xc_registry_errors_total") == 1
    running.ask(text="falcon")
    running.source.error = None
    running.server.models.poll()
    assert running.client.get("/ready").json()["registry"] == "ok"


def test_a_folder_or_a_champion_that_is_gone_is_not_a_registry_without_an_answer(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``xc forget`` deletes the packed model of a recipe; the commands after it delete registered versions."""
    told: list[str] = []
    monkeypatch.setattr(module, "report", told.append)
    models = Models(registry)
    models._source = partial(in_folder, Path("gone"))
    models.poll()
    assert told == ["there is no model to swap to (no artefact at gone); version 1 stays"]


def test_the_log_has_a_line_when_the_registry_fails_for_another_reason_or_answers_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none per poll: a reason may name a process, or a temporary file, which are others each time."""
    told: list[str] = []
    monkeypatch.setattr(module, "report", told.append)
    models = Models(registry)

    def fails(reason: str) -> Champion:
        raise RuntimeError(reason)

    reasons = ("locked by process 71", "locked by process 72", ".x.9-a0ff.tmp", ".x.9-bb1c.tmp", "refused", "refused")
    for reason in reasons:
        models._source = partial(fails, reason)
        models.poll()
    models._source = registry
    for _ in range(2):
        models.poll()
    shown = [*reasons[:5:2], ""]
    assert [reason in line for reason, line in zip(shown, told, strict=True)] == [True] * 4
    assert told[-1] == "the model to serve is known again: version 1"
    assert models.source_error == ""


def test_a_log_that_nobody_reads_any_more_does_not_end_the_swaps(
    running: Running, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(line: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(module, "report", closed)
    running.source.error = UnavailableError("no answer from MLflow", expected="a", do="b")
    running.server.models.poll()
    running.source.error, running.source.folder, running.source.version = None, Path("gone"), "2"
    running.server.models.poll()
    running.source.folder = own_folder
    running.server.models.poll()
    assert running.client.get("/ready").json()["model"]["version"] == "2"


def test_a_server_does_not_start_without_a_model(own_folder: Path) -> None:
    def nothing() -> Champion:
        raise MissingError("no champion", expected="one", do="train")

    with pytest.raises(MissingError, match="no champion"):
        Models(nothing)
    (own_folder / "fusion.json").write_text("{}")
    with pytest.raises(CorruptError):
        Models(Source(own_folder))


def test_a_question_that_waits_ends_on_the_model_it_came_for(start: Start) -> None:
    """It waits in the queue while the champion is exchanged."""
    running = start(max_wait_ms=300.0)
    answers: list[str] = []
    client = threading.Thread(target=lambda: answers.append(running.ask(text="falcon")["model"]["version"]))
    client.start()
    while not running.server.batcher.waiting:
        pass
    running.source.version = "2"
    running.server.models.poll()
    assert running.server.models.current.version == "2"
    client.join(20)
    assert answers == ["1"]
