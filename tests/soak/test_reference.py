"""The reference agrees with the server about every kind of question, and finds each fault that is planted there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.serve.conftest import HOSTS, Source, repacked
from tests.soak.questions import OPTIONS, Asked, pool
from tests.soak.reference import Reference
from tests.soak.verdict import changed_by
from xc_core.chain import Workspace
from xc_core.infer import explained
from xc_core.serve import app, questions
from xc_core.serve.app import make_app, make_server
from xc_core.serve.limits import Limits
from xc_core.serve.meters import Meters
from xc_core.serve.models import Models

POOL = pool(0)
Ask = Callable[[Asked], dict[str, Any]]


@pytest.fixture(scope="module")
def folder(trained: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy model with a dial that turns, and probabilities that fall slowly with the score."""

    def change(path: Path) -> None:
        content = json.loads((path / "fusion.json").read_text())
        curve = {"score_R": [-100.0, 0.0, 2.0, 100.0], "log_share_R": [-100.0, -2.5, -0.1, 100.0]}
        content["dial"] |= {**curve, "reach": 0.75, "default": 0.3}
        (path / "fusion.json").write_text(json.dumps(content))
        np.save(path / "log_weights.npy", np.linspace(0.1, 2.0, 10, dtype=np.float32))

    return repacked(trained.folder("model", "toy", "ngame"), change, tmp_path_factory.mktemp("turned") / "model")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference.of(folder, sorted({text for asked in POOL for text in asked.texts}))


@pytest.fixture(scope="module")
def ask(folder: Path) -> Iterator[Ask]:
    server = make_server(Models(Source(folder)), Limits(), Meters())
    with TestClient(make_app(server, HOSTS, 3600.0)) as client:

        def asked(question: Asked) -> dict[str, Any]:
            response = client.post("/predict", json=question.body())
            assert response.status_code == 200, (question, response.text)
            return dict(response.json())

        yield asked


def test_every_kind_of_question_is_asked_and_changes_answers(reference: Reference) -> None:
    kinds = {kind for asked in POOL for kind in asked.kinds()}
    assert kinds == {"text", "texts", *OPTIONS}
    assert {name for asked in POOL for name in changed_by(asked, reference)} == {*OPTIONS} - {"why"}
    assert POOL == pool(0) != pool(1)
    assert max(len(asked.texts) for asked in POOL) > Limits().max_batch
    sent = [frozenset(asked.kinds()) for asked in POOL]
    assert {"only", "exclude", "tail", "min_probability", "k"} in [one & {*OPTIONS} - {"why"} for one in sent]


def test_the_server_answers_as_the_reference_does(reference: Reference, ask: Ask) -> None:
    assert [wrong for asked in POOL if (wrong := reference.wrong(asked, ask(asked)))] == []


def ignored(name: str) -> Callable[..., Any]:
    """Return what the model allows if it does not read a filter."""
    allowed = explained._allowed
    instead: dict[str, Any] = {"exclude": explained.NOTHING, "only": None}
    return lambda ids_NK, question: allowed(ids_NK, replace(question, **{name: instead[name]}))


def more_labels(request: Any, served: Any, limits: Any) -> int:
    return int(request.k) + 1


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "exclude is ignored": (explained, "_allowed", ignored("exclude")),
    "only is ignored": (explained, "_allowed", ignored("only")),
    "tail is ignored": (questions, "_tail", lambda tail, served: None),
    "tail is too low": (questions, "_tail", lambda tail, served: tail and 0.9 * tail),
    "the bound is ignored": (questions, "_min_probability", lambda least, served: 0.0),
    "the bound is too low": (questions, "_min_probability", lambda least, served: 0.8 * least),
    "the bound is too high": (questions, "_min_probability", lambda least, served: min(1.2 * least, 1.0)),
    "a label too many": (questions, "_k", more_labels),
    "a label too few": (questions, "_k", lambda *asked: 1),
    "cut is not said": (app, "first", lambda answers, k: ([labels[:k] for labels in answers], [])),
    "texts exchanged": (app, "first", lambda answers, k: ([labels[:k] for labels in reversed(answers)], [])),
    "reasons ranked wrongly": (explained, "_ranks", lambda all_KF, own_KF: np.ones(own_KF.shape, np.int64)),
    "points left out": (explained, "_added", lambda fusion, values_KF: [{} for _ in values_KF]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, reference: Reference, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[name])
    assert any(reference.wrong(asked, ask(asked)) for asked in POOL)


CHANGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "score": lambda label: label.update(score=label["score"] + 0.002),
    "probability": lambda label: label.update(probability=label["probability"] + 0.002),
    "no probability": lambda label: label.update(probability=None),
    "title": lambda label: label.update(title="other"),
    "value": lambda label: label["why"][0].update(value=label["why"][0]["value"] + 0.001),
    "rank": lambda label: label["why"][0].update(rank=label["why"][0]["rank"] + 1),
    "points": lambda label: label["why"][0].update(adds=label["why"][0]["adds"] + 0.01),
    "trees": lambda label: label.update(trees=label["trees"] + 0.01),
    "points of the dial": lambda label: label.update(dial=label["dial"] + 0.01),
    "a score without reasons": lambda label: label["why"].pop(),
    "no reasons": lambda label: label.pop("why"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_each_field_of_a_label_is_checked(name: str, reference: Reference, ask: Ask) -> None:
    asked = Asked(POOL[0].texts[:1], k=3, tail=0.5)
    reply = ask(asked)
    assert reference.wrong(asked, reply) == ""
    CHANGED[name](reply["answers"][0][1])
    assert reference.wrong(asked, reply)


def test_a_label_that_is_missing_or_twice_or_in_a_wrong_order_is_found(reference: Reference, ask: Ask) -> None:
    asked = Asked(POOL[0].texts[:1], k=4)
    labels = ask(asked)["answers"][0]
    for wrong in (labels[:3], labels[1:], [labels[1], labels[0], *labels[2:]], [*labels[:3], labels[2]], []):
        assert reference.wrong(asked, {"tail": 0.3, "answers": [wrong]})
    assert reference.wrong(asked, {"tail": 0.3, "answers": [labels, labels]})
    assert reference.wrong(asked, {"tail": 0.0, "answers": [labels]})
    assert reference.wrong(asked, {"tail": 0.3, "answers": [labels], "cut": [0]})
    assert not reference.wrong(asked, {"tail": 0.3, "answers": [labels]})


def test_an_answer_of_another_model_is_found(trained: Workspace, reference: Reference, ask: Ask) -> None:
    other = Reference.of(trained.folder("model", "toy", "ngame"), list(reference.known))
    assert other.digest != reference.digest
    found = [other.wrong(asked, ask(asked)) for asked in POOL if asked.tail is None and asked.k != 1]
    assert found and all(found)
