"""The metrics that an operator's alerts read: names, units and when they change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.serve.conftest import Running
from xc_core.infer.explained import Explained
from xc_core.serve.meters import Meters
from xc_core.serve.models import Refusal


def read(meters: Meters, waiting: int = 0, refusal: Refusal | None = None) -> dict[str, float]:
    lines = meters.text(waiting, refusal).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_passes_are_counted_with_their_texts_and_seconds() -> None:
    meters = Meters()
    for texts, seconds in ((3, 0.03), (1, 0.004)):
        meters.passed(texts, seconds)
    found = read(meters)
    assert (found["xc_texts_total"], found["xc_pass_texts_sum"], found["xc_pass_texts_count"]) == (4, 4, 2)
    assert found["xc_pass_seconds_sum"] == pytest.approx(0.034)
    assert [found[f'xc_pass_seconds_bucket{{le="{le}"}}'] for le in ("0.002", "0.005", "0.05")] == [0, 1, 2]
    assert [found[f'xc_pass_texts_bucket{{le="{le}"}}'] for le in ("1.0", "2.0", "4.0")] == [1, 1, 2]


def test_what_waits_and_what_was_refused_is_as_it_is_now() -> None:
    meters = Meters()
    found = [read(meters, 7), read(meters, 0, Refusal("2", "damaged", 0.0)), read(meters, 2)]
    assert [(one["xc_queue_texts"], one["xc_model_refused"]) for one in found] == [(7, 0), (0, 1), (2, 0)]


def test_a_new_model_is_counted_with_the_seconds_of_its_loading() -> None:
    meters = Meters()
    for version, seconds in (("1", 1.5), ("2", 0.25)):
        served: Any = SimpleNamespace(name={"version": version})
        meters.watch().swapped(served, seconds)
    found = read(meters)
    assert (found["xc_model_swaps_total"], found["xc_model_load_seconds"]) == (2, 0.25)
    assert found['xc_model_info{version="2"}'] == 1 and 'xc_model_info{version="1"}' not in found


def test_each_path_has_the_seconds_of_its_requests(running: Running) -> None:
    running.ask(text="falcon")
    running.ask(text="falcon")
    running.client.get("/ready")
    counts = {path: running.metric(f'xc_request_seconds_count{{path="{path}"}}') for path in ("/predict", "/ready")}
    assert counts == {"/predict": 2, "/ready": 1}
    assert 0 < running.metric('xc_request_seconds_sum{path="/predict"}') < 60


def test_the_largest_probability_of_each_text_counts_wherever_the_dial_put_its_label() -> None:
    def label(probability: float | None) -> Explained:
        return Explained(0, "u", "t", 1.0, probability, (), None, 0.0)

    meters = Meters()
    meters.answered([[label(0.25), label(0.75), label(0.5)], [], [label(None)]])
    found = read(meters)
    assert (found["xc_largest_probability_count"], found["xc_largest_probability_sum"]) == (1, 0.75)
    assert found["xc_texts_without_label_total"] == 1, "a model without probabilities gives labels all the same"
