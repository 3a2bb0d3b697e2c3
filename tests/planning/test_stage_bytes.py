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
from xc_core.scores import Classifier, Footprint, LabelText, Lexical, Size

ADDED = 3000
SIZE = Size(
    LARGE.published,
    LARGE.labels,
    LARGE.published * LARGE.pairs,
    WIDTH,
    LARGE.document_chars,
    LARGE.label_chars,
)


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
    case = Case(experiment.recipe, DataSize.of(workspace.open(Corpus, "toy"), tokens, experiment.recipe.encoder), 32)
    return case, {stage: _bytes(workspace, stage) for stage in stages}


def _bytes(workspace: Workspace, stage: str) -> int:
    folder = input_folder(workspace, stage, workspace.params.experiment("toy", "ngame"))
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("stage", ["embeddings", "classifier", "scores"])
def test_artefacts_grow_with_labels_as_a_plan_counts(sizes: list[tuple[Case, dict[str, int]]], stage: str) -> None:
    (few, few_bytes), (many, many_bytes) = sizes
    assert many.world.labels - few.world.labels == ADDED
    assert WRITTEN[stage](many) - WRITTEN[stage](few) == pytest.approx(many_bytes[stage] - few_bytes[stage], rel=0.06)


def test_a_plan_knows_the_lengths_of_texts(sizes: list[tuple[Case, dict[str, int]]]) -> None:
    """Documents of the toy world are longer than labels."""
    for case, _ in sizes:
        assert case.world.document_chars > case.world.label_chars > 1


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
    """They are the largest part of `house` on disk: 1.2 GB in two folds on YSOFinna."""
    house = RECIPES["house"]
    case, without = (Case(recipe, LARGE, WIDTH) for recipe in (house, house.changed({"scores": {"lexical": None}})))
    trees = house.scores["lexical"].footprint(SIZE).written
    assert trees > 100 * (LARGE.published * LARGE.pairs + LARGE.labels)
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
    own = Footprint(held=7e9, written=5e9, compared=11, text=1e6, most=3e6, cells=(3,))
    asked: list[Size] = []
    monkeypatch.setattr(Classifier, "footprint", lambda self, size: asked.append(size) or own)
    case = Case(ngame, LARGE, WIDTH)
    more_held = [HELD[name](case) - HELD[name](before) for name in ("scores", "fusion", "evaluation")]
    assert more_held == [7e9, 7e9 + 3e6, 7e9 + 3e6], "it searches in the last two"
    more = {name: after - written_before[name] for name, after in written(case).items()}
    assert more == {"scores": len(LARGE.folds(ngame)) * 5e9, "model": 5e9}
    assert [searches(case)[name][1].among for name in ("scores", "fusion", "evaluation")] == [3, 11, 11]
    assert set(asked) == {SIZE}
    both = Case(RECIPES["house"], LARGE, WIDTH).footprint
    monkeypatch.undo()
    assert both == own + Case(RECIPES["house"], LARGE, WIDTH).footprint


def test_scores_are_fitted_and_search_one_after_another() -> None:
    one = Footprint(held=1, kept=10, fit=100, text=3, most=50)
    both = one + Footprint(held=2, kept=20, fit=70, text=5, most=40)
    assert (both.held, both.kept, both.fit, both.text, both.most) == (3, 30, 100, 5, 50)
    assert [both.searching(texts) for texts in (0, 2, 1000)] == [0, 10, 50]


def test_a_fit_counts_with_what_it_leaves_for_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    before = HELD["scores"](Case(RECIPES["ngame"], LARGE, WIDTH))
    for own, more in ((Footprint(held=7e9, kept=5e9, fit=1e9), 7e9), (Footprint(held=7e9, kept=5e9, fit=4e9), 9e9)):
        monkeypatch.setattr(Classifier, "footprint", lambda self, size, own=own: own)
        assert HELD["scores"](Case(RECIPES["ngame"], LARGE, WIDTH)) - before == more


def test_plans_of_recipes_without_label_trees_are_those_of_any_texts() -> None:
    longer = replace(LARGE, document_chars=1e5, label_chars=1e4)
    differ = set()
    for name in RECIPES:
        cases = [Case(RECIPES[name], world, WIDTH) for world in (LARGE, longer)]
        if any(bytes_of(cases[0]) != bytes_of(cases[1]) for table in (HELD, WRITTEN) for bytes_of in table.values()):
            differ.add(name)
    trees = {name for name in RECIPES if any(isinstance(s, Lexical) for s in RECIPES[name].scores.values())}
    assert differ == trees >= {"house", "words", "bonsai"}


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
