"""The client asks what the seed draws, and leaves a server that does not answer for the other one."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.soak import client
from tests.soak.client import Client
from tests.soak.questions import Asked, drawn

GOOD, BAD, TURNED = Asked(("good",)), Asked(("bad",)), Asked(("good",), tail=0.5)
BODY = json.dumps({"model": {"version": "7", "digest": "new"}, "answers": [[{"uid": "a", "score": 1.0}]]}).encode()


def test_a_server_that_does_not_answer_is_left_for_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(port: int, question: dict[str, Any]) -> tuple[int, bytes]:
        if port == 1:
            raise ConnectionRefusedError
        return (200, BODY) if question == {"texts": ("good",)} else (503, b"too much to do")

    monkeypatch.setattr(client, "post", post)
    asking = Client([1, 2], [GOOD, BAD])
    asking._ask(0, 0)
    assert ([(one.port, one.version) for one in asking.replies], asking.turned, asking.errors) == ([(2, "7")], 1, [])
    assert asking.answers == {(0, BODY): 1}
    asking._ask(1, 1)
    assert [error.startswith("503: b'too much to do'") for error in asking.errors] == [True]
    monkeypatch.setattr(client, "SECONDS", 0.0)
    asking.ports = [1]
    asking._ask(0, 0)
    assert "no server answered" in asking.errors[-1]


def test_a_model_without_a_dial_may_refuse_a_question_that_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "post", lambda *_: (422, b'{"found": "tail 0.5 for a model without a dial"}'))
    asking = Client([1], [GOOD, TURNED, Asked(("good",), min_probability=0.0, tail=0.0)])
    asking._ask(1, 0)
    assert ([one.version for one in asking.replies], asking.errors) == ([""], [])
    asking._ask(0, 0)
    asking._ask(2, 0)
    assert len(asking.errors) == 2


def test_each_thread_asks_its_own_questions_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked_by(seed: int) -> dict[int, list[str]]:
        asked: dict[int, list[str]] = {1: [], 2: []}

        def post(port: int, question: dict[str, Any]) -> tuple[int, bytes]:
            asked[port].append(question["texts"][0])
            return 200, BODY

        monkeypatch.setattr(client, "post", post)
        asking = Client([1, 2], [Asked((str(number),)) for number in range(100)], seed, pace=0.001)
        asking.start()
        while min(map(len, asked.values())) < 5:
            time.sleep(0.01)
        asking.stop()
        return {port: texts[:5] for port, texts in asked.items()}

    assert asked_by(1) == asked_by(1) != asked_by(2)
    assert asked_by(1)[1] != asked_by(1)[2]


def test_a_drawn_question_can_be_answered() -> None:
    import random

    uids = [f"L{place}" for place in range(4)]
    for asked in drawn(random.Random(0), ["a", "b", "c"], uids, 500):
        assert len(set(asked.texts)) == len(asked.texts) and set(asked.texts) <= {"a", "b", "c"}
        assert asked.k is None or 1 <= asked.k <= 4
        assert len(asked.exclude or ()) < 4
        assert asked.only is None or set(asked.only) - set(asked.exclude or ())
        assert ("text" in asked.body()) == asked.single
