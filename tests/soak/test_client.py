"""What the client of the soak counts: a mixed or wrong answer is one, rounding is none; the gap of a swap."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.soak import client
from tests.soak.client import Answer, Client, Reply, gaps, mixed

REFERENCES = {
    "new": {"text": {"a": 3.0, "b": 2.0, "c": 2.0, "d": 1.0}},
    "old": {"text": {"a": 1.0, "b": 2.0, "c": 3.0}},
}
"""Scores by digest and text."""


@pytest.mark.parametrize(
    ("digest", "answer", "wrong"),
    [
        ("new", (("a", 3.0), ("b", 2.0)), 0),
        ("new", (("a", 3.00005), ("c", 2.0)), 0),
        ("old", (("c", 3.0), ("b", 2.0)), 0),
        ("old", (("a", 3.0), ("b", 2.0)), 1),
        ("new", (("a", 3.0), ("d", 1.0)), 1),
        ("new", (("b", 2.0), ("a", 3.0)), 1),
        ("new", (("a", 3.01), ("b", 2.0)), 1),
        ("new", (("a", 3.0),), 1),
        ("new", (("b", 2.0), ("b", 2.0)), 1),
        ("other", (("a", 3.0), ("b", 2.0)), 1),
    ],
)
def test_an_answer_must_be_that_of_the_model_it_names(digest: str, answer: Answer, wrong: int) -> None:
    assert mixed(Counter({("1", digest, "text", answer): 5}), REFERENCES, k=2) == 5 * wrong


def test_a_gap_is_from_the_last_old_answer_to_the_first_new_one_of_a_server() -> None:
    replies = [Reply(1, 1.0, 0.01, "1"), Reply(2, 1.5, 0.01, "1"), Reply(1, 2.0, 0.01, "1"), Reply(2, 2.1, 0.01, "2"),
               Reply(1, 2.25, 0.01, "2"), Reply(1, 9.0, 0.01, "2")]  # fmt: skip
    assert sorted(gaps(replies)) == pytest.approx([0.25, 0.6])


def test_a_server_that_does_not_answer_is_left_for_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"model": {"version": "7", "digest": "new"}, "answers": [[{"uid": "a", "score": 1.0}]]}

    def post(port: int, question: dict[str, Any]) -> tuple[int, Any]:
        if port == 1:
            raise ConnectionRefusedError
        return (200, content) if question["texts"] == ["good"] else (503, "too much to do")

    monkeypatch.setattr(client, "post", post)
    asking = Client([1, 2], ["good"])
    asking._ask(["good"], 0)
    assert ([reply.port for reply in asking.replies], asking.turned, asking.errors) == ([2], 1, [])
    assert asking.answers == {("7", "new", "good", (("a", 1.0),)): 1}
    asking._ask(["bad"], 1)
    assert asking.errors == ["503: too much to do"]
    monkeypatch.setattr(client, "SECONDS", 0.0)
    asking.ports = [1]
    asking._ask(["good"], 0)
    assert "no server answered" in asking.errors[-1]
