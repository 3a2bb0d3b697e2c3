"""Rows of the leaderboard: the lowest recall of all indexes, what was learnt from and spent; groups by the encoder."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import open_corpus, run_until
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.classifiers import LabelTables
from xc_core.data.history import TrainedOn
from xc_core.encoders import TrainedEncoder
from xc_core.fusion import FittedFusion
from xc_core.metrics.evaluation import Evaluation, LearntFrom
from xc_core.metrics.leaderboard import Leaderboard
from xc_core.metrics.names import TABLE
from xc_core.metrics.ranking import PerDocument
from xc_core.params import deep_merged
from xc_core.stages import leaderboard
from xc_core.stages.evaluation import _learnt_from

LEARNT = LearntFrom(
    encoder=TrainedOn(train=90, epochs=3.0),
    classifier=TrainedOn(train=90, validation=10, epochs=30.0),
    joint=False,
    fitted=True,
    published=100,
)


def row(costs: dict[str, dict[str, float]], recalls: dict[str, float] | None = None, **learnt: Any) -> dict[str, Any]:
    intervals = {"P_at_1": [1.0, 2.0], "PSP_at_5": [3.0, 4.0]}
    found: Any = SimpleNamespace(
        metrics=dict.fromkeys(TABLE, 1.5),
        report={"intervals": intervals, "index_recall": recalls or {}},
        learnt=LearntFrom(**{**vars(LEARNT), **learnt}),
    )
    return leaderboard._row("ngame", found, {stage: {} for stage in STAGES} | costs, {"a Xeon"})


@pytest.mark.parametrize(("recalls", "shown"), [({"label_text": 1.0, "classifier": 0.93}, 0.93), ({}, None)])
def test_the_index_recall_of_a_recipe_is_the_lowest_of_its_scores(recalls: dict[str, float], shown: Any) -> None:
    assert row({}, recalls)["index_recall"] == shown


def test_a_row_says_what_was_learnt_from_and_spent() -> None:
    trained = {"encoder": {"train_seconds": 30.0}, "classifier": {"train_seconds": 12.0, "mining_seconds": 4.2}}
    found = row({**trained, "scores": {"seconds": 20.0}, "fusion": {"seconds": 3.0}})
    wanted = {
        "group": "encoder trained on 2 to 4 times the train file",
        "encoder_learnt_from": "train",
        "encoder_documents": 270,
        "encoder_seconds": 30.0,
        "classifier_learnt_from": "train and validation",
        "classifier_documents": 3000,
        "classifier_seconds": 12.0,
        "scores_seconds": 20.0,
        "fusion_seconds": 3.0,
        "train_seconds": 42.0,
        "mining_share": 0.1,
        "machines": ["a Xeon"],
    }
    assert {name: found[name] for name in wanted} == wanted


def test_trainings_of_no_time_are_not_those_without_a_time() -> None:
    none = {"encoder": {"train_seconds": 0.0}}
    assert (row(none)["train_seconds"], row(none)["mining_share"]) == (0.0, None)


def test_rows_trained_with_the_encoder_learnt_what_it_learnt() -> None:
    found = row({}, joint=True, classifier=TrainedOn(train=90))
    assert (found["classifier_learnt_from"], found["classifier_documents"]) == ("with the encoder", 0)
    assert found["encoder_seconds"] is found["train_seconds"] is None


def p_value(better: int, worse: int, equal: int = 0) -> float:
    """Return the p-value of a recipe that is right on ``better`` documents where the other is wrong, and so on."""
    wins = np.repeat([1.0, -1.0, 0.0], [better, worse, equal])

    def of(right: np.ndarray) -> Any:
        figures = PerDocument({"P_at_1": right.astype(np.float64)}, {"P_at_1": np.ones(len(right))})
        return SimpleNamespace(figures=lambda: figures)

    return leaderboard._p_value(of(wins >= 0), of(wins <= 0))


@pytest.mark.parametrize(("better", "worse"), [(3, 0), (8, 2), (30, 20), (20, 30)])
def test_a_p_value_is_that_of_the_exact_sign_test(better: int, worse: int) -> None:
    """If both recipes are equally good, each document on which they differ is a toss of a coin."""
    exact = binomtest(better, better + worse).pvalue
    error = 4 * math.sqrt(exact * (1 - exact) / 2000) + 1 / 2001
    assert p_value(better, worse, equal=50) == pytest.approx(exact, abs=error)


def test_equal_recipes_have_p_1_and_clear_differences_the_lowest_that_resamples_can_give() -> None:
    assert p_value(0, 0, equal=9) == 1.0
    assert p_value(7, 7) > 0.9
    assert p_value(100, 0) == p_value(0, 100) == 1 / 2001


def test_an_evaluation_without_figures_per_document_has_no_p_value() -> None:
    none: Any = SimpleNamespace(figures=lambda: None)
    assert math.isnan(leaderboard._p_value(none, none))


def ranked(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of the stage for these evaluations, and what it reports."""
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    monkeypatch.setattr(leaderboard, "write_leaderboard", lambda build, made, dataset: rows.extend(made))
    others = SimpleNamespace(
        recipes=list(found),
        open=lambda recipe, kind: found[recipe],
        costs=lambda recipe: {stage: {} for stage in STAGES},
        machines=lambda recipe: {"a Xeon"},
    )
    context: Any = SimpleNamespace(
        experiments=others, build=None, run=SimpleNamespace(dataset="toy"), report=lines.append
    )
    leaderboard.run(context)
    return rows, lines


def evaluated(precision: float | None, figures: PerDocument | None = None, epochs: float = 3.0) -> Any:
    """Return an evaluation with this P@1, of a recipe whose encoder was trained for so many epochs."""
    report = {"intervals": {"P_at_1": [1.0, 2.0], "PSP_at_5": [3.0, 4.0]}, "index_recall": {}}
    learnt = replace(LEARNT, encoder=TrainedOn(train=90, epochs=epochs))
    metrics = dict.fromkeys(TABLE, 1.5) | {"P_at_1": precision}
    return SimpleNamespace(metrics=metrics, report=report, learnt=learnt, figures=lambda: figures)


def test_the_best_of_a_group_has_the_highest_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes of the toy world may be equally good, so its leaderboard below does not show it."""
    precisions = {"ngame": 40.0, "house": 60.0, "renee": 50.0, "dpr": None}
    rows, lines = ranked({recipe: evaluated(value) for recipe, value in precisions.items()}, monkeypatch)
    assert [row["recipe"] for row in rows] == ["house", "renee", "ngame", "dpr"]
    assert [row["p_value"] is None for row in rows] == [True, False, False, False]
    assert lines[0].startswith("leaderboard: 4 recipes, best by P@1: house (")


def test_p_compares_a_recipe_with_the_best_of_its_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two trained recipes are right on the same 60 of 100 documents, the untrained one on none of these."""
    right = np.repeat([1.0, 0.0], [60, 40])
    trained, other = (PerDocument({"P_at_1": each}, {"P_at_1": np.ones(100)}) for each in (right, 1 - right))
    found = {
        "words": evaluated(40.0, other, epochs=0.0),
        "ngame": evaluated(60.0, trained),
        "dpr": evaluated(60.0, trained),
    }
    rows, _ = ranked(found, monkeypatch)
    assert {row["recipe"]: row["p_value"] for row in rows} == {"words": None, "ngame": None, "dpr": 1.0}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Three recipes: two of the same budget, and one whose encoder is not trained."""
    made = make_workspace(tmp_path_factory.mktemp("groups"))
    for recipe, epochs in (("ngame", 4.0), ("dpr", 4.0), ("adversarial", 0.0)):
        small = deep_merged(TOY_CHANGES, {"encoder": {"epochs": epochs}})
        small["classifier"] = {"epochs": 2.0, "order": {"batch_size": 32}}
        del small["encoder"]["order"]
        made.params.declare_experiment("toy", recipe, recipe, small)
        run_until(made, "evaluation", recipe)
    run_stage(made, "leaderboard", "toy")
    return made


def test_recipes_are_grouped_and_tested_against_the_best_of_their_group(workspace: Workspace) -> None:
    found = Leaderboard.open(workspace.folder("leaderboard", "toy"))
    rows = found.rows.to_dicts()
    corpus = open_corpus(workspace)
    untrained, trained = "encoder not trained", "encoder trained on 2 to 4 times the train file"
    assert [row["group"] for row in rows] == [untrained, trained, trained]
    assert rows[0]["recipe"] == "adversarial"
    assert [row["p_value"] is None for row in rows] == [True, True, False]
    assert rows[1]["P_at_1"] >= rows[2]["P_at_1"]
    assert [row["encoder_documents"] for row in rows] == [0, *[4 * len(corpus.rows("train"))] * 2]
    assert all(row[name] > 0 for row in rows for name in ("classifier_seconds", "scores_seconds", "fusion_seconds"))
    facts = artifacts.read_made(workspace.folder("leaderboard", "toy")).facts
    assert facts["best"] == {untrained: "adversarial", trained: rows[1]["recipe"]}
    assert [line for line in found.text.splitlines() if line.startswith("## ")] == [
        f"## {name[0].upper()}{name[1:]}" for name in (untrained, trained)
    ]
    assert "unknown machine" not in found.text
    assert "thread" in found.text.splitlines()[-1]


def test_an_evaluation_says_in_words_what_was_learnt_from(workspace: Workspace) -> None:
    corpus = open_corpus(workspace)
    train, published = len(corpus.rows("train")), len(corpus.published_rows())
    found = {name: Evaluation.open(workspace.folder("evaluation", "toy", name)) for name in ("ngame", "adversarial")}
    words = {name: evaluation.learnt.words() for name, evaluation in found.items()}
    assert words["ngame"] == {
        "encoder": f"{train} train documents, 4 epochs",
        "classifier": f"{published} train and validation documents, 2 epochs",
        "fusion": "chosen and fitted on validation documents that no score has seen",
    }
    assert words["adversarial"] == {
        "encoder": "not trained",
        "classifier": f"{train} train documents, 2 epochs",
        "fusion": "not fitted",  # its dial has no effect
    }


@pytest.mark.parametrize(
    ("reach", "words"),
    [(0.0, "not fitted"), (0.5, "not fitted; its dial is, on validation documents that no score has seen")],
)
def test_a_dial_without_effect_is_not_named(workspace: Workspace, reach: float, words: str) -> None:
    trained = workspace.open(TrainedEncoder, "toy", "adversarial")
    tables = workspace.open(LabelTables, "toy", "adversarial")
    fusion = workspace.open(FittedFusion, "toy", "adversarial")
    assert fusion.dial is not None
    fusion = replace(fusion, dial=replace(fusion.dial, reach=reach))
    assert _learnt_from(open_corpus(workspace), trained, tables, fusion, ()).words()["fusion"] == words
