"""Fusion, evaluation and model use all scores of the recipe, each of the right training, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import HELD, open_corpus, open_embeddings, open_scores, parts_of, rows_of, seen, texts_of
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.data.folds import FINAL
from xc_core.data.splits import TEST
from xc_core.infer import gathered
from xc_core.infer import ranker as module
from xc_core.infer.bundle import open_predictor
from xc_core.params import deep_merged
from xc_core.scores import FittedScore, Query
from xc_core.shapes import F32, I32, I64

RECIPE = "freq-ns"
EVERYTHING: dict[str, Any] = {
    "encoder": {"epochs": 0.0},
    "classifier": {"epochs": 2.0, "refit": True},
    "scores": {"neighbours": {}, "lexical": {"trees": 1}, "label_text": {}, "frequency": {}},
    "fusion": {"candidates": 4},
    "model": {"min_index_recall": 0.0},
}
NAMES = ["classifier", "noise", "neighbours", "lexical", "label_text", "frequency"]


@dataclass(frozen=True)
class Asked:
    """A request for candidates."""

    scores: Mapping[str, FittedScore]
    query: Query
    k: int


def asked_by(workspace: Workspace, stage: str, recipe: str) -> list[Asked]:
    """Run a stage again and return which scores it asked for candidates, and of what."""
    found: list[Asked] = []
    search = module.candidates

    def spy(scores: Mapping[str, FittedScore], query: Query, k: int) -> I32:
        found.append(Asked(scores, query, k))
        return search(scores, query, k)

    with pytest.MonkeyPatch.context() as patch:
        for user in (module, gathered):
            patch.setattr(user, "candidates", spy)
        run_stage(workspace, stage, "toy", recipe, force=True)
    return found


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A chain that uses all kinds of scores; every stage but model has run."""
    workspace = make_workspace(tmp_path_factory.mktemp("everything"))
    changes = deep_merged({**TOY_CHANGES, "fusion": {}}, EVERYTHING)
    workspace.params.declare_experiment("toy", RECIPE, RECIPE, changes)
    for name in STAGES:
        if name not in ("model", "leaderboard"):
            run_stage(workspace, name, "toy", RECIPE)
    return workspace


def check_training(workspace: Workspace, scores: Mapping[str, FittedScore], training: str) -> None:
    """Rows, frequencies, votes, noise and words of ``scores`` are those of one training."""
    corpus, vectors = open_corpus(workspace), open_embeddings(workspace, RECIPE).documents_ND
    rows: I64 = seen(corpus, training)
    truth = corpus.labels.rows(rows)
    own: dict[str, Any] = dict(scores)
    assert list(own) == NAMES
    np.testing.assert_array_equal(own["classifier"].vectors_LD, rows_of(workspace, training, RECIPE))
    least = corpus.published_train().frequency_L().min()
    np.testing.assert_array_equal(own["frequency"].value_L, np.maximum(truth.frequency_L(), least))
    assert own["neighbours"].index.size == len(rows)
    np.testing.assert_array_equal(own["neighbours"].truth.indices, truth.indices)
    np.testing.assert_array_equal(own["label_text"].vectors_LD, open_embeddings(workspace, RECIPE).labels_LD)
    assert own["label_text"].index is not None
    share = truth.frequency_L() / truth.frequency_L().sum()
    labels = np.arange(len(share))[None]
    found = own["noise"].distribution.log_prob(np.zeros((1, vectors.shape[1]), np.float32), labels)[0]
    np.testing.assert_allclose(found, np.log(share))
    assert own["lexical"].num_labels == len(share)
    query = Query(np.array(vectors[:20]), texts_of(corpus, np.arange(20)))
    ids_NK = np.tile(labels.astype(np.int32), (20, 1))
    words: F32 = open_scores(workspace, RECIPE).fitted(training)["lexical"].values(query, ids_NK)
    np.testing.assert_array_equal(own["lexical"].values(query, ids_NK), words)


def test_the_fusion_asks_every_score_of_each_held_out_training(everything: Workspace) -> None:
    asked, parts = asked_by(everything, "fusion", RECIPE), parts_of(open_corpus(everything))
    vectors = open_embeddings(everything, RECIPE).documents_ND
    assert [one.k for one in asked] == [4, 4]
    for training, part, one in zip(HELD, ("half0", "half1"), asked, strict=True):
        np.testing.assert_array_equal(one.query.doc_ND, vectors[parts[part]])
        assert one.query.texts == texts_of(open_corpus(everything), parts[part])
        check_training(everything, one.scores, training)


def test_the_evaluation_asks_every_served_score_for_test_documents(everything: Workspace) -> None:
    """First all test documents at once, then single texts, which are timed."""
    corpus = open_corpus(everything)
    first, *rest = asked_by(everything, "evaluation", RECIPE)
    vectors = open_embeddings(everything, RECIPE).documents_ND
    np.testing.assert_array_equal(first.query.doc_ND, vectors[corpus.rows(TEST)])
    texts = texts_of(corpus, corpus.rows(TEST))
    assert first.query.texts == texts
    assert all(len(one.query.doc_ND) == 1 and one.query.texts[0] in texts for one in rest)
    assert len(rest) == 2 * 3, "three texts to warm up, and the same again to be timed"
    for one in (first, *rest):
        assert one.k == 4
        check_training(everything, one.scores, FINAL)


def test_the_model_packs_every_served_score(everything: Workspace) -> None:
    run_stage(everything, "model", "toy", RECIPE)
    ranker = open_predictor(everything.folder("model", "toy", RECIPE)).ranker
    check_training(everything, ranker.scores, FINAL)
    assert ranker.fusion.candidates == 4
    assert ranker.fusion.add == tuple(name for name in NAMES if name != "frequency")


def test_scores_that_the_recipe_does_not_have_are_not_asked_and_rows_are_searched_in_their_index(
    copied: Workspace,
) -> None:
    rows = rows_of(copied)
    for stage in ("fusion", "evaluation"):
        asked = asked_by(copied, stage, "ngame")
        for one in asked:
            assert list(one.scores) == ["label_text", "classifier", "frequency"]
            assert one.k == TOY_CHANGES["fusion"]["candidates"]
    served: Any = asked[0].scores["classifier"]
    np.testing.assert_array_equal(served.vectors_LD, rows)
    queries = asked[0].query.doc_ND[:5]
    found = served.index.search(queries, 3)
    np.testing.assert_array_equal(found.ids_NK, np.argsort(-(queries @ rows.T), axis=1)[:, :3])
