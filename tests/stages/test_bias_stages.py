"""A classifier with a bias per label, and the score ``prior``, go through all stages, are served, and are refreshed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from tests.stages.halves import open_corpus, open_embeddings, open_scores, open_tables, rows_of
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.data.splits import TEST
from xc_core.infer.bundle import open_predictor
from xc_core.metrics.evaluation import Evaluation
from xc_core.params import deep_merged
from xc_core.scores import Query

BIASED = {
    "classifier": {"loss": {"kind": "bce"}, "negatives": {"kind": "all", "positives": 0}, "bias": {"lr": 0.05}},
    "scores": {"prior": {"temperature": 1.0}},
}
TESTS = ToyWorld.make().test


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_workspace(tmp_path_factory.mktemp("biased"))
    changes = deep_merged(deep_merged(TOY_CHANGES, BIASED), {"encoder": {"epochs": 0.0}})
    workspace.params.declare_experiment("toy", "ngame", "ngame", changes)
    for stage in STAGES:
        run_stage(workspace, stage, "toy", "ngame")
    return workspace


def test_rows_are_unit_vectors_and_a_bias_which_every_fold_trains(biased: Workspace) -> None:
    tables = open_tables(biased)
    assert (tables.unit, tables.biased) == (True, True)
    width = open_embeddings(biased).width
    for fold in tables.folds:
        rows = tables.rows(fold.name)
        assert rows.shape[1] == width + 1
        np.testing.assert_allclose(np.linalg.norm(rows[:, :width], axis=1), 1, atol=1e-5)
        assert len(np.unique(rows[:, width])) > 1


def test_the_score_is_the_product_plus_the_bias(biased: Workspace) -> None:
    doc_ND = np.ascontiguousarray(open_embeddings(biased).documents_ND[open_corpus(biased).rows(TEST)])
    rows, every = rows_of(biased), np.tile(np.arange(10, dtype=np.int32), (len(doc_ND), 1))
    fitted = open_scores(biased).fitted()["classifier"]
    scores = doc_ND @ rows[:, :-1].T + rows[:, -1]
    np.testing.assert_allclose(fitted.values(Query(doc_ND), every), scores, atol=1e-5)
    best = fitted.candidates(Query(doc_ND), 3)
    assert best is not None
    assert np.array_equal(np.sort(best, 1), np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :3], 1))


def test_the_packed_model_answers_as_it_was_evaluated(biased: Workspace) -> None:
    predictor = open_predictor(biased.folder("model", "toy", "ngame"))
    answers = predictor.predict([f"{row['title']} {row['content']}" for row in TESTS], 1)
    hits = [found[0].label in row["target_ind"] for found, row in zip(answers, TESTS, strict=True)]
    evaluation = Evaluation.open(biased.folder("evaluation", "toy", "ngame"))
    assert 100 * np.mean(hits) == pytest.approx(evaluation.metrics["P_at_1"])


def test_the_ablation_has_each_score_with_the_prior(biased: Workspace) -> None:
    ablation = Evaluation.open(biased.folder("evaluation", "toy", "ngame")).report["ablation"]
    assert set(ablation) == {
        "label_text", "classifier", "prior", "label_text_and_prior", "classifier_and_prior", "sum", "fusion",
    }  # fmt: skip
    assert ablation["label_text_and_prior"] != ablation["label_text"]


def test_a_refresh_keeps_rows_with_their_bias_and_predicts_both_for_a_new_label(
    biased: Workspace, tmp_path: Path
) -> None:
    before, world = rows_of(biased), ToyWorld.make()
    world.labels.append({"uid": "L10", "title": "meadow", "content": "river0 river1 castle0"})
    world.train.append({"uid": "D9999", "title": "meadow0", "content": "", "target_ind": [10], "target_rel": [1.0]})
    world.write(biased.raw("toy"))
    for stage in STAGES:
        if stage != "encoder":
            run_stage(biased, stage, "toy", "ngame", refresh=True)
    after = rows_of(biased)
    np.testing.assert_array_equal(after[:10], before)
    assert np.linalg.norm(after[10, :-1]) == pytest.approx(1, abs=1e-5)
    assert before[:, -1].min() - 1 < after[10, -1] < before[:, -1].max() + 1
    assert open_tables(biased).biased
