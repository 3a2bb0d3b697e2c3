"""The HTML report: complete, escaped, without scripts and without anything from outside."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from xc_core.metrics.calibration import calibration
from xc_core.metrics.names import NARROW
from xc_core.metrics.page import Page

HOSTILE = "<script>alert(1)</script><img src='http://127.0.0.1:9/p.png' onerror=x>\"'&\x9b31m\u202e"
BIN = {"labels": 3.0, "positives": 40.0, "P_at_5_points": 1.5, "recall_at_1": 10.0, "recall_at_5": 50.0}


def page(text: str = "a text", **changes: Any) -> Page:
    found = dict.fromkeys(NARROW, 12.345)
    label = {"label": text, "true": True, "fused": 0.5, "scores": {"label_text": 0.25, "classifier": None}}
    example = {"uid": text, "text": text, "right": True, "predicted": [label], "true": [text]}
    wrong = {**example, "right": False, "predicted": [{**label, "true": False}], "uid": "second"}
    report = {
        "documents": 1234,
        "positives": 99,
        "metrics": {**found, "P_at_1": float("nan")},
        "intervals": dict.fromkeys(NARROW, (1.0, 2.0)),
        "bins": {name: {**BIN, "recall_at_10": float("nan")} for name in ("tail", "torso", "head")},
        "ablation": {"fusion": found, "label_text": found},
        "candidates": {"fusion": "all scores"},
        "confusions": [{"named": text, "missed": "other", "documents": 7}],
    }
    content: dict[str, Any] = {
        "dataset": "toy",
        "recipe": "ngame",
        "digest": "d" * 64,
        "report": report,
        "examples": [example, wrong],
        "learnt": {"encoder": text},
        "card": {text: text},
        "costs": {
            "encoder": {"seconds": 12.0, "train_seconds": 11.0},
            "evaluation": {"latency_p50_ms": 7.5},
            "tokens": {},
        },
        "machines": [text],
        "pictures": {text: b"\x89PNG"},
    }
    return Page(**{**content, **changes})


class Reader(HTMLParser):
    """Collects tags, attributes that start something, and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href") or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def test_no_text_of_the_data_becomes_markup() -> None:
    plain, hostile = read(page().html()), read(page(HOSTILE).html())
    assert hostile.tags == plain.tags
    assert "script" not in hostile.tags
    assert [load[:14] for load in hostile.loads] == ["src=data:image"]
    assert hostile.text.count("<script>alert(1)</script>") >= 8  # as text, wherever the data say it
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page(HOSTILE).html())
    assert "default-src 'none'" in page().html()


def test_the_page_shows_every_part() -> None:
    text = " ".join(read(page().html()).text.split())
    for words in (
        "toy / ngame",
        "1,234 test documents with 99 true labels",
        "P@1 - [1.00, 2.00]",  # a metric without a value
        "PSP@5 12.35 [1.00, 2.00]",
        "tail 0 to 3 3 40 1.50 10.00 50.00 -",
        "head 21 or more",
        "label_text 12.35",
        "a text other 7",
        "✓ a text 0.5 0.25 -",
        "✗ a text 0.5 0.25 -",
        "encoder 12 11 - -",
        "median 7.5 ms",
    ):
        assert words in text, words
    assert text.index("✓") < text.index("Examples with a wrong first label") < text.index("✗")
    assert "tokens -" not in text  # a stage without costs


@pytest.mark.parametrize("changes", [{"examples": []}, {"pictures": {}}, {"costs": {}}, {"machines": []}])
def test_parts_may_be_missing(changes: dict[str, Any]) -> None:
    assert "</html>" in page(**changes).html()


def test_an_old_report_without_confusions_is_shown() -> None:
    own = page()
    report = {name: value for name, value in own.report.items() if name != "confusions"}
    assert "No pair of a wrong first label" in replace(own, report=report).html()


def test_a_report_with_calibration_has_a_row_per_threshold() -> None:
    probability = np.array([[0.95, 0.55], [0.55, 0.15]], np.float32)
    positive = np.array([[True, True], [False, False]])
    own = page()
    assert "How sure the model is" not in own.html(), "an evaluation of 0.2.0 has no probabilities"
    content = {**own.report, "calibration": calibration(probability, positive, 4)}
    text = " ".join(read(replace(own, report=content).html()).text.split())
    assert "0.5 66.67 50.00 57.14 1.50 0.00 0.6" in text
    assert "0.9 100.00 25.00 40.00 0.50 50.00 Among" in text
    assert "0.5 to 0.6 2 55.00 50.00 0.6 to 0.7 0 - - " in text
    assert "0.9 to 1.0 1 95.00 100.00" in text
    assert "are 7.50 points from" in text


def test_long_texts_are_cut() -> None:
    own = {"learnt": {}, "card": {}, "machines": [], "pictures": {}}
    assert len(page("word " * 10_000, **own).html()) < len(page(**own).html()) + 5_000


def test_the_first_row_of_the_ablation_is_the_whole_model() -> None:
    rows = dict.fromkeys(("classifier", "fusion", "label_text", "sum"), dict.fromkeys(NARROW, 1.0))  # as in the file
    table = page(report={**page().report, "ablation": rows}).html().split("What each score gives")[1]
    named = re.findall(r"<tr><td>(\w+)</td>", table.split("</table>")[0])
    assert named == ["fusion", "classifier", "label_text", "sum"]
