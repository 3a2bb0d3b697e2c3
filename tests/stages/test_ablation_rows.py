"""Each ablation row of an evaluation is what a model that has this score alone gives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import run_until
from xc_core.chain import Workspace, run_stage
from xc_core.cli.tables import metrics_table
from xc_core.metrics.evaluation import FUSION, Evaluation
from xc_core.params import deep_merged

JOINED: dict[str, Any] = {
    "label_text": {"search": False},
    "classifier": {"joined": True},
    "neighbours": {"nearest": 3},
    "label_words": {},
}
ALONE: dict[str, dict[str, Any]] = {
    "label_text": {"search": True},
    "classifier": {"joined": False},
    "neighbours": {"nearest": 3},
}
"""The settings with which a user serves each score of JOINED by itself."""
FUSION_OF_FEW = {"rule": "sum", "candidates": 2}
"""So few candidates that it matters who proposes them."""
UNTRAINED = {"encoder": {"epochs": 1.0}, "classifier": {"epochs": 1.0}}
"""Rows and texts that disagree about the best labels."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("ablation"))
    made.params.declare_experiment("toy", "ngame", "ngame", deep_merged(TOY_CHANGES, UNTRAINED))
    run_until(made, "classifier")
    return made


def evaluated(workspace: Workspace, scores: dict[str, Any]) -> Evaluation:
    changes = deep_merged(deep_merged(TOY_CHANGES, UNTRAINED), {"fusion": FUSION_OF_FEW})
    dropped = dict.fromkeys({"label_text", "classifier", "frequency"} - scores.keys())
    changes["scores"] = {**dropped, **scores}
    workspace.params.declare_experiment("toy", "ngame", "ngame", changes)
    for stage in ("scores", "fusion", "evaluation"):
        run_stage(workspace, stage, "toy", "ngame")
    return Evaluation.open(workspace.folder("evaluation", "toy", "ngame"))


@pytest.fixture(scope="module")
def report(workspace: Workspace) -> dict[str, Any]:
    return evaluated(workspace, JOINED).report


@pytest.mark.parametrize("name", ALONE)
def test_a_row_equals_a_model_with_this_score_alone(workspace: Workspace, report: dict[str, Any], name: str) -> None:
    served = evaluated(workspace, {name: ALONE[name]})
    assert report["ablation"][name] == served.metrics
    assert report["candidates"][name] == "its own search"


def test_the_joined_search_would_give_other_rows(workspace: Workspace, report: dict[str, Any]) -> None:
    """Otherwise the test above would not see whose candidates were ranked."""
    without_words = {name: own for name, own in JOINED.items() if name in ("label_text", "classifier")}
    rule = {"rule": {"kind": "sum", "add": ["classifier"]}}
    changes = deep_merged(deep_merged(TOY_CHANGES, UNTRAINED), {"fusion": {**FUSION_OF_FEW, **rule}})
    changes["scores"] = {"frequency": None, **without_words}
    workspace.params.declare_experiment("toy", "ngame", "ngame", changes)
    for stage in ("scores", "fusion", "evaluation"):
        run_stage(workspace, stage, "toy", "ngame")
    found = Evaluation.open(workspace.folder("evaluation", "toy", "ngame"))
    assert found.metrics != found.report["ablation"]["classifier"] == report["ablation"]["classifier"]


def test_a_row_of_a_score_that_cannot_search_says_so(workspace: Workspace, report: dict[str, Any]) -> None:
    candidates = report["candidates"]
    assert candidates.keys() == report["ablation"].keys()
    assert {candidates[name] for name in ("label_words", "sum", FUSION)} == {"all scores"}
    table = metrics_table(evaluated(workspace, JOINED), "toy").splitlines()
    assert table[1].endswith("candidates of")
    ends = {line.split()[0]: line for line in table}
    assert ends["classifier"].endswith("its own search")
    assert ends["sum"].endswith("all scores")
