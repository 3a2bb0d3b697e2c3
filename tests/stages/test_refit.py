"""M4 twice: the fusion is fitted on rows that never saw validation documents, what serves has seen them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from xc_core.bundle import open_bundle
from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TRAIN, VALIDATION
from xc_core.errors import MovedError
from xc_core.fusion import FusionConfig, Neighbours
from xc_core.stages import STAGES, Workspace, fusion, run_stage
from xc_core.stages.clusters import trainings

SETTING = "experiments/toy_ngame/stages/classifier/refit"
VOTES = {
    "fusion": {
        **TOY_CHANGES["fusion"],
        "features": ["label_text", "classifier", "frequency", "neighbours"],
        "add": ["classifier", "neighbours"],
    }
}
Edit = Callable[[Workspace, dict[str, Any]], None]


def rerun(workspace: Workspace, *without: str) -> Workspace:
    for name in STAGES:
        if name not in ("leaderboard", *without):
            run_stage(workspace, name, "toy", "ngame")
    return workspace


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Workspace]:
    """The same experiment, where neighbours vote, with and without the second training."""
    made = {}
    for refit in (True, False):
        workspace = make_workspace(tmp_path_factory.mktemp(f"refit{refit}"))
        changes = {**TOY_CHANGES, **VOTES, "classifier": {**TOY_CHANGES["classifier"], "refit": refit}}
        workspace.declare_experiment("toy", "ngame", "ngame", changes)
        made[refit] = rerun(workspace)
    return made


def file(workspace: Workspace, stage: str, name: str) -> Path:
    return workspace.folder(stage, "toy", "ngame") / name


HELD = ("held/0", "held/1")


def validation_labels(workspace: Workspace) -> tuple[Corpus, dict[str, Any]]:
    """The corpus, and the documents of each training by its name."""
    corpus = Corpus.open(workspace.folder("corpus", "toy"))
    return corpus, trainings(corpus, refit=True)


def test_each_half_of_the_validation_documents_is_left_out_once(both: dict[bool, Workspace]) -> None:
    corpus, made = validation_labels(both[True])
    validation, published = set(corpus.rows(VALIDATION)), set(corpus.published_rows())
    left_out = [published - set(made[name]) for name in HELD]
    assert set(made[""]) == published
    assert all(left_out), "neither half is empty"
    assert left_out[0] | left_out[1] == validation
    assert not left_out[0] & left_out[1]
    assert list(made) == [*HELD, ""], "what serves is trained last"
    assert list(trainings(corpus, refit=False)) == [""]
    np.testing.assert_array_equal(trainings(corpus, refit=False)[""], corpus.rows(TRAIN))


def test_validation_documents_are_scored_by_what_has_not_seen_them(
    both: dict[bool, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, made = validation_labels(both[True])
    voters, asked = [], []
    of, gathered = Neighbours.of, fusion._gathered

    def counted(vectors: Any, truth: Any) -> Neighbours:
        voters.append(truth.indices)
        return of(vectors, truth)

    def noted(context: Any, own: Corpus, rows: Any, training: str) -> Any:
        asked.append((training, set(rows)))
        return gathered(context, own, rows, training)

    monkeypatch.setattr(Neighbours, "of", counted)
    monkeypatch.setattr(fusion, "_gathered", noted)
    run_stage(both[True], "fusion", "toy", "ngame", force=True)
    assert [name for name, _ in asked] == [*HELD]
    for (name, rows), voted in zip(asked, voters, strict=True):
        assert not rows & set(made[name])
        np.testing.assert_array_equal(voted, corpus.labels.rows(made[name]).indices)
    assert set.union(*(rows for _, rows in asked)) == set(corpus.rows(VALIDATION))


def test_parts_come_together_in_the_order_of_their_documents() -> None:
    rows = np.array([5, 9, 2, 7, 8])
    parts = []
    for own, width in ((rows[:2], 2), (rows[2:], 3)):
        ids = np.repeat(own[:, None], width, axis=1).astype(np.int32)
        parts.append(fusion.Pairs(ids, np.stack([ids, -ids], axis=2).astype(np.float32), ids > 5, ids > 0))
    whole = fusion.Pairs.together(parts, rows)
    assert whole.ids_NK.tolist() == [[2] * 3, [5, 5, -1], [7] * 3, [8] * 3, [9, 9, -1]]
    assert whole.features_NKF[1].tolist() == [[5, -5], [5, -5], [0, 0]]
    assert whole.positive_NK.tolist() == [[False] * 3, [False] * 3, [True] * 3, [True] * 3, [True, True, False]]
    assert whole.found_NK[4].tolist() == [True, True, False]


def test_one_training_is_left_out_where_a_half_is_enough_for_the_fusion(
    copied: Workspace, edit: Edit, lines: list[str]
) -> None:
    corpus = Corpus.open(copied.folder("corpus", "toy"))
    first = len(corpus.validation_halves()[0])
    edit(copied, {"experiments/toy_ngame/stages/fusion/rows": first - 1})
    rerun(copied)
    assert file(copied, "classifier", "held/0/rows.npy").is_file()
    assert not file(copied, "classifier", "held/1").exists()
    manifest = json.loads(file(copied, "fusion", "manifest.json").read_text())
    assert manifest["facts"]["documents"] == first - 1
    edit(copied, {"experiments/toy_ngame/stages/fusion/rows": first + 1})
    rerun(copied)
    assert file(copied, "classifier", "held/1").is_dir()
    manifest = json.loads(file(copied, "fusion", "manifest.json").read_text())
    assert manifest["facts"]["documents"] == first + 1


def test_a_document_is_of_the_same_half_whatever_comes_beside_it(tmp_path: Path) -> None:
    halves = []
    for documents in (240, 160):
        workspace = make_workspace(tmp_path / str(documents), ToyWorld.make(documents))
        run_stage(workspace, "corpus", "toy")
        corpus = Corpus.open(workspace.folder("corpus", "toy"))
        halves.append([set(corpus.table("documents", own)["uid"]) for own in corpus.validation_halves()])
    for more, fewer in zip(*halves, strict=True):
        assert fewer < more


def test_what_serves_has_learnt_on_validation_documents_too(both: dict[bool, Workspace]) -> None:
    corpus = Corpus.open(both[True].folder("corpus", "toy"))
    train, all_rows = corpus.rows(TRAIN), corpus.published_rows()
    assert len(all_rows) == len(train) + len(corpus.rows(VALIDATION)) > len(train)
    for refit, rows in ((True, all_rows), (False, train)):
        sources = open_bundle(both[refit].folder("model", "toy", "ngame")).scorer.sources
        served = np.load(file(both[refit], "classifier", "rows.npy"))
        np.testing.assert_array_equal(sources.rows_LD, served)
        np.testing.assert_array_equal(sources.frequency_L, corpus.labels.rows(rows).frequency_L())
        assert sources.neighbours is not None
        np.testing.assert_array_equal(sources.neighbours.truth.indices, corpus.labels.rows(rows).indices)
        manifest = json.loads(file(both[refit], "classifier", "manifest.json").read_text())
        assert manifest["facts"]["documents"] == len(rows)
    assert not np.array_equal(served, np.load(file(both[True], "classifier", "rows.npy")))
    assert not file(both[False], "classifier", "held").exists()


def test_the_index_is_over_what_serves(both: dict[bool, Workspace]) -> None:
    predictor = open_bundle(both[True].folder("model", "toy", "ngame"))
    rows_LD = np.load(file(both[True], "classifier", "rows.npy"))
    found = predictor.scorer.searchers.by_row.search(rows_LD, 1)
    np.testing.assert_allclose(found.scores_NK[:, 0], (rows_LD**2).sum(1), rtol=1e-5)


def test_each_training_has_clusters_of_its_documents(both: dict[bool, Workspace]) -> None:
    corpus = Corpus.open(both[True].folder("corpus", "toy"))
    for prefix, rows in (("", corpus.rows(TRAIN)), ("refit_", corpus.published_rows())):
        order = np.load(file(both[True], "clusters", f"{prefix}order.npy"))
        assert sorted(order.tolist()) == list(range(len(rows)))
        assert np.load(file(both[True], "clusters", f"{prefix}sizes.npy")).sum() == len(rows)
    assert not file(both[False], "clusters", "refit_order.npy").exists()


def test_a_label_whose_only_document_is_for_validation_is_learnt(tmp_path: Path) -> None:
    world = ToyWorld.make()
    probe = make_workspace(tmp_path / "probe", world)
    run_stage(probe, "corpus", "toy")
    corpus = Corpus.open(probe.folder("corpus", "toy"))
    uid = corpus.table("documents", corpus.rows(VALIDATION)[:1])["uid"][0]
    world.labels.append({"uid": "L10", "title": "meadow", "content": ""})
    for row in world.train:
        if row["uid"] == uid:
            row["target_ind"], row["target_rel"] = [*row["target_ind"], 10], [1.0, 1.0, 1.0]
    workspace = rerun(make_workspace(tmp_path / "world", world), "evaluation", "model")
    corpus = Corpus.open(workspace.folder("corpus", "toy"))
    at = corpus.table("documents")["uid"].to_list().index(uid)
    document = np.load(file(workspace, "embeddings", "documents.npy"))[at]
    score = {
        name: float(document @ np.load(file(workspace, "classifier", f"{name}/rows.npy".lstrip("/")))[10])
        for name in ("", *HELD)
    }
    half = [uid in set(corpus.table("documents", own)["uid"]) for own in corpus.validation_halves()].index(True)
    assert score[""] > score[HELD[half]] + 0.1, "without the document the label is known as a negative alone"
    assert score[HELD[1 - half]] > score[HELD[half]] + 0.1


def test_without_validation_documents_there_is_one_training(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    from xc_core.data.ingest import IngestConfig

    workspace.declare_dataset("toy", IngestConfig(validation_fraction=0.0))
    rerun(workspace)
    assert not file(workspace, "classifier", "held").exists()
    assert file(workspace, "model", "manifest.json").is_file()


def test_a_refresh_keeps_both(copied: Workspace, edit: Edit) -> None:
    names = ("rows.npy", *(f"{name}/rows.npy" for name in HELD))
    before = [np.load(file(copied, "classifier", name)) for name in names]
    run_stage(copied, "classifier", "toy", "ngame", refresh=True)
    for name, rows in zip(names, before, strict=True):
        np.testing.assert_array_equal(np.load(file(copied, "classifier", name)), rows)
    assert pl.read_parquet(file(copied, "classifier", "labels.parquet"))["uid"].len() == len(before[0])
    edit(copied, {SETTING: False})
    run_stage(copied, "classifier", "toy", "ngame")
    edit(copied, {SETTING: True})
    with pytest.raises(MovedError, match=r"classifier\.refit"):
        run_stage(copied, "classifier", "toy", "ngame", refresh=True)


def test_the_fusion_is_compared_on_documents_it_was_not_fitted_on() -> None:
    """On noise a deep tree knows by heart what it was fitted on, and nothing of another document."""
    random, documents, candidates = np.random.default_rng(0), 60, 5
    ids_NK = np.tile(np.arange(candidates, dtype=np.int32), (documents, 1))
    positive_NK = np.zeros((documents, candidates), bool)
    positive_NK[np.arange(documents), random.integers(0, candidates, documents)] = True
    noise_NKF = random.standard_normal((documents, candidates, 1)).astype(np.float32)
    pairs = fusion.Pairs(ids_NK, noise_NKF, positive_NK, np.ones_like(positive_NK))
    config = FusionConfig(kind="tree", features=("classifier",), add=("classifier",), weight=0, depth=30, min_leaf=1)
    truth = LabelMatrix(np.arange(documents + 1), np.nonzero(positive_NK)[1].astype(np.int32), candidates)
    weights_L = np.ones(candidates)
    by_heart = pairs.rank(pairs.fit(config, weights_L), config.needed)
    assert truth.contains(np.arange(documents), by_heart.ids_NK[:, 0]).mean() > 0.9
    found = fusion._compare(config, pairs, truth, weights_L)
    assert found["tree"]["P_at_1"] < 40, "a fifth is chance"
