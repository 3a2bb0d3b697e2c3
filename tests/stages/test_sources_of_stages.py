"""Fusion, evaluation and model ask the sources that the recipe's features need, of the training that is theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import open_corpus, parts_of, seen
from xc_core.bundle import open_bundle
from xc_core.data.splits import TEST
from xc_core.fusion import Query, Sources
from xc_core.infer.score import Searchers
from xc_core.params import deep_merged
from xc_core.shapes import I32, I64
from xc_core.stages import STAGES, Workspace, run_stage

RECIPE = "freq-ns"
EVERYTHING: dict[str, Any] = {
    "encoder": {"epochs": 0.0},
    "classifier": {"epochs": 2.0, "refit": True, "lexical": {"use": True, "trees": 1}},
    "fusion": {"kind": "sum", "add": ["classifier", "noise", "neighbours", "lexical"], "candidates": 4},
    "index": {"texts": True},
    "model": {"min_index_recall": 0.0},
}


@dataclass(frozen=True)
class Asked:
    """A request for candidates."""

    searchers: Searchers
    query: Query
    k: int


def asked_by(workspace: Workspace, stage: str, recipe: str) -> list[Asked]:
    """Run a stage again and return what it asked."""
    found: list[Asked] = []
    search = Searchers.candidates

    def spy(own: Searchers, query: Query, k: int) -> I32:
        found.append(Asked(own, query, k))
        return search(own, query, k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Searchers, "candidates", spy)
        run_stage(workspace, stage, "toy", recipe, force=True)
    return found


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A chain whose fusion needs every source; all stages but model have run."""
    workspace = make_workspace(tmp_path_factory.mktemp("everything"))
    changes = deep_merged({**TOY_CHANGES, "fusion": {}, "index": {}}, EVERYTHING)
    workspace.declare_experiment("toy", RECIPE, RECIPE, changes)
    for name in STAGES:
        if name not in ("model", "leaderboard"):
            run_stage(workspace, name, "toy", RECIPE)
    return workspace


def check_training(workspace: Workspace, sources: Sources, training: str) -> None:
    """Rows, frequencies, votes, noise and words of ``sources`` are those of one training."""
    corpus = open_corpus(workspace)
    rows: I64 = seen(corpus, training)
    truth = corpus.labels.rows(rows)
    folder = workspace.folder("classifier", "toy", RECIPE) / training
    np.testing.assert_array_equal(sources.rows_LD, np.load(folder / "rows.npy"))
    np.testing.assert_array_equal(sources.frequency_L, truth.frequency_L())
    assert sources.neighbours is not None and sources.noise is not None and sources.lexical is not None
    assert sources.neighbours.index.size == len(rows)
    np.testing.assert_array_equal(sources.neighbours.truth.indices, truth.indices)
    share = truth.frequency_L() / truth.frequency_L().sum()
    labels = np.arange(len(share))[None]
    found = sources.noise.log_prob(np.zeros((1, sources.rows_LD.shape[1]), np.float32), labels)[0]
    np.testing.assert_allclose(found, np.log(share))
    assert sources.lexical.num_labels == len(share)


def test_the_fusion_asks_every_source_of_each_held_out_training(everything: Workspace) -> None:
    asked, parts = asked_by(everything, "fusion", RECIPE), parts_of(open_corpus(everything))
    vectors = np.load(everything.folder("embeddings", "toy", RECIPE) / "documents.npy")
    assert [one.k for one in asked] == [4, 4]
    for training, part, one in zip(("held/0", "held/1"), ("half0", "half1"), asked, strict=True):
        np.testing.assert_array_equal(one.query.doc_ND, vectors[parts[part]])
        check_training(everything, one.query.sources, training)
        assert one.searchers.by_text is not None


def test_the_evaluation_asks_every_source_of_what_serves_for_test_documents(everything: Workspace) -> None:
    """First all test documents at once, then single texts whose time is taken."""
    corpus = open_corpus(everything)
    first, *rest = asked_by(everything, "evaluation", RECIPE)
    vectors = np.load(everything.folder("embeddings", "toy", RECIPE) / "documents.npy")
    np.testing.assert_array_equal(first.query.doc_ND, vectors[corpus.rows(TEST)])
    table = corpus.table("documents", corpus.rows(TEST))
    texts = [f"{title} {content}" for title, content in zip(table["title"], table["content"], strict=True)]
    assert first.query.texts == texts
    assert all(len(one.query.doc_ND) == 1 and one.query.texts[0] in texts for one in rest if one.query.texts)
    assert len(rest) == 2 * 3, "three texts to warm up, and again to be timed"
    for one in (first, *rest):
        assert one.k == 4
        check_training(everything, one.query.sources, "")


def test_the_model_packs_every_source_of_what_serves(everything: Workspace) -> None:
    run_stage(everything, "model", "toy", RECIPE)
    scorer = open_bundle(everything.folder("model", "toy", RECIPE)).scorer
    check_training(everything, scorer.sources, "")
    assert scorer.searchers.by_text is not None
    assert scorer.fusion.config.candidates == 4


def test_sources_that_no_feature_needs_are_not_asked_and_rows_are_searched_in_their_index(copied: Workspace) -> None:
    rows = np.load(copied.folder("classifier", "toy", "ngame") / "rows.npy")
    for stage in ("fusion", "evaluation"):
        asked = asked_by(copied, stage, "ngame")
        for one in asked:
            sources = one.query.sources
            assert (sources.neighbours, sources.noise, sources.lexical) == (None, None, None)
            assert one.k == TOY_CHANGES["fusion"]["candidates"]
    np.testing.assert_array_equal(asked[0].query.sources.rows_LD, rows)
    queries = asked[0].query.doc_ND[:5]
    found = asked[0].searchers.by_row.search(queries, 3)
    np.testing.assert_array_equal(found.ids_NK, np.argsort(-(queries @ rows.T), axis=1)[:, :3])
