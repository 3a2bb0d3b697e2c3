"""M4 with refit: the fusion is fitted on rows that never saw validation documents, the served rows have seen them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from tests.stages.halves import HELD, open_corpus, open_embeddings, open_scores, open_tables, rows_of
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.cluster import Clusters
from xc_core.data.corpus import Corpus
from xc_core.data.folds import FINAL, Fold, folds
from xc_core.data.ingest import IngestConfig
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TRAIN, VALIDATION
from xc_core.errors import MovedError
from xc_core.fusion import Inputs, Tree
from xc_core.infer.bundle import open_predictor
from xc_core.infer.gathered import Candidates, HeldOut
from xc_core.shapes import I64
from xc_core.stages import fusion

SETTING = "experiments/toy_ngame/stages/classifier/refit"
VOTES = {
    "scores": {"neighbours": {}},
    "fusion": {**TOY_CHANGES["fusion"], "rule": {"kind": "tree", "add": ["classifier", "neighbours"]}},
}
Edit = Callable[[Workspace, dict[str, Any]], None]


def rerun(workspace: Workspace, *without: str) -> Workspace:
    for name in STAGES:
        if name not in ("leaderboard", *without):
            run_stage(workspace, name, "toy", "ngame")
    return workspace


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Workspace]:
    """The same experiment, with the score neighbours, with and without refit."""
    with_refit = make_workspace(tmp_path_factory.mktemp("refit"))
    made = {True: with_refit, False: Workspace(tmp_path_factory.mktemp("without"))}
    for refit, workspace in made.items():
        if not refit:  # the stages before the classifier are the same
            shutil.copytree(with_refit.root, workspace.root, dirs_exist_ok=True)
        changes = {**TOY_CHANGES, **VOTES, "classifier": {**TOY_CHANGES["classifier"], "refit": refit}}
        workspace.params.declare_experiment("toy", "ngame", "ngame", changes)
        rerun(workspace)
    return made


def documents(corpus: Corpus, *, refit: bool, enough: int = 10_000) -> dict[str, I64]:
    """Return the documents of each training by its name."""
    return {fold.name: fold.documents(corpus) for fold in folds(corpus, refit=refit, enough=enough)}


def test_each_half_of_the_validation_documents_is_left_out_once(both: dict[bool, Workspace]) -> None:
    corpus = open_corpus(both[True])
    made = documents(corpus, refit=True)
    validation, published = set(corpus.rows(VALIDATION)), set(corpus.published_rows())
    left_out = [published - set(made[name]) for name in HELD]
    assert set(made[FINAL]) == published
    assert all(left_out), "neither half is empty"
    assert left_out[0] | left_out[1] == validation
    assert not left_out[0] & left_out[1]
    assert list(made) == [*HELD, FINAL], "the served rows are trained last"
    alone = documents(corpus, refit=False)
    assert list(alone) == [FINAL]
    np.testing.assert_array_equal(alone[FINAL], corpus.rows(TRAIN))
    for refit, workspace in both.items():
        assert open_tables(workspace).folds == folds(corpus, refit=refit, enough=10_000)


def test_a_fold_says_which_validation_documents_it_has_not_seen(both: dict[bool, Workspace]) -> None:
    corpus = open_corpus(both[True])
    for refit in (True, False):
        for fold in folds(corpus, refit=refit, enough=10_000):
            seen = set(fold.documents(corpus))
            assert set(fold.unseen(corpus)) == set(corpus.rows(VALIDATION)) - seen


def test_validation_documents_are_scored_by_scores_that_have_not_seen_them(
    both: dict[bool, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = open_corpus(both[True])
    made, asked = documents(corpus, refit=True), []
    gathered = Candidates.of

    def noted(held: HeldOut, own: Corpus, embeddings: Any, scores: Any, k: int) -> Any:
        asked.append((scores["neighbours"].truth.indices, set(held.rows)))
        return gathered(held, own, embeddings, scores, k)

    monkeypatch.setattr(Candidates, "of", noted)
    run_stage(both[True], "fusion", "toy", "ngame", force=True)
    for name, (voted, rows) in zip(HELD, asked, strict=True):
        assert not rows & set(made[name])
        np.testing.assert_array_equal(voted, corpus.labels.rows(made[name]).indices)
    assert set.union(*(rows for _, rows in asked)) == set(corpus.rows(VALIDATION))


def test_one_training_is_left_out_if_a_half_is_enough_for_the_fusion(copied: Workspace, edit: Edit) -> None:
    first = len(open_corpus(copied).validation_halves()[0])
    stages = "experiments/toy_ngame/stages"

    def fitted_on(enough: int, rows: int) -> tuple[list[str], int]:
        edit(copied, {f"{stages}/classifier/enough": enough, f"{stages}/fusion/rows": rows})
        rerun(copied, "evaluation", "audit", "model")
        facts = artifacts.read_made(copied.folder("fusion", "toy", "ngame")).facts
        assert open_scores(copied).folds == open_tables(copied).folds
        return [fold.name for fold in open_tables(copied).folds], facts["documents"]

    assert fitted_on(first - 1, first - 1) == ([HELD[0], FINAL], first - 1)
    assert fitted_on(first, first + 1) == ([HELD[0], FINAL], first), "no more than one half is left out"
    assert fitted_on(first + 1, first + 1) == ([*HELD, FINAL], first + 1)


def test_a_document_is_of_the_same_half_whatever_comes_beside_it(tmp_path: Path) -> None:
    halves = []
    for documents in (240, 160):
        workspace = make_workspace(tmp_path / str(documents), ToyWorld.make(documents))
        run_stage(workspace, "corpus", "toy")
        corpus = Corpus.open(workspace.folder("corpus", "toy"))
        halves.append([set(corpus.table("documents", own)["uid"]) for own in corpus.validation_halves()])
    for more, fewer in zip(*halves, strict=True):
        assert fewer < more


def test_the_served_scores_have_learnt_from_validation_documents_too(both: dict[bool, Workspace]) -> None:
    corpus = open_corpus(both[True])
    train, all_rows = corpus.rows(TRAIN), corpus.published_rows()
    assert len(all_rows) == len(train) + len(corpus.rows(VALIDATION)) > len(train)
    for refit, rows in ((True, all_rows), (False, train)):
        scores: Any = open_predictor(both[refit].folder("model", "toy", "ngame")).ranker.scores
        np.testing.assert_array_equal(scores["classifier"].vectors_LD, rows_of(both[refit]))
        least = corpus.published_train().frequency_L().min()
        counts = np.maximum(corpus.labels.rows(rows).frequency_L(), least)
        np.testing.assert_array_equal(scores["frequency"].value_L, counts)
        np.testing.assert_array_equal(scores["neighbours"].truth.indices, corpus.labels.rows(rows).indices)
        final = open_tables(both[refit]).folds[-1]
        assert final == Fold(FINAL, refit=refit)
        np.testing.assert_array_equal(final.documents(corpus), rows)
    assert not np.array_equal(rows_of(both[False]), rows_of(both[True]))
    assert len(open_tables(both[False]).folds) == 1


def test_the_index_is_over_the_served_rows(both: dict[bool, Workspace]) -> None:
    score: Any = open_predictor(both[True].folder("model", "toy", "ngame")).ranker.scores["classifier"]
    rows_LD = rows_of(both[True])
    found = score.index.search(rows_LD, 1)
    np.testing.assert_allclose(found.scores_NK[:, 0], (rows_LD**2).sum(1), rtol=1e-5)


def test_each_training_has_clusters_of_its_documents(both: dict[bool, Workspace]) -> None:
    for refit, workspace in both.items():
        corpus = open_corpus(workspace)
        clusters = Clusters.open(workspace.folder("clusters", "toy", "ngame"))
        assert clusters.covers(corpus.published_rows())
        for rows in documents(corpus, refit=refit).values():
            order, sizes = clusters.among(rows)
            assert sorted(order.tolist()) == list(range(len(rows)))
            assert sizes.sum() == len(rows)


def test_a_label_whose_only_document_is_for_validation_is_learnt(tmp_path: Path) -> None:
    world = ToyWorld.make()
    probe = make_workspace(tmp_path / "probe", world)
    run_stage(probe, "corpus", "toy")
    corpus = open_corpus(probe)
    uid = corpus.table("documents", corpus.rows(VALIDATION)[:1])["uid"][0]
    world.labels.append({"uid": "L10", "title": "meadow", "content": ""})
    for row in world.train:
        if row["uid"] == uid:
            row["target_ind"], row["target_rel"] = [*row["target_ind"], 10], [1.0, 1.0, 1.0]
    workspace = rerun(make_workspace(tmp_path / "world", world), "evaluation", "audit", "model")
    corpus = open_corpus(workspace)
    document = open_embeddings(workspace).documents_ND[corpus.table("documents")["uid"].to_list().index(uid)]
    score = {name: float(document @ rows_of(workspace, name)[10]) for name in (FINAL, *HELD)}
    half = [uid in set(corpus.table("documents", own)["uid"]) for own in corpus.validation_halves()].index(True)
    assert score[FINAL] > score[HELD[half]] + 0.1, "without the document the label is only known as a negative"
    assert score[HELD[1 - half]] > score[HELD[half]] + 0.1


def test_without_validation_documents_there_is_one_training(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    workspace.params.declare_dataset("toy", IngestConfig(validation_fraction=0.0))
    rerun(workspace)
    assert open_tables(workspace).folds == [Fold(FINAL, refit=False)]
    assert len(open_predictor(workspace.folder("model", "toy", "ngame")).predict(["castle0"], 3)[0]) == 3


def test_a_refresh_keeps_the_rows_of_every_training(copied: Workspace, edit: Edit) -> None:
    before = {name: rows_of(copied, name) for name in (*HELD, FINAL)}
    assert not run_stage(copied, "classifier", "toy", "ngame", refresh=True, force=True).skipped
    assert artifacts.read_made(copied.folder("classifier", "toy", "ngame")).refreshed
    for name, rows in before.items():
        np.testing.assert_array_equal(rows_of(copied, name), rows)
    assert len(open_tables(copied).labels()) == len(before[FINAL])
    for refit in (False, True):
        edit(copied, {SETTING: refit})
        with pytest.raises(MovedError, match=r"classifier\.refit"):
            run_stage(copied, "classifier", "toy", "ngame", refresh=True)
        run_stage(copied, "classifier", "toy", "ngame")


def test_the_fusion_is_compared_on_documents_it_was_not_fitted_on() -> None:
    """On noise a deep tree repeats what it was fitted on and knows nothing of another document."""
    random, size, candidates = np.random.default_rng(0), 60, 5
    ids_NK = np.tile(np.arange(candidates, dtype=np.int32), (size, 1))
    positive_NK = np.zeros((size, candidates), bool)
    positive_NK[np.arange(size), random.integers(0, candidates, size)] = True
    noise_NKF = random.standard_normal((size, candidates, 1)).astype(np.float32)
    truth = LabelMatrix(np.arange(size + 1), np.nonzero(positive_NK)[1].astype(np.int32), candidates)
    gathered = Candidates(ids_NK, noise_NKF, positive_NK, np.ones_like(positive_NK), truth)
    rule = Tree(weight=0, depth=30, min_leaf=1)
    inputs, weights_L = Inputs(("classifier",), ("classifier",)), np.ones(candidates)
    fitted = gathered.fit(rule, inputs, weights_L)
    by_heart = gathered.rank(fitted)
    assert truth.contains(np.arange(size), by_heart.ids_NK[:, 0]).mean() > 0.9
    ranked = fusion._rankings(rule, inputs, gathered, weights_L, fitted, np.arange(size))
    assert truth.contains(np.arange(size), ranked["fusion"].ids_NK[:, 0]).mean() < 0.4, "a fifth is chance"
