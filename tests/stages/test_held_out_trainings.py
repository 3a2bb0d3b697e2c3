"""What each training of M4 has learnt from: every document but those of its half of the validation documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.conftest import TOPICS, ToyWorld
from tests.stages.halves import UNSEEN, WORDS, file, named_world, open_corpus, part_of_uid, prepared, seen
from xc_core.data.splits import TRAIN
from xc_core.fusion import Lexical
from xc_core.stages import Workspace, run_stage
from xc_core.train.checkpoint import Checkpoints

NO_WORDS = {"classifier": {"lexical": {"use": False}}}
CLUSTERED = {"classifier": {"lexical": {"use": False}, "order": {"kind": "clustered", "cluster_size": 4}}}


@pytest.fixture(scope="module")
def part_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return part_of_uid(tmp_path_factory.mktemp("probe"))


def trained(root: Path, world: ToyWorld, changes: dict[str, Any]) -> Workspace:
    workspace = prepared(root, world, changes)
    run_stage(workspace, "classifier", "toy", "ngame")
    return workspace


def rows_of(workspace: Workspace) -> dict[str, np.ndarray[Any, Any]]:
    return {training: np.load(file(workspace, "classifier", f"./{training}/rows.npy")) for training in UNSEEN[True]}


@pytest.fixture(scope="module")
def base(part_of: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray[Any, Any]]:
    return rows_of(trained(tmp_path_factory.mktemp("base"), ToyWorld.make(), NO_WORDS))


@pytest.mark.parametrize("part", ["half0", "half1", TRAIN])
def test_the_labels_of_a_document_move_the_rows_of_those_trainings_alone_that_have_seen_it(
    part: str, part_of: dict[str, str], base: dict[str, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    world = ToyWorld.make()
    row = next(row for row in (*world.train, *world.test) if part_of[row["uid"]] == part)
    row["target_ind"] = sorted(set(range(10)) - set(row["target_ind"]))
    row["target_rel"] = [1.0] * len(row["target_ind"])
    moved = rows_of(trained(tmp_path, world, NO_WORDS))
    for training, rows in base.items():
        assert np.array_equal(rows, moved[training]) == (part in UNSEEN[True][training]), training


@pytest.mark.parametrize("refit", [True, False])
def test_the_lexical_score_knows_words_of_the_documents_it_was_fitted_on_alone(
    refit: bool, part_of: dict[str, str], tmp_path: Path
) -> None:
    workspace = trained(tmp_path, named_world(part_of), {"classifier": {"refit": refit}})
    for training, unseen in UNSEEN[refit].items():
        terms = set(pl.read_parquet(file(workspace, "classifier", f"./{training}/lexical/terms.parquet"))["term"])
        for part, word in WORDS.items():
            assert (word in terms) == (part not in unseen), (training, part)
        score = Lexical.load(file(workspace, "classifier", f"./{training}/lexical"))
        best = score.shortlist(score.vectors([f"{topic}2 {topic}3" for topic in TOPICS])).ids_NK[:, 0]
        assert best.tolist() == list(range(len(TOPICS))), "words that no label's text has come with the right labels"
    assert file(workspace, "classifier", "held").is_dir() == refit


@pytest.mark.parametrize("refit", [True, False])
def test_a_training_meets_each_of_its_documents_once_an_epoch_with_its_labels(
    refit: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of clusters, which were made of all train and validation documents."""
    tasks: list[Any] = []
    restore = Checkpoints.restore
    monkeypatch.setattr(Checkpoints, "restore", lambda own, task: tasks.append(task) or restore(own, task))
    merged = {"classifier": {**CLUSTERED["classifier"], "refit": refit}}
    workspace = trained(tmp_path, ToyWorld.make(), merged)
    corpus, vectors = open_corpus(workspace), np.load(file(workspace, "embeddings", "documents.npy"))
    assert len(tasks) == len(UNSEEN[refit])
    for training, task in zip(UNSEEN[refit], tasks, strict=True):
        rows = seen(corpus, training, refit=refit)
        np.testing.assert_array_equal(task.doc_ND, vectors[rows])
        np.testing.assert_array_equal(task.truth.pairs(), corpus.labels.rows(rows).pairs())
        for epoch in (0, 1):
            batches = task.batches(epoch)
            assert sorted(np.concatenate(batches).tolist()) == list(range(len(rows))), training
            assert max(map(len, batches)) <= 32 + 4
