"""The verdict: an answer must be that of the model it names; gaps of swaps; refusals for want of a dial."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.soak.client import Client, Reply
from tests.soak.questions import Asked
from tests.soak.reference import Curve, Known, Reference
from tests.soak.verdict import Verdict, changed_by, figures, gaps, wrongly_refused

TITLES = {uid: uid.upper() for uid in "abcd"}


def reference(digest: str, scores: dict[str, float], curve: Curve | None = None) -> Reference:
    return Reference(digest, TITLES, {}, {"text": Known(scores, {}, frozenset(scores))}, curve)


REFERENCES = {
    "new": reference("new", {"a": 3.0, "b": 2.0, "c": 2.0, "d": 1.0}),
    "old": reference("old", {"a": 1.0, "b": 2.0, "c": 3.0}),
}


def body(digest: str, answer: list[tuple[str, float]]) -> bytes:
    labels = [{"uid": uid, "title": uid.upper(), "score": score, "probability": None} for uid, score in answer]
    return json.dumps({"model": {"version": digest, "digest": digest}, "tail": 0.0, "answers": [labels]}).encode()


@pytest.mark.parametrize(
    ("digest", "answer", "wrong"),
    [
        ("new", [("a", 3.0), ("b", 2.0)], 0),
        ("new", [("a", 3.00005), ("c", 2.0)], 0),
        ("old", [("c", 3.0), ("b", 2.0)], 0),
        ("old", [("a", 3.0), ("b", 2.0)], 1),
        ("new", [("a", 3.0), ("d", 1.0)], 1),
        ("new", [("b", 2.0), ("a", 3.0)], 1),
        ("new", [("a", 3.01), ("b", 2.0)], 1),
        ("new", [("a", 3.0)], 1),
        ("new", [("b", 2.0), ("b", 2.0)], 1),
        ("other", [("a", 3.0), ("b", 2.0)], 1),
    ],
)
def test_an_answer_must_be_that_of_the_model_it_names(digest: str, answer: list[tuple[str, float]], wrong: int) -> None:
    client = Client([1], [Asked(("text",), k=2, why=False)])
    client.answers[0, body(digest, answer)] += 5
    found = Verdict.of(client, REFERENCES)
    assert (found.mixed, bool(found.first)) == (5 * wrong, bool(wrong))
    assert found.asked == {"texts": 5, "k": 5, "why": 5}
    assert found.changed == ({"k": 5} if digest != "other" else {})


def test_a_parameter_changes_an_answer_if_it_differs_without_it() -> None:
    flat = Curve((-10.0, 0.0, 1.0, 2.0, 10.0), (-10.0, -3.0, -2.0, -1.0, 3.0), {"a": 0.0, "b": 0.0, "c": 3.0}, 1.0)
    model = reference("new", {"a": 1.5, "b": 1.0, "c": 0.2}, flat)
    asked: dict[str, Any] = {"k": 3, "tail": 0.0, "min_probability": 0.01, "exclude": ("d",), "only": ("a", "b", "c")}
    assert changed_by(Asked(("text",), **asked), model) == []
    for name, value in {"k": 2, "tail": 1.0, "min_probability": 0.1, "exclude": ("b",), "only": ("b",)}.items():
        assert changed_by(Asked(("text",), **{**asked, name: value}), model) == [name]
    assert [one.uid for one in model.ranked(Asked(("text",), tail=1.0), "text")] == ["c", "a", "b"]


def test_a_gap_is_from_the_last_old_answer_to_the_first_new_one_of_a_server() -> None:
    replies = [Reply(1, 1.0, 0.01, "1"), Reply(2, 1.5, 0.01, "1"), Reply(1, 2.0, 0.01, "1"), Reply(2, 2.1, 0.01, "2"),
               Reply(1, 2.2, 0.01, ""), Reply(1, 2.25, 0.01, "2"), Reply(1, 9.0, 0.01, "2")]  # fmt: skip
    assert sorted(gaps(replies)) == pytest.approx([0.25, 0.6])


def test_only_a_server_whose_model_has_no_dial_may_refuse() -> None:
    versions = ["1", "1", "1", "1", "", "2", "", "3", "3", "3", "3", ""]
    replies = [Reply(1, at, 0.01, version) for at, version in enumerate(versions)]
    assert wrongly_refused(replies, {"2"}) == [replies[-1]]
    assert wrongly_refused([*replies, Reply(2, 11.5, 0.01, "2")], {"2"}) == [replies[-1]]
    assert len(wrongly_refused(replies, set())) == 3
    client = Client([1], [Asked(("text",), k=2, why=False)], replies=replies)
    client.answers[0, body("new", [("a", 3.0), ("b", 2.0)])] += 1
    found = figures(client, REFERENCES)
    assert (found["mixed answers"], found["refused for want of a dial"], found["requests"]) == (3, 3, 12)
    assert "refused by a model with a dial" in found["first mixed answer"]
    assert found["answer ms"] == {"median": 10.0, "p99": 10.0, "longest": 10.0}
    assert figures(Client([1], []), {})["answer ms"] == {}
