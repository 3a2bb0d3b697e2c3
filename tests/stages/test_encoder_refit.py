"""With ``encoder.refit`` a model learns from validation documents too, and nothing is fitted or measured on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import open_corpus, open_scores, open_tables, run_until
from xc_core import artifacts
from xc_core.chain import Workspace, run_stage
from xc_core.data.folds import FINAL, Fold
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.encoders import TrainedEncoder
from xc_core.errors import ConfigError, MovedError
from xc_core.fusion import FittedFusion
from xc_core.params import deep_merged, in_use
from xc_core.recipes import RECIPES
from xc_core.train import encoder as training

JOINT = {
    "encoder": {**TOY_CHANGES["encoder"], "epochs": 1.0},
    "fusion": TOY_CHANGES["fusion"],
    "evaluation": TOY_CHANGES["evaluation"],
}
SUM = {"fusion": {"rule": "sum"}}


def declare(workspace: Workspace, recipe: str, changes: dict[str, Any]) -> None:
    workspace.params.declare_experiment("toy", recipe, recipe, changes)


def trained(workspace: Workspace, recipe: str = "unidec") -> TrainedEncoder:
    return TrainedEncoder.open(workspace.folder("encoder", "toy", recipe))


@pytest.fixture(scope="module")
def joint(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A joint training on validation documents too."""
    workspace = make_workspace(tmp_path_factory.mktemp("joint"))
    declare(workspace, "unidec", deep_merged(JOINT, {"encoder": {"refit": True}}))
    run_until(workspace, "evaluation", "unidec")
    return workspace


@pytest.mark.parametrize("refit", [False, True])
def test_batches_hold_the_documents_that_the_settings_name(
    refit: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[np.ndarray] = []
    build = training.encoder_task

    def spy(settings: Any, encoder: Any, data: Any, *others: Any) -> Any:
        given.append(data.rows_N)
        return build(settings, encoder, data, *others)

    monkeypatch.setattr("xc_core.stages.encoder.encoder_task", spy)
    workspace = make_workspace(tmp_path)
    declare(workspace, "unidec", deep_merged(JOINT, {"encoder": {"refit": refit}}))
    run_until(workspace, "encoder", "unidec")
    corpus = open_corpus(workspace)
    assert given[0].tolist() == (corpus.published_rows() if refit else corpus.rows(TRAIN)).tolist()
    assert not set(given[0]) & set(corpus.rows(TEST))
    assert trained(workspace).saw_validation == refit


def test_the_classifier_and_the_scores_use_the_same_documents_in_one_training(joint: Workspace) -> None:
    final = [Fold(FINAL, refit=True)]
    assert open_tables(joint, "unidec").folds == open_scores(joint, "unidec").folds == final
    assert final[0].documents(open_corpus(joint)).tolist() == open_corpus(joint).published_rows().tolist()


def test_nothing_is_measured_on_validation_documents_that_the_scores_have_seen(
    joint: Workspace, lines: list[str]
) -> None:
    run_stage(joint, "fusion", "toy", "unidec", force=True)
    facts = artifacts.read_made(joint.folder("fusion", "toy", "unidec")).facts
    assert (facts["documents"], facts["validation"]) == (0, {})
    fusion = FittedFusion.open(joint.folder("fusion", "toy", "unidec"))
    assert fusion.candidates == TOY_CHANGES["fusion"]["candidates"], "as many as a fitted rule is given"
    assert "fusion: the scores were trained on all validation documents, so nothing is measured on them" in lines


def test_a_fitted_fusion_with_such_an_encoder_is_refused_when_it_is_declared(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    message = r"encoder\.refit with the fusion 'tree', which is fitted on validation documents"
    with pytest.raises(ConfigError, match=message):
        declare(workspace, "ngame", {"encoder": {"refit": True}})
    declare(workspace, "ngame", {"encoder": {"refit": True}, **SUM})
    declare(workspace, "ngame", {"encoder": {"refit": True, "epochs": 0.0}})


def test_a_fitted_fusion_on_scores_that_have_seen_its_documents_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artefacts say so too, for instance an encoder that a refresh kept from other settings."""
    workspace = make_workspace(tmp_path)
    refit = deep_merged(TOY_CHANGES, {"encoder": {"refit": True}})
    declare(workspace, "ngame", deep_merged(refit, SUM))
    run_until(workspace, "scores")
    monkeypatch.setattr("xc_core.train.encoder_settings.EncoderSettings.sees_validation", False)
    declare(workspace, "ngame", refit)
    with pytest.raises(MovedError, match="scores that were trained on all validation documents"):
        run_stage(workspace, "fusion", "toy", "ngame")


def test_a_refresh_keeps_the_only_fold(joint: Workspace) -> None:
    made = open_tables(joint, "unidec").folds
    run_stage(joint, "classifier", "toy", "unidec", force=True, refresh=True)
    assert open_tables(joint, "unidec").folds == made


def test_the_setting_makes_no_older_encoder_stale() -> None:
    settings = RECIPES["unidec"].encoder
    assert "refit" not in in_use(settings)
    assert in_use(RECIPES["unidec"].changed({"encoder": {"refit": True}}).encoder)["refit"] is True


@pytest.mark.parametrize("recipe", RECIPES.names())
def test_every_recipe_can_learn_from_train_documents_alone(recipe: str) -> None:
    found = RECIPES[recipe].changed(RECIPES[recipe].learning_from("train"))
    assert (found.encoder.sees_validation, found.classifier.refit) == (False, False)


@pytest.mark.parametrize("recipe", RECIPES.names())
def test_every_recipe_can_learn_from_all_published_documents(recipe: str) -> None:
    """The encoder too, unless a rule is fitted on documents that it must not have seen."""
    found = RECIPES[recipe].changed(RECIPES[recipe].learning_from("published"))
    assert found.classifier.refit
    assert found.encoder.refit != found.fusion.rule.learns
    assert (found.classifier.enough == 1) is found.encoder.refit, "one held-out training if nothing is fitted on it"
    with pytest.raises(ConfigError, match="train or published"):
        found.learning_from("test")


def test_without_validation_documents_nothing_changes(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    workspace.params.declare_dataset("toy", IngestConfig(validation_fraction=0.0))
    declare(workspace, "unidec", deep_merged(JOINT, {"encoder": {"refit": True}}))
    run_until(workspace, "fusion", "unidec")
    assert not len(open_corpus(workspace).rows(VALIDATION))
    assert not trained(workspace).saw_validation
    assert open_tables(workspace, "unidec").folds == [Fold(FINAL, refit=False)]
