"""The bytes on disk that a plan counts, beside those of artefacts that are really written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import ToyWorld, make_workspace
from tests.planning.test_stage_costs import LARGE, WIDTH
from xc_core.ann.base import BATCHES_EXACT_UP_TO
from xc_core.chain import Workspace, run_stage
from xc_core.chain.fingerprints import input_folder
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import IngestConfig
from xc_core.data.tokens import Tokenised
from xc_core.planning.data_size import DataSize
from xc_core.planning.stage_bytes import HELD, WRITTEN
from xc_core.planning.stage_costs import Case, searches
from xc_core.recipes import RECIPES
from xc_core.scores import Classifier, Footprint, LabelText, Size

ADDED = 3000


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, dict[str, int]]]:
    """The toy dataset with its ten labels, and with 3,000 more: what a plan reads, what is written."""
    return [_written(tmp_path_factory.mktemp("few"), 0), _written(tmp_path_factory.mktemp("many"), ADDED)]


def _written(root: Path, added: int) -> tuple[Case, dict[str, int]]:
    world = ToyWorld.make()
    world.labels += [{"uid": f"X{i}", "title": f"extra{i}", "content": f"w{i}"} for i in range(added)]
    workspace = make_workspace(root, world)
    workspace.params.declare_dataset("toy", IngestConfig(allow=("unseen-labels",)))
    stages = ("corpus", "tokens", "encoder", "embeddings", "clusters", "negatives", "classifier", "scores")
    for stage in stages:
        run_stage(workspace, stage, "toy", "ngame")
    experiment = workspace.params.experiment("toy", "ngame")
    tokens = Tokenised.open(input_folder(workspace, "tokens", experiment))
    case = Case(experiment.recipe, DataSize.of(workspace.open(Corpus, "toy"), tokens), 32)
    return case, {stage: _bytes(workspace, stage) for stage in stages}


def _bytes(workspace: Workspace, stage: str) -> int:
    folder = input_folder(workspace, stage, workspace.params.experiment("toy", "ngame"))
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("stage", ["embeddings", "classifier", "scores"])
def test_artefacts_grow_with_labels_as_a_plan_counts(sizes: list[tuple[Case, dict[str, int]]], stage: str) -> None:
    (few, few_bytes), (many, many_bytes) = sizes
    assert many.world.labels - few.world.labels == ADDED
    assert WRITTEN[stage](many) - WRITTEN[stage](few) == pytest.approx(many_bytes[stage] - few_bytes[stage], rel=0.06)


def test_a_score_that_is_the_same_in_every_fold_is_written_once() -> None:
    """Label texts do not depend on documents; rows do."""
    ngame = RECIPES["ngame"]
    one, other = (ngame.changed({"scores": {name: None}}) for name in ("label_text", "classifier"))
    folds = len(LARGE.folds(ngame))
    assert folds > 1
    both, rows, texts = (Case(recipe, LARGE, WIDTH) for recipe in (ngame, one, other))
    served = WRITTEN["scores"](texts)
    assert served == WRITTEN["model"](texts) - 6 * LARGE.label_tokens * LARGE.labels
    assert WRITTEN["scores"](both) == WRITTEN["scores"](rows) + served
    assert WRITTEN["scores"](rows) > (folds - 1) * 2 * rows.table_bytes + served


def test_held_out_folds_need_graphs_of_rows_alone() -> None:
    labels = BATCHES_EXACT_UP_TO + 1
    case = Case(RECIPES["ngame"], replace(LARGE, labels=labels), WIDTH)
    held_out = len(LARGE.folds(case.recipe)) - 1
    assert case.searched == 2
    assert searches(case)["scores"][0].graphs == 2 + held_out


def test_label_trees_are_written_for_each_fold() -> None:
    """They are the largest part of `house` on disk: about 200 MB of a tree on YSOFinna."""
    house = RECIPES["house"]
    case, without = (Case(recipe, LARGE, WIDTH) for recipe in (house, house.changed({"scores": {"lexical": None}})))
    trees = 3 * 228 * (LARGE.published * LARGE.pairs + LARGE.labels)
    assert WRITTEN["scores"](case) - WRITTEN["scores"](without) == pytest.approx(len(LARGE.folds(house)) * trees)
    assert WRITTEN["model"](case) - WRITTEN["model"](without) == pytest.approx(trees)


def test_vectors_of_documents_are_written_for_each_fold_of_a_vote_of_neighbours() -> None:
    """Their index has 370 and 351 MB on YSOFinna, where the vectors of all documents have 365."""
    house = RECIPES["house"]
    case, without = (Case(recipe, LARGE, WIDTH) for recipe in (house, house.changed({"scores": {"neighbours": None}})))
    more = {stage: WRITTEN[stage](case) - WRITTEN[stage](without) for stage in ("scores", "model")}
    assert case.vector_bytes == LARGE.published * WIDTH * 4
    assert more == pytest.approx({"scores": len(LARGE.folds(house)) * case.vector_bytes, "model": case.vector_bytes})


def written(case: Case) -> dict[str, float]:
    """Return the bytes of the two artefacts that hold scores."""
    return {name: WRITTEN[name](case) for name in ("scores", "model")}


def test_a_plan_counts_what_any_score_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in is counted as this project's own scores are; one score more is added to the others."""
    ngame = RECIPES["ngame"]
    before = Case(ngame, LARGE, WIDTH)
    assert before.footprint == Footprint()
    written_before = written(before)
    own = Footprint(held=7e9, written=5e9, compared=11, cells=(3,))
    asked: list[Size] = []
    monkeypatch.setattr(Classifier, "footprint", lambda self, size: asked.append(size) or own)
    case = Case(ngame, LARGE, WIDTH)
    assert [HELD[name](case) - HELD[name](before) for name in ("scores", "fusion", "evaluation")] == [7e9] * 3
    more = {name: after - written_before[name] for name, after in written(case).items()}
    assert more == {"scores": len(LARGE.folds(ngame)) * 5e9, "model": 5e9}
    assert [searches(case)[name][1].among for name in ("scores", "fusion", "evaluation")] == [3, 11, 11]
    assert set(asked) == {Size(LARGE.published, LARGE.labels, LARGE.published * LARGE.pairs, WIDTH)}
    both = Case(RECIPES["house"], LARGE, WIDTH).footprint
    monkeypatch.undo()
    assert both == own + Case(RECIPES["house"], LARGE, WIDTH).footprint


def test_files_of_a_score_that_is_the_same_in_every_fold_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ngame = RECIPES["ngame"]
    before = written(Case(ngame, LARGE, WIDTH))
    monkeypatch.setattr(LabelText, "footprint", lambda self, size: Footprint(written=5e9))
    after = written(Case(ngame, LARGE, WIDTH))
    assert {name: after[name] - before[name] for name in after} == {"scores": 5e9, "model": 5e9}


def test_the_fit_of_any_fusion_counts_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    ngame = RECIPES["ngame"]
    before = HELD["fusion"](Case(ngame, LARGE, WIDTH))
    values = Case(ngame, LARGE, WIDTH).fused * ngame.fusion.candidates * 2 * 4 * len(ngame.scores)
    monkeypatch.setattr(type(ngame.fusion.rule), "fit_bytes", lambda self, values: 3 * values)
    assert HELD["fusion"](Case(ngame, LARGE, WIDTH)) - before == pytest.approx(3 * values)
