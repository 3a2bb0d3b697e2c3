"""``xc compare``: paired differences of recipes and scores."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from tests.cli.conftest import NGAME, TOY, TOY_SETTINGS, Xc
from tests.conftest import ToyWorld
from tests.plugins.conftest import ROOT
from xc_core.chain import Workspace, run_stage
from xc_core.metrics import paired
from xc_core.metrics.paired import Difference


def test_compare_prints_paired_differences_of_recipes_and_scores(xc: Xc, ready: Workspace) -> None:
    same = xc("compare", *TOY, "ngame", "ngame:fusion")
    assert same.code == 0, same.err
    assert "P@1        +0.00   [-6.50, +6.50]   not clear" in same.out, "40 documents that do not differ"
    other = xc("compare", *TOY, "ngame", "ngame:label_text").out.splitlines()
    assert other[0] == "toy: ngame minus ngame:label_text, points of percent"
    assert [line.split()[0] for line in other[1:]] == [
        "P@1", "P@3", "P@5", "nDCG@1", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10",
    ]  # fmt: skip
    xc("compare", *TOY, "ngame", "ngame:classifer").refused(64, "nearest: 'classifier'", "fix the name")
    xc("compare", *TOY, "ngame", "npr").refused(
        66, "no evaluation of 'npr' on toy", "fix the name, or train it: xc train"
    )
    xc("compare", "--dataset", "tay", "ngame", "ngame").refused(66, "no dataset 'tay' in params.yaml (nearest: 'toy')")


def test_predictions_of_another_program_are_measured_as_the_page_says(
    ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/add-a-method.md."""
    page = (ROOT / "docs" / "add-a-method.md").read_text("utf-8")
    section = page.partition("## Predictions of another program")[2]
    code = re.search(r"^```python\n(.*?)^```", section, re.S | re.M)
    assert code is not None
    monkeypatch.chdir(ready.root)
    found: dict[str, Any] = {}
    exec(code[1].replace('"mine"', '"toy"').replace('"quick"', '"ngame"'), found)
    frequent = found["corpus"].published_train().frequency_L().argmax()
    share = found["corpus"].labels.rows(found["test"]).frequency_L()[frequent] / len(found["test"])
    assert found["found"]["metrics"]["P_at_1"] == pytest.approx(100 * share)
    assert len(found["texts"]) == len(found["train"]) and len(found["questions"]) == len(found["test"])


def test_no_difference_has_a_minus_before_zero(xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"R_at_10": Difference(-0.001, -0.0049, 0.3)}
    monkeypatch.setattr("xc_core.metrics.paired.differences", lambda *_: tiny)
    assert "R@10       +0.00   [+0.00, +0.30]   not clear" in xc("compare", *TOY, "ngame", "ngame:classifier").out


def test_compare_refuses_figures_of_documents_that_were_replaced(xc: Xc, own: Workspace) -> None:
    ToyWorld.make(documents=200).write(own.raw("toy"))
    run_stage(own, "corpus", "toy")
    xc("compare", *TOY, "ngame", "ngame:classifier").refused(76, "on another corpus", "xc train --dataset toy")


def test_figures_of_older_settings_are_noted(xc: Xc, own: Workspace) -> None:
    assert xc("compare", *TOY, "ngame", "ngame:classifier").err == ""
    other = [*TOY_SETTINGS, "--set", "fusion.rule.depth=2"]
    assert xc("train", *NGAME, *other, "--until", "fusion").code == 0
    evaluate = "xc run evaluation --dataset toy --recipe ngame"
    note = f"note: the evaluation of ngame is out of date (fusion changed). Evaluate again: {evaluate}\n"
    assert xc("compare", *TOY, "ngame", "ngame:classifier").err == note, "once"
    assert xc("report", *NGAME).err == note
    assert xc(*evaluate.split()[1:]).code == 0
    assert xc("compare", *TOY, "ngame", "ngame:classifier").err == ""


def test_a_figure_above_zero_means_that_the_first_is_better(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"better": 60.0, "worse": 50.0}
    monkeypatch.setattr("xc_core.cli.compare._figures", lambda workspace, dataset, name: figures[name])
    monkeypatch.setattr(paired, "differences", lambda a, b: {"P_at_1": Difference(a - b, a - b - 1, a - b + 1)})
    assert xc("compare", *TOY, "better", "worse").out.splitlines()[1] == "P@1       +10.00   [+9.00, +11.00]"
    assert xc("compare", *TOY, "worse", "better").out.splitlines()[1] == "P@1       -10.00   [-11.00, -9.00]"


def test_a_metric_that_no_test_document_defines_is_no_number(
    xc: Xc, ready: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = Difference(math.nan, math.nan, math.nan)
    monkeypatch.setattr(paired, "differences", lambda *models: {"PSP_at_1": unknown})
    ended = xc("compare", *TOY, "ngame", "ngame")
    assert ended.out.splitlines()[1:] == ["PSP@1          -   no test document has a label"]
