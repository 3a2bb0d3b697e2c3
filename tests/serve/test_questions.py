"""Each question is answered as the model answers it, or refused with found, expected, do this."""

from __future__ import annotations

import gzip
import json
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.conftest import TOPICS
from tests.serve.conftest import Running, Source, Start
from xc_core.errors import UsageError
from xc_core.infer.predictor import Predictor
from xc_core.serve import server as server_module
from xc_core.serve.guard import Guard
from xc_core.serve.limits import Limits
from xc_core.serve.meters import Meters
from xc_core.serve.questions import _nearest, parsed, question
from xc_core.serve.server import Address


def test_one_text_gets_its_labels_with_titles_scores_and_reasons(running: Running, dialled: Predictor) -> None:
    content = running.ask(text="falcon0 falcon1", k=3)
    served = running.server.models.current
    assert content["model"] == {"dataset": "toy", "version": "1", "recipe": "ngame", "digest": served.digest}
    (labels,) = content["answers"]
    assert [label["title"] for label in labels] == [
        one.title for one in served.predictor.predict(["falcon0 falcon1"], 3)[0]
    ]
    for label in labels:
        assert set(label) == {"uid", "title", "score", "probability", "why", "trees", "dial"}
        assert [why["score"] for why in label["why"]] == list(served.predictor.ranker.scores)
        parts = [why["adds"] or 0 for why in label["why"]]
        assert sum(parts) + (label["trees"] or 0) + label["dial"] == pytest.approx(label["score"], abs=1e-5)


def test_several_texts_come_back_in_their_order(running: Running) -> None:
    content = running.ask(texts=list(TOPICS), k=1, why=False)
    assert [answer[0]["title"] for answer in content["answers"]] == list(TOPICS)
    assert all(set(answer[0]) == {"uid", "title", "score", "probability"} for answer in content["answers"])


def test_a_question_may_have_as_many_texts_and_labels_as_the_limits_say(running: Running) -> None:
    served = running.server.models.current
    uids = list(served.ids)[:3]

    def asks(limits: Limits, **fields: Any) -> None:
        question(parsed(json.dumps(fields).encode()), served, limits)

    for limits in (Limits(texts=3, queue=9), Limits(texts=9, queue=3)):
        asks(limits, texts=["a"] * 3)
        with pytest.raises(UsageError, match="4 texts"):
            asks(limits, texts=["a"] * 4)
    for name in ("only", "exclude"):
        asks(Limits(filter_labels=2), text="a", **{name: uids[:2]})
        with pytest.raises(UsageError, match=f"3 labels in {name}"):
            asks(Limits(filter_labels=2), text="a", **{name: uids})


def test_a_least_probability_leaves_out_the_other_labels(running: Running) -> None:
    (every,) = running.ask(text="falcon0 falcon1", k=10, why=False)["answers"]
    least = every[1]["probability"]
    (likely,) = running.ask(text="falcon0 falcon1", k=10, why=False, min_probability=least)["answers"]
    assert [one["uid"] for one in likely] == [one["uid"] for one in every if one["probability"] >= least]
    assert 0 < len(likely) < len(every)
    assert running.ask(texts=["falcon0"], min_probability=0.9999)["answers"] == [[]]
    running.refused(422, "min_probability 1.5", text="falcon0", min_probability=1.5)
    assert running.metric("xc_texts_without_label_total") == 1
    assert running.metric("xc_largest_probability_count") == 2
    assert running.metric("xc_largest_probability_sum") == pytest.approx(2 * every[0]["probability"], abs=1e-5)
    assert running.client.get("/ready").json()["probabilities"] is True


def test_an_answer_that_ends_at_k_although_more_labels_are_likely_is_named(running: Running) -> None:
    texts = ["falcon0 falcon1", "castle0"]
    whole = running.ask(texts=texts, k=10, why=False)
    least = whole["answers"][0][2]["probability"]
    reach = [sum(one["probability"] >= least for one in labels) for labels in whole["answers"]]
    fields = {"model", "tail", "answers"}
    assert set(whole) == fields
    for k in (1, 2, reach[0] - 1, reach[0], 10):
        content = running.ask(texts=texts, k=k, why=False, min_probability=least)
        assert [len(labels) for labels in content["answers"]] == [min(k, one) for one in reach]
        cut = [place for place, one in enumerate(reach) if one > k]
        assert content.get("cut", []) == cut
        assert set(content) == fields | ({"cut"} if cut else set())
    assert set(running.ask(texts=texts, k=1)) == fields, "nobody asked for all that are likely"


def test_more_texts_than_a_pass_has_come_back_in_their_order(start: Start) -> None:
    running = start(max_batch=3)
    content = running.ask(texts=list(TOPICS), k=1)
    assert [answer[0]["title"] for answer in content["answers"]] == list(TOPICS)
    assert running.metric("xc_pass_texts_count") == 4
    assert running.metric("xc_texts_total") == 10


def test_a_request_without_k_gets_no_more_labels_than_may_be_asked_for(start: Start) -> None:
    """It was refused by a model, or a limit, of fewer than five labels."""
    assert [len(answer) for answer in start(k=3).ask(text="falcon0 castle1")["answers"]] == [3]


def test_filters_leave_labels_out(running: Running) -> None:
    (plain,) = running.ask(text="falcon0 castle1", k=4)["answers"]
    (rest,) = running.ask(text="falcon0 castle1", k=3, exclude=[plain[0]["uid"]])["answers"]
    assert [one["uid"] for one in rest] == [one["uid"] for one in plain[1:]]
    (only,) = running.ask(text="falcon0 castle1", k=4, only=["L0", plain[0]["uid"]])["answers"]
    assert [one["uid"] for one in only] == [plain[0]["uid"], "L0"]
    (rest,) = running.ask(text="falcon0", k=4, only=["L0", "L1"], exclude=["L0", "L2"])["answers"]
    assert [one["uid"] for one in rest] == ["L1"], "a label in both is left out"


def test_a_question_that_leaves_no_label_is_refused(running: Running) -> None:
    """It was answered with an empty list, as a text without any label of ``min_probability`` is."""
    uids = [f"L{number}" for number in range(len(TOPICS))]
    answer = running.client.post("/predict", json={"text": "a", "exclude": uids})
    assert (answer.status_code, answer.json()["found"]) == (422, f"all {len(uids)} labels in exclude")
    (rest,) = running.ask(text="a", exclude=uids[1:])["answers"]
    assert [one["uid"] for one in rest] == uids[:1]


def test_the_dial_is_turned(start: Start, dialled: Predictor) -> None:
    running = start()
    running.server.models.current = replace(running.server.models.current, predictor=dialled)
    for tail in (0.0, 0.5, 1.0):
        content = running.ask(text="castle0 castle1 river0", k=10, tail=tail)
        expected = [one.uid for one in dialled.predict(["castle0 castle1 river0"], 10, tail)[0]]
        assert [one["uid"] for one in content["answers"][0]] == expected
        assert content["tail"] == tail
    for default in (0.0, 0.5):
        assert dialled.ranker.fusion.dial is not None
        fusion = replace(dialled.ranker.fusion, dial=replace(dialled.ranker.fusion.dial, default=default))
        predictor = replace(dialled, ranker=replace(dialled.ranker, fusion=fusion))
        running.server.models.current = replace(running.server.models.current, predictor=predictor)
        assert running.ask(text="castle0")["tail"] == default, "the model's own, if a question names none"
    moved = [label["dial"] for label in running.ask(text="castle0", k=10, tail=1.0)["answers"][0]]
    assert max(moved) > 0


def test_the_page_offers_a_dial_only_if_it_changes_something(start: Start, dialled: Predictor) -> None:
    running = start()
    fusion = dialled.ranker.fusion
    assert fusion.dial is not None
    for dial, offered in ((fusion.dial, True), (replace(fusion.dial, reach=0.0), False), (None, False)):
        predictor = replace(dialled, ranker=replace(dialled.ranker, fusion=replace(fusion, dial=dial)))
        running.server.models.current = replace(running.server.models.current, predictor=predictor)
        assert running.client.get("/ready").json()["dial"] is offered
        if dial is not None:
            assert running.ask(text="castle0", tail=1.0)["tail"] == 1.0, "a client may always ask for a position"


def test_a_model_without_a_dial_has_no_probabilities_and_takes_no_bound_on_them(
    running: Running, dialled: Predictor
) -> None:
    fusion = replace(dialled.ranker.fusion, dial=None)
    predictor = replace(dialled, ranker=replace(dialled.ranker, fusion=fusion))
    running.server.models.current = replace(running.server.models.current, predictor=predictor)
    for name in ("min_probability", "tail"):
        assert running.ask(text="castle0", k=1, **{name: 0})["answers"][0][0]["probability"] is None
        refused = running.refused(422, f"{name} 0.5 for a model without a dial", text="castle0", **{name: 0.5})
        assert refused["do"] == f"leave {name} out"
    assert running.ask(text="castle0")["tail"] == 0, "labels by their scores, as at position 0"
    assert running.client.get("/ready").json()["probabilities"] is False


@pytest.mark.parametrize(
    ("question", "status", "found"),
    [
        ({"text": "a", "k": 0}, 422, "k 0"),
        ({"text": "a", "k": -1}, 422, "k -1"),
        ({"text": "a", "k": 11}, 422, "k 11"),
        ({"text": "a", "k": 10**30}, 422, f"k {10**30}"),
        ({"text": "a", "k": True}, 422, "true as k"),
        ({"text": "a", "k": 2.5}, 422, "2.5 as k"),
        ({"text": "a", "k": "5"}, 422, "'5' as k"),
        ({"text": ""}, 422, "an empty text"),
        ({"text": " \n\t\u00a0"}, 422, "an empty text"),
        ({"text": "\u200b\u200b"}, 422, "an empty text"),
        ({"texts": ["a", "\u001b"]}, 422, "an empty texts[1]"),
        ({"texts": ["a", ""]}, 422, "an empty texts[1]"),
        ({"texts": []}, 422, "0 texts"),
        ({"texts": "a"}, 422, "'a' as texts"),
        ({"texts": ["a", 3]}, 422, "3 as texts[1]"),
        ({"text": ["a"]}, 422, "a list as text"),
        ({}, 422, "neither text nor texts"),
        ({"text": "a", "texts": ["b"]}, 422, "both text and texts"),
        ({"text": "a", "kk": 3}, 422, "unknown parameter 'kk' (nearest: 'k')"),
        ({"text": "a", "tail": 1.5}, 422, "tail 1.5"),
        ({"text": "a", "tail": "1"}, 422, "'1' as tail"),
        ({"text": "a", "exclude": ["falcon"]}, 422, "unknown label 'falcon' in exclude"),
        ({"text": "a", "only": ["nothing"]}, 422, "unknown label 'nothing' in only"),
        ({"text": "a", "only": ["L1", "l2"]}, 422, "unknown label 'l2' in only (nearest: 'L2')"),
        ({"text": "a", "exclude": [" L3"]}, 422, "unknown label ' L3' in exclude (nearest: 'L3')"),
        ({"text": "a", "only": ["L1x"]}, 422, "unknown label 'L1x' in only (nearest: 'L1')"),
        ({"text": "a", "only": ["1L"]}, 422, "unknown label '1L' in only (nearest: 'L1')"),
        ({"text": "a", "only": ["M4"]}, 422, "unknown label 'M4' in only (nearest: 'L4')"),
        ({"text": "a", "only": ["5"]}, 422, "unknown label '5' in only (nearest: 'L5')"),
        ({"text": "a", "only": []}, 422, "an empty list as only"),
        (
            {"text": "a", "only": ["L0", "L1"], "exclude": ["L1", "L0"]},
            422,
            "all labels of only in exclude: 'L0', 'L1'",
        ),
        ({"text": "a", "only": ["L0"], "exclude": ["L1", "L0"]}, 422, "all labels of only in exclude: 'L0'"),
        ({"text": "a", "only": "L1"}, 422, "'L1' as only"),
        ({"text": "x" * 100_001}, 413, "100,001 characters in text"),
        ({"texts": ["x"] * 257}, 413, "257 texts"),
        ({"text": "a", "exclude": ["L1"] * 1001}, 413, "1,001 labels in exclude"),
    ],
)
def test_what_cannot_be_answered_is_refused(running: Running, question: Any, status: int, found: str) -> None:
    running.refused(status, found, **question)
    assert running.metric(f'xc_requests_total{{path="/predict",status="{status}"}}') == 1


@pytest.mark.parametrize(
    ("query", "body", "found"),
    [
        ("?k=3", '{"text": "a"}', "the query '?k=3'"),
        ("?text=b", '{"text": "a"}', "the query '?text=b'"),
        ("?text=b&k=3", '{"text": "a"}', "the query '?text=b&k=3'"),
        ("", '{"text": "a", "k": 1, "text": "b"}', "the parameter 'text' twice"),
        ("", '{"text": "a", "k": 1, "\\u006b": 2}', "the parameter 'k' twice"),
    ],
)
def test_no_parameter_is_ignored(running: Running, query: str, body: str, found: str) -> None:
    """Those of the query were, and of two with the same name the first."""
    answer = running.client.post(f"/predict{query}", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["found"]) == (422, found)
    assert set(answer.json()) == {"found", "expected", "do"}


@pytest.mark.parametrize("uid", ["x" * 100, "x" * 1_000_000])
def test_near_labels_are_found_in_a_time_that_does_not_depend_on_how_many_there_are(uid: str) -> None:
    """All requests wait meanwhile."""
    ids = {f"http://example.org/labels/{number}": number for number in range(300_000)}
    started = time.process_time()
    assert _nearest(uid, ids) == ""
    assert _nearest("http://example.org/lables/77", ids) == " (nearest: 'http://example.org/labels/77')"
    assert time.process_time() - started < 0.2


@pytest.mark.parametrize(
    ("body", "expected", "do"),
    [
        ('{"text": "a", "k": null}', "a whole number, without quotes", "fix k"),
        ('{"text": "a", "k": "5"}', "a whole number, without quotes", "fix k"),
        ('{"text": "a", "k": 5.5}', "a whole number, without quotes", "fix k"),
        ('{"text": "a", "tail": "1"}', "a number, without quotes", "fix tail"),
        ('{"text": "a", "why": "yes"}', "true or false, without quotes", "fix why"),
        ('{"text": 5}', "a text in quotes", "fix text"),
        ('{"text": "a", "only": "L1"}', "a list of texts, also of a single one", "fix only"),
        ('{"texts": ["a", null]}', "a text in quotes", "fix texts[1]"),
        ('["a"]', "an object", 'send {"text": "..."}, or for several texts {"texts": ["...", "..."]}'),
        ('{"text": " "}', "a text with words", "send another text"),
        ('{"texts": ["a", " "]}', "a text with words", "leave it out"),
        ('{"text": "a", "min_probability": 40}', "a number from 0 to 1", "fix the number; 40 % is 0.4"),
        ('{"text": "a", "min_probability": 400}', "a number from 0 to 1", "fix the number"),
    ],
)
def test_what_a_value_should_be_is_said_in_the_words_of_json(
    running: Running, body: str, expected: str, do: str
) -> None:
    """They were those of Python and pydantic: "a valid integer" for null, which was called None."""
    answer = running.client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert (answer.json()["expected"], answer.json()["do"]) == (expected, do)
    assert "None" not in answer.text and "valid" not in answer.text


def test_a_compressed_question_is_refused_as_one(running: Running) -> None:
    """It was called no JSON."""
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = running.client.post("/predict", content=gzip.compress(b'{"text": "a"}'), headers=headers)
    assert (answer.status_code, answer.json()["found"]) == (415, "content encoding gzip")
    headers["Content-Encoding"] = "identity"
    assert running.client.post("/predict", content=b'{"text": "a"}', headers=headers).status_code == 200


def test_a_question_by_get_is_told_to_be_a_post(running: Running) -> None:
    assert running.client.get("/predict?text=a").json()["do"] == "send the question as JSON in a POST; see /docs"
    assert running.client.post("/ready").json()["do"] == "see /docs"


def test_an_empty_list_of_texts_is_not_split_into_several_requests(running: Running) -> None:
    assert running.refused(422, "0 texts", texts=[])["do"] == "send a text"
    assert running.refused(413, "257 texts", texts=["x"] * 257)["do"] == "send several requests"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"texts":[' + b"1," * 999_999 + b"1]}", "1 as texts[0]"),
        (b'{"text":"a","exclude":[' + b"1," * 999_999 + b"1]}", "1 as exclude[0]"),
        (b'{"text":"a","only":[' + b"1," * 999_999 + b"1]}", "1 as only[0]"),
        (json.dumps({str(number): 1 for number in range(200_000)} | {"text": "a"}).encode(), "unknown parameter '0'"),
    ],
    ids=["texts", "exclude", "only", "names"],
)
def test_a_body_of_many_wrong_things_is_refused_for_the_first(body: bytes, found: str) -> None:
    """pydantic would describe a million of them, for seconds in which nobody else is answered."""
    started = time.process_time()
    with pytest.raises(UsageError) as caught:
        parsed(body)
    assert caught.value.found.startswith(found)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", "an empty body"),
        (b" \n", "an empty body"),
        (b"{", "a body that is no JSON"),
        (b"[1]", "a list as the question"),
        (b'"a"', "'a' as the question"),
        (b"null", "null as the question"),
        (b"\xff\xfe", "a body that is no JSON"),
        (b'{"text": "\xff"}', "a body that is no JSON"),
        (b'{"text": "a\\ud800"}', "a body that is no JSON"),
        (b"[" * 100_000, "a body that is no JSON"),
        (b'{"text": "a", "tail": NaN}', "tail nan"),
        (b'{"text": "a", "tail": Infinity}', "tail inf"),
    ],
)
def test_a_body_that_is_no_question_is_refused(running: Running, body: bytes, found: str) -> None:
    response = running.client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, set(response.json())) == (422, {"found", "expected", "do"})
    assert response.json()["found"].startswith(found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["text", "texts", "k", "tail", "exclude", "only", "why", "K"])


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(question=st.dictionaries(NAMES, JSON, max_size=4))
def test_anything_at_all_is_answered_or_refused(running: Running, question: dict[str, Any]) -> None:
    body = json.dumps(question).encode("utf-8", "surrogatepass")
    response = running.client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (200, 413, 422), response.text
    assert set(response.json()) in ({"model", "tail", "answers"}, {"found", "expected", "do"})


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_form_of_another_site_cannot_ask(running: Running, kind: str) -> None:
    response = running.client.post("/predict", content=b'{"text": "a"}', headers={"Content-Type": kind})
    assert (response.status_code, response.json()["found"]) == (415, f"content type {kind or 'none'}")


def test_another_host_name_is_refused(running: Running) -> None:
    for path in ("/ready", "/predict", "/metrics", "/"):
        response = running.client.get(path, headers={"Host": "rebound.example:8080"})
        assert (response.status_code, response.json()["found"]) == (421, "host 'rebound.example'")


def test_a_request_without_a_host_name_is_answered(running: Running) -> None:
    """The checks of some load balancers are HTTP/1.0 without one; no browser sends such a request."""
    assert running.client.get("/health", headers={"Host": ""}).status_code == 200


def test_an_allowed_name_is_one_in_any_case_and_loopback_stays_allowed_beside_it() -> None:
    names = Address(host="0.0.0.0", allowed=("Labels.Example", "[fe80::1]")).names()
    assert Address(host="0.0.0.0").names() is None
    guard = Guard(FastAPI(), Limits(), Meters(), names)
    with TestClient(guard) as client:
        for host in ("labels.example", "LABELS.example:443", "[fe80::1]:80", "localhost:8080", "127.0.0.1"):
            assert client.get("/health", headers={"Host": host}).status_code == 404, host
        for host in ("other.example", "0.0.0.0:8080"):  # a page that a browser shows may ask the latter
            assert client.get("/health", headers={"Host": host}).status_code == 421, host


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/predict", 405),
        ("POST", "/ready", 405),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/predict/x", 404),
        ("POST", "/predict/", 404),
        ("GET", "/docs/", 404),
    ],
)
def test_another_path_or_method_is_refused(running: Running, method: str, path: str, status: int) -> None:
    response = running.client.request(method, path)
    assert (response.status_code, set(response.json())) == (status, {"found", "expected", "do"})
    other = {"/predict": "POST", "/ready": "GET"}.get(path) if status == 405 else None
    assert response.headers.get("Allow") == other
    assert other is None or response.json()["expected"] == f"the method {other}"


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/", 200), ("/predict", 405), ("/x", 404)])
def test_head_is_answered_as_get_without_a_body(running: Running, path: str, status: int) -> None:
    head, get = running.client.head(path), running.client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"") == (status, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


def test_what_a_message_repeats_of_a_request_is_short(running: Running) -> None:
    typed = running.client.post("/predict", content=b"{}", headers={"Content-Type": "x" * 3000})
    method = running.client.request("X" * 3000, "/predict")
    huge = running.client.post(
        "/predict", content=b'{"text": "a", "k": %s}' % (b"9" * 4000), headers={"Content-Type": "application/json"}
    )
    assert [response.status_code for response in (typed, method, huge)] == [415, 405, 422]
    for response in (typed, method, huge):
        assert len(response.json()["found"]) < 200


def test_a_port_that_another_server_takes_meanwhile_is_refused() -> None:
    """Both were bound while they loaded their models; only one can listen."""
    first = Address(port=0).bound()
    taken = Address(port=first.getsockname()[1])
    second = taken.bound()
    try:
        taken.listening(first)
        with pytest.raises(UsageError, match="where no server can listen"):
            taken.listening(second)
    finally:
        first.close()
        second.close()


def test_a_server_can_be_reached_when_it_says_that_it_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager may send requests as soon as it has read the line."""
    reached = []

    def connect(line: str) -> None:
        if "answers on" in line:
            socket.create_connection(("127.0.0.1", int(line.rsplit(":", 1)[1])), 5).close()
            reached.append(line)

    monkeypatch.setattr(server_module, "report", connect)
    monkeypatch.setattr(server_module, "_run", lambda server, listener: listener.close())
    server_module.serve(Source(folder), Address(port=0), Limits(), 3600.0)
    assert len(reached) == 1


@pytest.mark.parametrize("host", ["x" * 300, "é" * 70, "\0", "\ud800", "a..b"])
def test_a_host_that_cannot_be_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="where no server can listen") as caught:
        Address(host=host, port=0).bound()
    assert len(caught.value.found) < 300


def test_an_empty_host_is_not_taken_for_all_addresses() -> None:
    with pytest.raises(UsageError, match=r"0\.0\.0\.0 means all of them"):
        Address(host="", port=0).bound()
