"""Every recipe in the table: composed of known parts, differing where it says, and able to learn the toy world."""

from __future__ import annotations

import dataclasses
import math
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import open_corpus, open_tables, run_until
from xc_core.chain import STAGES, run_stage
from xc_core.classifiers import TableHead
from xc_core.errors import ConfigError
from xc_core.fusion import FittedFusion
from xc_core.fusion.rules import WithTrees
from xc_core.infer.bundle import open_predictor
from xc_core.losses import Loss
from xc_core.metrics.evaluation import Evaluation
from xc_core.params import plain
from xc_core.recipes import RECIPES, Recipe
from xc_core.sampling import Clustered, Documents, Importance
from xc_core.sampling.hard import HardNegatives
from xc_core.scores import Scores
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.classifier import ClassifierSettings
from xc_core.train.encoder_settings import EncoderSettings
from xc_core.train.heads import BothHeads, ByBoth, ByRow, ByText, RowHead, TextHead

ABLATIONS = {
    "ance": {"encoder", "classifier", "negatives"},
    "dpr": {"encoder"},
    "o-sgd": {"encoder"},
    "tas": {"encoder"},
}
"""The stages in which each of NGAME's ablations differs from it."""


@pytest.mark.parametrize("name", RECIPES.names())
def test_a_recipe_names_itself_its_source_and_its_module(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.name == name
    assert recipe.paper
    assert recipe.module.startswith("xc_core.recipes.")


def differing(ours: Any, theirs: Any) -> set[str]:
    return {f.name for f in dataclasses.fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name)}


@pytest.mark.parametrize("classifier", [{"epochs": 0.0}, {"negatives": "uniform"}])
def test_the_score_of_the_noise_is_refused_if_no_training_draws_from_one(classifier: dict[str, Any]) -> None:
    """Else the stage scores would refuse it, after the encoder was trained."""
    adversarial = RECIPES["adversarial"]
    with pytest.raises(ConfigError, match="the score 'noise' with a classifier whose negatives are drawn from no dist"):
        adversarial.changed({"classifier": classifier})
    adversarial.changed({"classifier": classifier, "scores": {"noise": None}})


def test_hard_negatives_that_are_not_mined_are_refused_if_a_classifier_trains_on_them() -> None:
    ngame = RECIPES["ngame"]
    with pytest.raises(ConfigError, match=r"stored hard negatives, and negatives\.k = 0"):
        ngame.changed({"classifier": {"negatives": "stored"}})
    ngame.changed({"classifier": {"negatives": "stored"}, "negatives": {"k": 5}})
    ngame.changed({"classifier": {"negatives": "stored", "epochs": 0.0}})


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_of_ngame_differs_only_in_how_negatives_are_found(name: str) -> None:
    """In M1; ``ance`` also trains M4 on the mined hard negatives of M2."""
    ours, base = RECIPES[name], RECIPES["ngame"]
    assert differing(ours, base) == {"name", "paper", "module"} | ABLATIONS[name]
    assert set() < differing(ours.encoder, base.encoder) <= {"order", "negatives", "loss"}
    assert differing(ours.classifier, base.classifier) <= {"order", "negatives"}
    assert differing(ours.negatives, base.negatives) <= {"k"}


def test_the_variants_with_drawn_labels_train_m1_of_ngame_and_one_does_not_train_it() -> None:
    for name in ("adversarial", "uniform-ns", "freq-ns", "nce", "ove", "anr"):
        assert RECIPES[name].encoder == RECIPES["ngame"].encoder
    variant = RECIPES["adversarial-pretrained"]
    assert differing(variant, RECIPES["adversarial"]) == {"name", "paper", "encoder"}
    assert variant.encoder.epochs == 0


def test_tas_has_the_clusters_of_the_last_epoch_of_ngame() -> None:
    ours, base = RECIPES["tas"].encoder.order, RECIPES["ngame"].encoder
    assert isinstance(ours, Clustered)
    assert isinstance(base.order, Clustered)
    last = math.ceil(base.epochs) - 1
    assert base.order.due(0)
    assert [ours.size_at(epoch) for epoch in (0, last)] == [base.order.size_at(last)] * 2
    assert [epoch for epoch in range(last + 1) if ours.due(epoch)] == [0]


def test_astra_and_its_strategies_have_as_many_negatives_in_the_proportions_of_the_paper() -> None:
    """k_r : k_h is between 10:1 and 5:1 (appendix B.2); table 5 keeps the number of negatives."""
    own = RECIPES["astra"].encoder.negatives
    assert isinstance(own, Importance)
    assert 5 <= own.uniform / own.hard <= 10
    for name in RECIPES.names():
        if name.startswith("astra"):
            other = RECIPES[name].encoder.negatives
            assert isinstance(other, Importance)
            assert other.hard + other.uniform == own.hard + own.uniform


def test_no_two_recipes_are_the_same_method() -> None:
    parts = ("encoder", "negatives", "classifier", "scores", "fusion")
    methods = {str([plain(getattr(RECIPES[name], part)) for part in parts]): name for name in RECIPES.names()}
    assert sorted(methods.values()) == RECIPES.names()


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The trainings that run in a test, by the name of their stage."""
    ran: dict[str, list[Any]] = {"encoder": [], "classifier": []}
    restore = Checkpoints.restore
    monkeypatch.setattr(Checkpoints, "restore", lambda own, task: ran[task.name].append(task) or restore(own, task))
    return ran


def settings(loss: Any) -> dict[str, Any]:
    """Return the kind of a loss and its numbers, those of its parts included, without what it remembers."""
    found: dict[str, Any] = {"kind": type(loss).__name__}
    for name, value in vars(loss).items():
        if dataclasses.is_dataclass(value):
            found[name] = settings(value)
        elif isinstance(value, int | float):
            found[name] = value
    return found


def check_order(task: Any, stage: EncoderSettings | ClassifierSettings, documents: Documents) -> None:
    """The order of a training is the one that its stage names, with its settings and seed."""
    order, built = task.order, cast(Any, stage.order).build(documents, stage.seed)
    assert type(order) is type(built)
    if isinstance(stage.order, Clustered):
        assert order.settings == stage.order
    else:
        assert order.batch_size == getattr(stage.order, "batch_size", None)
    assert order.seed == stage.seed


def check_parts(task: Any, stage: EncoderSettings | ClassifierSettings, documents: Documents) -> None:
    """Order and negatives of a training are those that its stage names, with their settings and seeds."""
    check_order(task, stage, documents)
    assert type(task.negatives) is type(cast(Any, stage.negatives).build(documents, stage.seed))
    assert (task.negatives.settings, task.negatives.seed) == (stage.negatives, stage.seed)


def table_of(head: TableHead) -> list[Any]:
    """Return what a table is trained with: loss, divisor of the scores, settings of the rows."""
    return [settings(head.loss), head.divisor, head.table.config]


def text_of(head: TextHead) -> list[Any]:
    """Return what label texts are trained with."""
    return [settings(head.loss), head.cache]


def head_of(head: Any) -> dict[str, Any]:
    """Return what the parts of M1's head are trained with."""
    if isinstance(head, BothHeads):
        return {"share": head.share, "texts": text_of(head.texts), "rows": table_of(head.table.rows)}
    return {"rows": table_of(head.rows)} if isinstance(head, RowHead) else {"texts": text_of(head)}


def expected_head(encoder: EncoderSettings) -> dict[str, Any]:
    """Return the same as ``head_of``, from the settings."""

    def built(loss: Loss) -> dict[str, Any]:
        return settings(loss.build())

    scorer, loss = encoder.scorer, encoder.loss
    if isinstance(scorer, ByBoth):
        rows = [built(scorer.loss), scorer.loss.divisor, scorer.rows]
        return {"share": scorer.share, "texts": [built(loss), scorer.cache], "rows": rows}
    if isinstance(scorer, ByRow):
        return {"rows": [built(loss), loss.divisor, scorer.rows]}
    assert isinstance(scorer, ByText)
    return {"texts": [built(loss), scorer.cache]}


def check_encoder(task: Any, encoder: EncoderSettings) -> None:
    """All parts of M1 are those that the settings name."""
    check_parts(task, encoder, Documents(task.data.truth, task.data.filters))
    assert head_of(task.head) == expected_head(encoder)
    assert ("rows" in head_of(task.head)) == encoder.joint
    assert task.optimizer.config == encoder.optim
    assert task.data.augmented == encoder.augment
    assert task.settings == encoder


def check_trainings(ran: dict[str, list[Any]], recipe: Recipe) -> None:
    """The trainings are those that the recipe names: M1 once or not at all, M4 once or, with refit, three times."""
    encoder, classifier = recipe.encoder, recipe.classifier
    assert len(ran["encoder"]) == (encoder.epochs > 0)
    for task in ran["encoder"]:
        check_encoder(task, encoder)
    assert len(ran["classifier"]) == (classifier.epochs > 0) * (3 if classifier.refit else 1)
    for task in ran["classifier"]:
        check_parts(task, classifier, task.data.documents)
        assert table_of(task.head) == [settings(classifier.loss.build()), classifier.loss.divisor, classifier.table]
        assert (task.dropout, task.seed) == (classifier.dropout, classifier.seed)


def check_fusion(fusion: FittedFusion, recipe: Recipe) -> None:
    """The fitted rule is the one that the recipe names; scores that it does not name are all that can be added."""
    rule = recipe.fusion.rule
    assert dataclasses.replace(fusion.rule, add=rule.add) == rule
    assert fusion.candidates == recipe.fusion.candidates
    assert fusion.names == tuple(recipe.scores)
    summed = tuple(name for name, score in recipe.scores.items() if score.summed)
    if getattr(rule, "linear", False):
        assert (fusion.add, fusion.baselines) == (tuple(recipe.scores), rule.add or summed)
        assert len(fusion.weights) == len(fusion.add)
    else:
        assert fusion.add == (rule.add or summed)
        assert set(fusion.weights) == ({rule.weight} if isinstance(rule, WithTrees) else set())
    assert fusion.features == (tuple(recipe.scores) if rule.learns else ())


def toy_changes(recipe: Recipe) -> dict[str, Any]:
    """Return settings with which a recipe learns the toy world in seconds."""
    changes = deepcopy(TOY_CHANGES)
    if recipe.classifier.negatives.kind == "importance":
        changes["classifier"]["negatives"] = {"uniform": 4}
    if recipe.encoder.joint:
        changes["encoder"]["scorer"] = {"rows": {"lr": 0.05}}
    if recipe.negatives.k:
        changes["negatives"] = {"k": 4}
    if not recipe.encoder.epochs:
        changes["encoder"]["epochs"] = 0.0
    if not recipe.classifier.epochs:
        changes["classifier"]["epochs"] = 0.0
    elif recipe.classifier.table.start == "zero":  # each drawn label teaches little
        changes["classifier"]["epochs"] = 60.0
    return changes


@pytest.mark.parametrize("name", [name for name in RECIPES.names() if name != "ngame"])
def test_a_recipe_learns_the_toy_world_by_the_parts_it_names_and_its_packed_model_answers(
    name: str, tmp_path: Path, trainings: dict[str, list[Any]]
) -> None:
    workspace = make_workspace(tmp_path)
    workspace.params.declare_experiment("toy", name, name, toy_changes(RECIPES[name]))
    for stage in STAGES:
        if stage != "leaderboard":
            run_stage(workspace, stage, "toy", name)
    recipe = workspace.params.experiment("toy", name).recipe
    check_trainings(trainings, recipe)
    assert Scores.open(workspace.folder("scores", "toy", name)).parts == recipe.scores
    check_fusion(FittedFusion.open(workspace.folder("fusion", "toy", name)), recipe)
    metrics = Evaluation.open(workspace.folder("evaluation", "toy", name)).metrics
    assert metrics["P_at_1"] >= 90, metrics
    answer = open_predictor(workspace.folder("model", "toy", name)).predict(["castle0 castle1 castle2"], k=1)
    assert answer[0][0].title == "castle"


def test_ance_trains_m4_on_the_hard_negatives_that_m2_mined(tmp_path: Path, trainings: dict[str, list[Any]]) -> None:
    workspace = make_workspace(tmp_path)
    changes = toy_changes(RECIPES["ance"])
    changes["encoder"]["epochs"] = 0.0
    workspace.params.declare_experiment("toy", "ance", "ance", changes)
    run_until(workspace, "classifier", "ance")
    mined = HardNegatives.open(workspace.folder("negatives", "toy", "ance"))
    corpus, folds = open_corpus(workspace), open_tables(workspace, "ance").folds
    for fold, task in zip(folds, trainings["classifier"], strict=True):
        hard_NK = mined.of(fold.documents(corpus))
        np.testing.assert_array_equal(task.negatives.hard_NK, hard_NK)
        drawn = [np.isin(row, task.negatives.pool(np.array([at]), 0).labels_U) for at, row in enumerate(hard_NK)]
        assert (np.array(drawn).sum(1) >= 1).all(), "every document meets one of its own hard negatives"
