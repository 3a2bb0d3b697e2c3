"""The recipe house from text to answers: what its lexical scores add to the pipeline and to the packed model."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOPICS, TOY_CHANGES, ToyWorld, make_workspace
from tests.stages.halves import run_until
from tests.test_bundle import files, flip, pack, pickled, stored
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.cli.main import main
from xc_core.data.corpus import Corpus
from xc_core.encoders import TrainedEncoder
from xc_core.errors import ConfigError, CorruptError, MissingError
from xc_core.fusion import FittedFusion, Inputs, Sum, summed
from xc_core.infer.bundle import Model, Parts, open_predictor
from xc_core.infer.predictor import Predictor
from xc_core.lifecycle.add_labels import add_labels
from xc_core.metrics.evaluation import Evaluation
from xc_core.scores import Query, Scores
from xc_core.scores.label_words import Matches
from xc_core.scores.lexical import LabelTrees
from xc_core.shapes import PAD_ID

TESTS = ToyWorld.make().test
TEXTS = [f"{row['title']} {row['content']}" for row in TESTS]
LEXICAL_FILES = {"forest.safetensors", "lexical.json", "terms.json", "terms.parquet"}


@pytest.fixture(scope="module")
def housed(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace whose whole pipeline has run with the recipe house."""
    workspace = make_workspace(tmp_path_factory.mktemp("housed"))
    changes = deepcopy(TOY_CHANGES) | {"model": {"min_index_recall": 0.0}}
    workspace.params.declare_experiment("toy", "house", "house", changes)
    for stage in STAGES:
        if stage != "leaderboard":
            run_stage(workspace, stage, "toy", "house")
    return workspace


@pytest.fixture
def copied(housed: Workspace, tmp_path: Path) -> Workspace:
    """The workspace, to be changed."""
    return Workspace(Path(shutil.copytree(housed.root, tmp_path / "copied")))


@pytest.fixture
def folder(housed: Workspace, tmp_path: Path) -> Path:
    """A copy of the packed model, to be damaged."""
    return Path(shutil.copytree(housed.folder("model", "toy", "house"), tmp_path / "bundle"))


@pytest.fixture(scope="module")
def predictor(housed: Workspace) -> Predictor:
    return open_predictor(housed.folder("model", "toy", "house"))


def trees_of(workspace: Workspace) -> LabelTrees:
    """Return the final lexical score."""
    found = Scores.open(workspace.folder("scores", "toy", "house")).fitted()["lexical"]
    assert isinstance(found, LabelTrees)
    return found


def test_the_packed_model_has_the_figures_of_its_evaluation(predictor: Predictor, housed: Workspace) -> None:
    metrics = Evaluation.open(housed.folder("evaluation", "toy", "house")).metrics
    found = predictor.predict(TEXTS, 5)
    for k in (1, 5):
        hits = [len({a.label for a in row[:k]} & set(t["target_ind"])) for row, t in zip(found, TESTS, strict=True)]
        assert 100 * sum(hits) / (k * len(hits)) == pytest.approx(metrics[f"P_at_{k}"], abs=1e-9)


def test_scores_on_parts_of_words_are_packed_and_know_forms_that_no_text_has(copied: Workspace) -> None:
    parts = {"characters": {"trees": 1, "terms": {"characters": 3}}, "label_characters": {}}
    changes = deepcopy(TOY_CHANGES) | {"model": {"min_index_recall": 0.0}, "scores": parts}
    copied.params.declare_experiment("toy", "house", "house", changes)
    for stage in ("scores", "fusion", "evaluation", "model"):
        run_stage(copied, stage, "toy", "house")
    packed = open_predictor(copied.folder("model", "toy", "house"))
    assert packed.ranker.fusion.logarithms == ("lexical", "characters"), "both are probabilities"
    found = Evaluation.open(copied.folder("evaluation", "toy", "house"))
    assert found.report["ablation"]["characters"]["P_at_1"] > 90
    asked = Query(np.zeros((1, packed.encoder.width), np.float32), ["rivering"])
    trees, texts = (packed.ranker.scores[name] for name in ("characters", "label_characters"))
    best, none = trees.candidates(asked, 1), packed.ranker.scores["lexical"].candidates(asked, 1)
    assert best is not None
    assert none is not None
    assert (TOPICS[best[0, 0]], none[0, 0]) == ("river", PAD_ID)
    every = np.arange(len(TOPICS), dtype=np.int32)[None]
    assert TOPICS[int(texts.values(asked, every).argmax())] == "river"


def test_the_evaluation_measures_the_lexical_score_alone_too(housed: Workspace) -> None:
    report = Evaluation.open(housed.folder("evaluation", "toy", "house")).report
    assert report["ablation"]["lexical"]["P_at_1"] > 90
    assert len(trees_of(housed).terms) > len(TOPICS)


def test_candidates_hold_the_labels_of_the_words(predictor: Predictor) -> None:
    """One candidate of each search would be at most two labels; the words alone name all ten."""
    few = {name: predictor.ranker.scores[name] for name in ("label_text", "classifier", "lexical")}
    rule = summed(Sum(add=("lexical",)), Inputs(tuple(few), ("lexical",)))
    ranker = replace(predictor.ranker, scores=few, fusion=replace(rule, candidates=1))
    found = replace(predictor, ranker=ranker).shortlist(["falcon0 castle1", "unheard"], 10)
    assert (found.ids_NK != PAD_ID).sum(1).tolist()[0] == len(TOPICS)
    assert 1 <= (found.ids_NK != PAD_ID).sum(1).tolist()[1] <= 2
    assert {TOPICS[i] for i in found.ids_NK[0, :2]} == {"falcon", "castle"}


@pytest.mark.parametrize("text", ["", "quixotic zeppelins", "\x00", "河", "falcon0 " * 20_000])
def test_an_odd_text_is_answered(predictor: Predictor, text: str) -> None:
    (found,) = predictor.predict([text], 3)
    assert len(found) == 3
    assert all(np.isfinite(label.score) for label in found)


def test_a_text_gets_the_same_answer_alone_with_others_and_from_any_thread(predictor: Predictor) -> None:
    together = predictor.shortlist([*TEXTS, ""], 5)
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda text: predictor.shortlist([text], 5), [*TEXTS, ""]))
    np.testing.assert_array_equal(np.concatenate([one.ids_NK for one in alone]), together.ids_NK)


def packed_again(housed: Workspace, fitted: dict[str, Any], target: Path) -> Path:
    """Save opened scores and pack them with the other parts of the model."""
    made = {stage: housed.folder(stage, "toy", "house") for stage in STAGES}
    scores = stored(target.with_name("scores"), Scores.open(made["scores"]).parts, fitted)
    labels = Corpus.open(made["corpus"]).table("labels")
    parts = Parts(TrainedEncoder.open(made["encoder"]), scores, FittedFusion.open(made["fusion"]), labels)
    return pack(parts, target, Model.open(made["model"]).facts)


def test_a_model_opened_and_packed_again_answers_the_same_and_has_the_same_bytes(
    housed: Workspace, folder: Path, tmp_path: Path
) -> None:
    predictor = open_predictor(folder)
    again = packed_again(housed, dict(predictor.ranker.scores), tmp_path / "again")
    assert open_predictor(again).predict(TEXTS, 5) == predictor.predict(TEXTS, 5)
    ours, theirs = files(folder), files(again)
    assert set(ours) == set(theirs)
    lexical = "scores/lexical/"
    assert {name.removeprefix(lexical) for name in ours if name.startswith(lexical)} == LEXICAL_FILES
    assert {name for name in ours if ours[name].read_bytes() != theirs[name].read_bytes()} == {"made.json"}


def test_a_model_holds_nothing_that_runs_code_when_read(folder: Path) -> None:
    assert not {name: why for name, path in files(folder).items() if (why := pickled(path))}


@pytest.mark.parametrize(
    "name",
    [
        "label_words/labels.safetensors",
        "lexical/lexical.json",
        "lexical/terms.parquet",
        "lexical/forest.safetensors",
    ],
)
@pytest.mark.parametrize(("spoil", "found"), [(flip, "changed since it was written"), (Path.unlink, "no file")])
def test_a_changed_or_missing_file_is_found_when_opened(folder: Path, name: str, spoil: Any, found: str) -> None:
    spoil(folder / "scores" / name)
    with pytest.raises(CorruptError, match=found):
        open_predictor(folder)


@pytest.mark.parametrize("name", ["lexical", "label_words"])
def test_a_lexical_score_of_other_labels_is_refused(name: str, housed: Workspace, tmp_path: Path) -> None:
    fitted: dict[str, Any] = Scores.open(housed.folder("scores", "toy", "house")).fitted()
    score = fitted[name]
    if isinstance(score, Matches):
        fewer: Any = replace(score, labels_LT=score.labels_LT[:9])
    else:
        fewer = replace(score, num_labels=9)
    mixed = packed_again(housed, {**fitted, name: fewer}, tmp_path / "mixed")
    found = "'labels': 10" if name == "lexical" else "scores of different numbers of labels: .*label_words 9"
    with pytest.raises(CorruptError, match=found):
        open_predictor(mixed)


def test_a_model_answers_without_the_package_that_trained_its_trees(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = open_predictor(folder).predict(TEXTS, 5)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert open_predictor(folder).predict(TEXTS, 5) == expected


def test_a_model_answers_without_scikit_learn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes a second."""
    expected = open_predictor(folder).predict(["falcon0 castle1"], 3)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert open_predictor(folder).predict(["falcon0 castle1"], 3) == expected


@pytest.mark.parametrize("package", ["numba", "lightgbm"])
def test_a_recipe_that_needs_a_package_stops_before_any_stage_without_it(
    copied: Workspace, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XC_ROOT", str(copied.root))
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("xc_core.cli.train.run_stage", None)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--dataset", "toy", "--recipe", "house", "--budget", "none"])
    assert ended.value.code == MissingError.exit_code
    assert f"no installed package {package}" in capsys.readouterr().err


def test_a_lost_score_is_found_and_fitted_again(copied: Workspace) -> None:
    lost = copied.folder("scores", "toy", "house") / "final" / "lexical"
    shutil.rmtree(lost)
    with pytest.raises(CorruptError, match="lexical"):
        run_stage(copied, "fusion", "toy", "house", force=True)
    assert not run_stage(copied, "scores", "toy", "house").skipped
    assert (lost / "lexical.json").is_file()
    run_stage(copied, "fusion", "toy", "house", force=True)


def test_after_a_refresh_it_is_fitted_again_on_the_new_documents(copied: Workspace) -> None:
    world, recipe = ToyWorld.make(), "house"
    assert "zeppelin" not in trees_of(copied).terms.vectorizer.vocabulary_
    for number in range(2):
        row = {"uid": f"D999{number}", "title": "zeppelin", "content": "river0", "target_rel": [1.0]}
        world.train.append({**row, "target_ind": [0]})
    world.write(copied.raw("toy"))
    before = copied.digest("encoder", "toy", recipe)
    for stage in list(STAGES)[: list(STAGES).index("fusion") + 1]:
        if stage != "encoder":
            run_stage(copied, stage, "toy", recipe, refresh=True)
    assert copied.digest("encoder", "toy", recipe) == before
    assert "zeppelin" in trees_of(copied).terms.vectorizer.vocabulary_


def test_params_that_add_a_score_which_the_recipe_does_not_have_are_refused(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match=r"score 'lexical' in .*fusion.*(.|\n)*label_text, classifier, freq"):
        workspace.params.declare_experiment("toy", "wordy", "ngame", {"fusion": {"rule": {"add": ["lexical"]}}})


def test_a_recipe_without_it_reads_no_texts_and_packs_none(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until(workspace, "classifier")

    def refuse(*_: object) -> None:
        raise AssertionError("texts are read")

    monkeypatch.setattr(Corpus, "texts_of", refuse)
    for stage in ("scores", "fusion"):
        run_stage(workspace, stage, "toy", "ngame")
    monkeypatch.undo()
    run_until(workspace, "model")
    predictor = open_predictor(workspace.folder("model", "toy", "ngame"))
    assert list(predictor.ranker.scores) == ["label_text", "classifier", "frequency"]
    assert not [name for name in files(workspace.folder("model", "toy", "ngame")) if "terms" in name]


def test_the_linear_start_of_house_reads_the_logarithm_of_what_trees_predict(housed: Workspace) -> None:
    fused = housed.open(FittedFusion, "toy", "house")
    assert fused.logarithms == ("lexical", "characters")
    assert {"lexical", "characters", "label_words", "label_characters", "neighbours"} <= set(fused.add)


def test_labels_that_come_later_leave_the_scores_of_the_others(copied: Workspace, tmp_path: Path) -> None:
    before = open_predictor(copied.folder("model", "toy", "house"))
    (tmp_path / "new.csv").write_text("uid,text\nN1,falcon0 of a meadow\n", "utf-8")
    assert add_labels(copied, tmp_path / "new.csv", "toy").labels == 1
    after = open_predictor(copied.folder("model", "toy", "house"))
    every = len(TOPICS) + 1
    assert {label.uid for label in after.predict(["falcon0"], every)[0]} >= {"N1"}
    for old, now in zip(before.predict(TEXTS, every), after.predict(TEXTS, every), strict=True):
        scores = {label.uid: label.score for label in now}
        assert {label.uid: scores[label.uid] for label in old} == {label.uid: label.score for label in old}


def test_scores_and_fusion_that_are_made_again_have_the_same_bytes(copied: Workspace) -> None:
    """Label trees drew other numbers in every fit, so house was the recipe that no two trainings made alike."""
    stages = ("scores", "fusion")
    before = [copied.digest(stage, "toy", "house") for stage in stages]
    for stage in stages:
        shutil.rmtree(copied.folder(stage, "toy", "house"))
        run_stage(copied, stage, "toy", "house")
    assert [copied.digest(stage, "toy", "house") for stage in stages] == before
