"""``xc predict``: answers, input and refusals."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.conftest import NGAME, TOY, TOY_SETTINGS, Xc, entry, offered, spoil
from tests.conftest import TOPICS
from xc_core.chain import Workspace
from xc_core.cli.predict import predict
from xc_core.infer.bundle import open_predictor
from xc_core.infer.champion import in_folder
from xc_core.infer.predictor import Prediction, Predictor


def test_predict_prints_each_text_with_its_labels(xc: Xc, ready: Workspace) -> None:
    ended = xc("predict", *NGAME, "-k", "2", "falcon", "castle0 castle1")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert [lines[0], lines[3]] == ["falcon", "castle0 castle1"]
    assert re.fullmatch(r"  +-?\d+\.\d{3}  [ \d]{3}%  falcon  \[L5\]", lines[1])
    assert re.fullmatch(r"  +-?\d+\.\d{3}  [ \d]{3}%  castle  \[L1\]", lines[4])
    assert len(lines) == 6


def test_a_least_probability_shortens_answers_and_is_noted_if_nothing_is_left(xc: Xc, ready: Workspace) -> None:
    asked = ("predict", *NGAME, "-k", "10", "--json", "falcon")
    every = json.loads(xc(*asked).out)
    least = every[1]["probability"]
    ended = xc(*asked, "--min-probability", least)
    assert json.loads(ended.out) == [one for one in every if one["probability"] >= least]
    assert len(json.loads(ended.out)) < 10
    assert ended.err == ""
    nothing = xc(*asked, "--min-probability", "0.9999")
    note = "note: no label with a probability of 0.9999 or more for 1 of 1 text\n"
    assert (nothing.out, nothing.err) == ("[]\n", note)
    xc(*asked, "--min-probability", "1.5").refused(64, "min_probability 1.5")
    xc("predict", *NGAME, "-k", "0", "--min-probability", "0.5", "falcon").refused(64, "k 0")


def test_an_answer_that_ends_at_k_although_more_labels_are_likely_has_a_note(xc: Xc, ready: Workspace) -> None:
    asked = ("predict", *NGAME, "--json", "falcon", "castle0 castle1")
    every = [json.loads(line) for line in xc(*asked, "-k", "10").out.splitlines()]
    least = every[0][2]["probability"]
    reach = [sum(one["probability"] >= least for one in labels) for labels in every]
    for k in (2, reach[0] - 1, reach[0], 10):
        ended = xc(*asked, "-k", k, "--min-probability", least)
        assert [len(json.loads(line)) for line in ended.out.splitlines()] == [min(k, one) for one in reach]
        texts = sum(one > k for one in reach)
        note = f"a probability of {least:g} or more for {texts} text{'s' * (texts > 1)}; a larger -k shows them\n"
        assert (f"note: more than {k} label" in ended.err and note in ended.err) == (texts > 0)
        assert ("larger -k" in ended.err) == (texts > 0)


@pytest.mark.parametrize(("probability", "shown"), [(0.496, " 49%"), (0.9996, " 99%"), (0.0004, " <1%"), (1.0, "100%")])
def test_a_probability_is_not_shown_as_more_than_it_is(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch, probability: float, shown: str
) -> None:
    """49.6 % was shown as 50 %, but the label was not in an answer above 0.5; 99.96 % was shown as 100 %."""
    monkeypatch.setattr(Predictor, "predict", lambda *_: [[Prediction(0, "L1", "castle", 0.5, probability)]])
    assert xc("predict", *NGAME, "falcon").out.splitlines()[1] == f"    0.500  {shown}  castle  [L1]"


def test_a_model_that_was_packed_before_the_last_evaluation_answers_with_a_note(xc: Xc, own: Workspace) -> None:
    assert xc("predict", *NGAME, "falcon").err == ""
    other = [*TOY_SETTINGS, "--set", "fusion.rule.depth=2"]
    assert xc("train", *NGAME, *other, "--until", "evaluation").code == 0
    ended = xc("predict", *NGAME, "falcon")
    assert ended.code == 0
    assert ended.err.startswith("note: this model is out of date (fusion changed since it was packed)")
    packing = "xc run model --dataset toy --recipe ngame"
    assert ended.err.endswith(f"Rebuild it: {packing}\n")
    assert xc(*packing.split()[1:]).code == 0
    assert xc("predict", *NGAME, "falcon").err == ""
    shutil.rmtree(own.folder("fusion", "toy", "ngame"))
    assert xc("predict", *NGAME, "falcon").err == "", "a machine that serves need not have the rest"


def test_predict_prints_json_that_has_the_same_labels(xc: Xc, ready: Workspace) -> None:
    ended = xc("predict", *NGAME, "--json", "-k", "3", *TOPICS)
    answers = [json.loads(line) for line in ended.out.splitlines()]
    assert [answer[0]["title"] for answer in answers] == list(TOPICS)
    names = {"label", "uid", "title", "score", "probability"}
    assert all(set(label) == names for answer in answers for label in answer)
    assert [len(answer) for answer in answers] == [3] * len(TOPICS)


@pytest.fixture
def dialled(ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Predictor]:
    """Let ``xc predict`` open the model with a dial that prefers labels with higher ids."""
    predictor = open_predictor(ready.folder("model", "toy", "ngame"))
    fusion = predictor.ranker.fusion
    assert fusion.dial is not None
    steep = replace(fusion.dial, log_weight_L=np.arange(len(TOPICS), dtype=np.float32))

    def with_reach(reach: float) -> Predictor:
        turned = replace(fusion, dial=replace(steep, reach=reach))
        found = replace(predictor, ranker=replace(predictor.ranker, fusion=turned))
        monkeypatch.setattr("xc_core.infer.bundle.open_predictor", lambda *_: found)
        return found

    return with_reach


def test_predict_turns_the_dial(xc: Xc, dialled: Callable[[float], Predictor]) -> None:
    predictor, text = dialled(1.0), "castle0 castle1 river0"
    answers = []
    for tail in (None, 0.0, 1.0):
        ended = xc("predict", *NGAME, "--json", *(() if tail is None else ("--tail", tail)), text)
        answers.append(json.loads(ended.out))
        assert answers[-1] == [asdict(label) for label in predictor.predict([text], tail=tail)[0]]
    assert answers[0] == answers[1] != answers[2]
    xc("predict", *NGAME, "--tail", 1.5, text).refused(64, "tail 1.5")


@pytest.mark.parametrize("reach", [0.0, 0.5])
def test_predict_notes_a_dial_that_changes_nothing(xc: Xc, dialled: Callable[[float], Predictor], reach: float) -> None:
    dialled(reach)
    notes = [xc("predict", *NGAME, *tail, "falcon").err for tail in ((), ("--tail", "0"), ("--tail", "0.5"))]
    assert notes[:2] == ["", ""]
    assert ("--tail has no effect on this model" in notes[2]) == (reach == 0)


def test_no_answer_has_a_minus_before_zero(xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = SimpleNamespace(predict=lambda *_: [[Prediction(0, "L0", "river", -0.0001, None)]])
    tiny.ranker = SimpleNamespace(num_labels=1)
    monkeypatch.setattr("xc_core.infer.bundle.open_predictor", lambda *_: tiny)
    assert xc("predict", *NGAME, "-k", 1, "falcon").out == "falcon\n    0.000  river  [L0]\n"


def test_json_stays_json_if_the_output_lacks_a_character(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Latin-1 terminal prints other text with \\U0001f600, which no JSON has."""
    title = "caf\u00e9 \u2603 \U0001f600"
    model = SimpleNamespace(predict=lambda *_: [[Prediction(0, "L0", title, 1.0, None)]])
    model.ranker = SimpleNamespace(num_labels=1)
    monkeypatch.setattr("xc_core.infer.bundle.open_predictor", lambda *_: model)
    for encoding, shown in (("utf-8", True), ("latin-1", False)):
        out = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", out)
        xc("predict", *NGAME, "--json", "-k", 1, "falcon")
        out.flush()
        printed = out.buffer.getvalue().decode(encoding)
        assert json.loads(printed)[0]["title"] == title
        assert (title in printed) is shown


def test_predict_says_on_a_terminal_that_it_waits_for_texts(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without texts it waited without a word."""
    waits = "texts, one a line; Ctrl-D ends them"
    assert waits not in xc("predict", *NGAME, stdin=b"falcon\n").err
    terminal = type("Terminal", (io.TextIOWrapper,), {"isatty": lambda stream: True})
    monkeypatch.setattr("tests.cli.conftest.io", SimpleNamespace(TextIOWrapper=terminal, BytesIO=io.BytesIO))
    assert waits in xc("predict", *NGAME, stdin=b"falcon\n").err


@pytest.mark.parametrize("stdin", ["falcon\ncastle\n", "falcon\r\ncastle", "falcon\ncastle"])
def test_predict_reads_lines_of_the_standard_input(xc: Xc, ready: Workspace, stdin: str) -> None:
    ended = xc("predict", *NGAME, "--json", stdin=stdin.encode())
    assert [json.loads(line)[0]["title"] for line in ended.out.splitlines()] == ["falcon", "castle"]


def test_predict_notes_texts_without_words(xc: Xc, ready: Workspace) -> None:
    ended = xc("predict", *NGAME, "--json", "-k", "2", "falcon", " \u200b", "")
    assert (ended.code, ended.err) == (0, "note: 2 texts without words, the first is text 2\n")
    assert xc("predict", *NGAME, "-k", "2", "falcon", "").err == "note: 1 text without words, the first is text 2\n"


def test_predict_notes_answers_that_are_short(xc: Xc, ready: Workspace) -> None:
    labels = len(TOPICS)
    ended = xc("predict", *NGAME, "--json", "-k", "100000", "falcon", "castle")
    found = [len(json.loads(line)) for line in ended.out.splitlines()]  # the processor decides how many are proposed
    notes = [f"note: the model has {labels} labels, fewer than the 100,000 asked for"]
    if short := [size for size in found if size < labels]:
        notes += [
            f"note: fewer than {labels} labels for {len(short)} of 2 texts, at least {min(short)}: "
            "only labels that a score proposes are ranked"
        ]
    assert (ended.code, len(found), ended.err.splitlines()) == (0, 2, notes)


def test_as_many_labels_as_the_model_has_may_be_asked_for(xc: Xc, ready: Workspace) -> None:
    assert "fewer than the" not in xc("predict", *NGAME, "-k", len(TOPICS), "falcon").err


def test_a_model_of_fewer_labels_than_the_default_of_k_is_no_note(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (option,) = (option for option in predict.params if option.name == "k")
    monkeypatch.setattr(option, "default", 100_000)
    assert "fewer than the" not in xc("predict", *NGAME, "falcon").err
    assert "fewer than the 100,000" in xc("predict", *NGAME, "-k", "100000", "falcon").err


@pytest.mark.parametrize(("lines", "size", "code"), [(2, 13, 0), (1, 13, 64), (2, 12, 64)])
def test_the_standard_input_may_have_as_much_as_its_limits(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch, lines: int, size: int, code: int
) -> None:
    monkeypatch.setattr("xc_core.cli.predict._MAX_LINES", lines)
    monkeypatch.setattr("xc_core.cli.predict._MAX_BYTES", size)
    assert xc("predict", *NGAME, stdin=b"falcon\nriver\n").code == code


def test_predict_asks_any_bundle(xc: Xc, ready: Workspace) -> None:
    ended = xc("predict", "--bundle", ready.folder("model", "toy", "ngame"), "--json", "falcon")
    assert json.loads(ended.out)[0]["title"] == "falcon"


def test_predict_asks_the_champion_where_no_recipe_is_named(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ready.folder("model", "toy", "ngame")
    offered(monkeypatch, "xc.champions", entry("none", lambda *_: None),
            entry("one", lambda workspace, dataset: in_folder(folder) if dataset == "toy" else None))  # fmt: skip
    assert json.loads(xc("predict", *TOY, "--json", "falcon").out)[0]["title"] == "falcon"


def test_predict_notes_a_champion_that_nobody_could_confirm(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    last = replace(in_folder(ready.folder("model", "toy", "ngame")), version="7", unconfirmed="no answer from MLflow")
    offered(monkeypatch, "xc.champions", entry("one", lambda *_: last))
    (tmp_path / "texts.jsonl").write_text('{"text": "falcon"}\n')
    files = ("--input", tmp_path / "texts.jsonl", "--output", tmp_path / "labels.jsonl")
    for ended in (xc("predict", *TOY, "falcon"), xc("predict", *TOY, *files)):
        assert ended.code == 0
        assert "note: no answer from MLflow; version 7, the champion when the registry last answered, is asked\n" in (
            ended.err
        )


def test_predict_says_that_there_is_no_champion(xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.champions", entry("none", lambda *_: None))
    xc("predict", *TOY, "falcon").refused(66, "no champion of toy", "xc promote --dataset toy")


@pytest.mark.parametrize(
    ("arguments", "stdin", "found"),
    [
        (["-k", "0", "a"], b"", "k 0"),
        (["-k", "-3", "a"], b"", "k -3"),
        ([], b"", "no text"),
        ([], b"a" * ((16 << 20) + 1), "more than 16,777,216 bytes or 100,000 lines on the standard input"),
        ([], b"a\n" * 100_001, "more than 16,777,216 bytes or 100,000 lines on the standard input"),
        ([], b"ok\nf\xfcr\n", "bytes that are not UTF-8 in line 2 of the standard input"),
        (["ab\udcff"], b"", "half a character (U+DCFF) as character 3 of text 1"),
    ],
)
def test_predict_refuses_what_it_cannot_answer(
    xc: Xc, ready: Workspace, arguments: list[str], stdin: bytes, found: str
) -> None:
    ended = xc("predict", *NGAME, *arguments, stdin=stdin)
    ended.refused(64, found)
    assert not ended.out


def test_predict_refuses_a_spoilt_model(xc: Xc, own: Workspace) -> None:
    spoil(own)
    ended = xc("predict", *NGAME, "falcon")
    ended.refused(74, "encoder.safetensors, whose content has changed since it was written", "xc run model --force")


@pytest.mark.parametrize("command", [("predict", "a text"), ("serve", "--port", "0")])
def test_a_folder_without_a_packed_model_is_to_be_named_not_built(
    xc: Xc, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """The advice was `xc run model --force`, also for a folder that is mistyped."""
    asked = (*command, "--bundle", tmp_path / "recipe")
    xc(*asked).refused(66, "no artefact at", "pass --bundle data/DATASET/RECIPE/model, or a copy of such a folder")
    (tmp_path / "recipe" / "model").mkdir(parents=True)
    xc(*asked).refused(66, "no artefact at", f"pass --bundle {tmp_path / 'recipe' / 'model'}")
