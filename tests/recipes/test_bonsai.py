"""The recipe bonsai: label trees on words in the pipeline of all recipes, with nothing else that is trained."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOPICS, ToyWorld, make_workspace
from tests.stages.halves import open_corpus, open_scores, open_tables
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.cli.main import main
from xc_core.data.folds import FINAL, folds
from xc_core.data.splits import TRAIN, VALIDATION
from xc_core.errors import MissingError
from xc_core.fusion import FittedFusion
from xc_core.infer.bundle import open_predictor
from xc_core.metrics.evaluation import Evaluation
from xc_core.metrics.leaderboard import Leaderboard
from xc_core.pretrained import FROM_CORPUS
from xc_core.recipes import RECIPES
from xc_core.scores.lexical import LabelTrees, Lexical
from xc_core.train.checkpoint import Checkpoints

BONSAI = RECIPES["bonsai"]


def refused(*given: Any) -> None:
    raise AssertionError(f"a training, or a pretrained model: {given}")


def made_without_training(folder: Path, recipe: str) -> Workspace:
    """Return a workspace whose whole pipeline has run with the recipe as it is; fail if anything is trained."""
    workspace = make_workspace(folder)
    workspace.params.declare_experiment("toy", recipe, recipe, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "restore", refused)
        patch.setattr("xc_core.encoders.transformer.pretrained_model", refused)
        for stage in STAGES:
            run_stage(workspace, stage, "toy", recipe)
    return workspace


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return made_without_training(tmp_path_factory.mktemp("bonsai"), "bonsai")


def test_it_is_the_lexical_score_of_house_alone_with_one_threshold_for_all_texts() -> None:
    of_house = RECIPES["house"].scores["lexical"]
    assert isinstance(of_house, Lexical)
    assert of_house.usual_terms > 0
    assert BONSAI.scores == {"lexical": replace(of_house, usual_terms=0)}
    assert not BONSAI.fusion.rule.learns


def test_nothing_is_trained_and_no_pretrained_model_is_read() -> None:
    assert (BONSAI.encoder.epochs, BONSAI.classifier.epochs, BONSAI.negatives.k) == (0, 0, 0)
    assert BONSAI.encoder.encoder.tokenizer == FROM_CORPUS


def test_the_served_trees_learn_from_validation_documents_too_and_half_of_them_are_held_out_before(
    made: Workspace,
) -> None:
    corpus = open_corpus(made)
    expected = folds(corpus, refit=True, enough=1)
    assert [fold.name for fold in expected] == ["half-0", FINAL]
    assert open_tables(made, "bonsai").folds == open_scores(made, "bonsai").folds == expected
    assert expected[-1].documents(corpus).tolist() == corpus.published_rows().tolist()
    assert 0 < len(expected[0].unseen(corpus)) < len(corpus.rows(VALIDATION))
    for fold in expected:
        assert isinstance(open_scores(made, "bonsai").fitted(fold.name)["lexical"], LabelTrees)


def test_it_is_evaluated_compared_and_packed_like_any_recipe(made: Workspace) -> None:
    evaluation = Evaluation.open(made.folder("evaluation", "toy", "bonsai"))
    assert evaluation.metrics["P_at_1"] >= 90
    assert evaluation.report["ablation"]["lexical"] == evaluation.report["ablation"]["fusion"]
    assert FittedFusion.open(made.folder("fusion", "toy", "bonsai")).names == ("lexical",)
    assert Leaderboard.open(made.folder("leaderboard", "toy")).rows["recipe"].to_list() == ["bonsai"]
    packed = open_predictor(made.folder("model", "toy", "bonsai"))
    found = packed.predict([f"{row['title']} {row['content']}" for row in ToyWorld.make().test], 1)
    hits = [row[0].label in test["target_ind"] for row, test in zip(found, ToyWorld.make().test, strict=True)]
    assert 100 * np.mean(hits) == pytest.approx(evaluation.metrics["P_at_1"])
    assert packed.predict(["castle0 castle1"], 1)[0][0].title == "castle"


def test_its_examples_are_test_documents_each_with_its_own_labels(made: Workspace) -> None:
    world = ToyWorld.make()
    true_of = {row["uid"]: [TOPICS[label] for label in sorted(row["target_ind"])] for row in world.test}
    shown = Evaluation.open(made.folder("evaluation", "toy", "bonsai")).examples
    assert len(shown) == 12
    assert {one["uid"]: one["true"] for one in shown} == {one["uid"]: true_of[one["uid"]] for one in shown}
    for one in shown:
        assert [label["true"] for label in one["predicted"]] == [
            label["label"] in one["true"] for label in one["predicted"]
        ]


def test_a_text_without_a_known_word_has_no_label(made: Workspace) -> None:
    packed = open_predictor(made.folder("model", "toy", "bonsai"))
    found = packed.predict(["", "quixotic zeppelins", "castle0"], len(TOPICS))
    assert [bool(labels) for labels in found] == [False, False, True]


def test_test_documents_without_a_label_are_reported(tmp_path: Path, lines: list[str]) -> None:
    """They count as wrong in all figures; elsewhere nobody would see why."""
    world = ToyWorld.make()
    for number, row in enumerate(world.test[:3]):
        row["title"], row["content"] = f"quixotic{number}", f"zeppelins{number}"
    workspace = make_workspace(tmp_path, world)
    workspace.params.declare_experiment("toy", "bonsai", "bonsai", {})
    for stage in list(STAGES)[: list(STAGES).index("evaluation") + 1]:
        run_stage(workspace, stage, "toy", "bonsai")
    (note,) = [line for line in lines if "no predicted label" in line]
    share = 3 / len(world.test)
    assert note.startswith(f"evaluation: 3 of {len(world.test)} test documents ({share:.1%}) have no predicted label; ")


def test_what_it_learnt_from_is_said_of_the_score(made: Workspace) -> None:
    corpus = open_corpus(made)
    published = len(corpus.published_rows())
    words = Evaluation.open(made.folder("evaluation", "toy", "bonsai")).learnt.words()
    assert list(words) == ["encoder", "classifier", "scores", "fusion"]
    assert (words["encoder"], words["classifier"]) == ("not trained", "not trained")
    assert words["scores"] == f"lexical fitted on {published:,} train and validation documents"


def test_with_train_documents_alone_the_words_say_so(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    workspace.params.declare_experiment("toy", "bonsai", "bonsai", BONSAI.learning_from("train"))
    for stage in list(STAGES)[: list(STAGES).index("evaluation") + 1]:
        run_stage(workspace, stage, "toy", "bonsai")
    words = Evaluation.open(workspace.folder("evaluation", "toy", "bonsai")).learnt.words()
    train = len(open_corpus(workspace).rows(TRAIN))
    assert words["scores"] == f"lexical fitted on {train:,} train documents"


def test_without_its_package_it_stops_before_any_stage(
    made: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XC_ROOT", str(made.root))
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr("xc_core.cli.train.run_stage", None)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--dataset", "toy", "--recipe", "bonsai"])
    assert ended.value.code == MissingError.exit_code
    assert "no installed package numba" in (said := capsys.readouterr().err)
    assert "pip install -c constraints.txt numba scikit-learn" in said
