"""What each training of M4 learns from: every document but those of its half of the validation documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOPICS, ToyWorld
from tests.stages.halves import (
    UNSEEN,
    WORDS,
    named_world,
    open_corpus,
    open_embeddings,
    open_scores,
    open_tables,
    part_of_uid,
    prepared,
    rows_of,
    run_until,
    seen,
)
from xc_core.chain import Workspace, run_stage
from xc_core.data.splits import TRAIN
from xc_core.scores.lexical import LabelTrees
from xc_core.train.checkpoint import Checkpoints

CLUSTERED = {"order": {"kind": "stored-clusters", "batch_size": 32}}


@pytest.fixture(scope="module")
def part_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return part_of_uid(tmp_path_factory.mktemp("probe"))


def trained(root: Path, world: ToyWorld, changes: dict[str, Any]) -> Workspace:
    workspace = prepared(root, world, changes)
    run_stage(workspace, "classifier", "toy", "ngame")
    return workspace


def all_rows(workspace: Workspace) -> dict[str, np.ndarray[Any, Any]]:
    return {training: rows_of(workspace, training) for training in UNSEEN[True]}


@pytest.fixture(scope="module")
def base(part_of: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray[Any, Any]]:
    return all_rows(trained(tmp_path_factory.mktemp("base"), ToyWorld.make(), {}))


@pytest.mark.parametrize("part", ["half0", "half1", TRAIN])
def test_the_labels_of_a_document_change_the_rows_of_those_trainings_only_that_have_seen_it(
    part: str, part_of: dict[str, str], base: dict[str, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    world = ToyWorld.make()
    row = next(row for row in (*world.train, *world.test) if part_of[row["uid"]] == part)
    row["target_ind"] = sorted(set(range(10)) - set(row["target_ind"]))
    row["target_rel"] = [1.0] * len(row["target_ind"])
    changed = all_rows(trained(tmp_path, world, {}))
    for training, rows in base.items():
        assert np.array_equal(rows, changed[training]) == (part in UNSEEN[True][training]), training


@pytest.mark.parametrize("refit", [True, False])
def test_the_lexical_score_knows_only_words_of_the_documents_it_was_fitted_on(
    refit: bool, part_of: dict[str, str], tmp_path: Path
) -> None:
    changes = {"classifier": {"refit": refit}, "scores": {"lexical": {"trees": 1}}}
    workspace = trained(tmp_path, named_world(part_of), changes)
    run_until(workspace, "scores")
    scores = open_scores(workspace)
    for training, unseen in UNSEEN[refit].items():
        score = scores.fitted(training)["lexical"]
        assert isinstance(score, LabelTrees)
        for part, word in WORDS.items():
            assert (word in score.terms.vectorizer.vocabulary_) == (part not in unseen), (training, part)
        best = score.shortlist(score.terms.vectors([f"{topic}2 {topic}3" for topic in TOPICS])).ids_NK[:, 0]
        assert best.tolist() == list(range(len(TOPICS))), "words that no label text has belong to the right labels"
    for made in (open_tables(workspace).folds, scores.folds):
        assert [fold.name for fold in made] == list(UNSEEN[refit])


@pytest.mark.parametrize("refit", [True, False])
def test_a_training_meets_each_of_its_documents_once_per_epoch_with_its_labels(
    refit: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of clusters, which were made of all train and validation documents."""
    tasks: list[Any] = []
    restore = Checkpoints.restore
    monkeypatch.setattr(Checkpoints, "restore", lambda own, task: tasks.append(task) or restore(own, task))
    workspace = trained(tmp_path, ToyWorld.make(), {"classifier": {**CLUSTERED, "refit": refit}})
    corpus, vectors = open_corpus(workspace), open_embeddings(workspace).documents_ND
    assert len(tasks) == len(UNSEEN[refit])
    for training, task in zip(UNSEEN[refit], tasks, strict=True):
        rows = seen(corpus, training, refit=refit)
        np.testing.assert_array_equal(task.data.doc_ND, vectors[rows])
        np.testing.assert_array_equal(task.data.documents.truth.pairs(), corpus.labels.rows(rows).pairs())
        for epoch in (0, 1):
            batches = task.batches(epoch)
            assert sorted(np.concatenate(batches).tolist()) == list(range(len(rows))), training
            assert max(map(len, batches)) <= 32 + 4


@pytest.mark.parametrize(("order", "epoch"), [("random", 0), ("clustered", 1)])
def test_the_audit_gets_the_batches_of_the_first_epoch_and_of_the_last_if_the_order_adapts(
    order: str, epoch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[Any] = []
    restore = Checkpoints.restore
    monkeypatch.setattr(Checkpoints, "restore", lambda own, task: tasks.append(task) or restore(own, task))
    workspace = trained(tmp_path, ToyWorld.make(), {"classifier": {"order": {"kind": order, "batch_size": 32}}})
    stored = open_tables(workspace).audited_batches()
    assert stored is not None
    own, other = ([sorted(batch.tolist()) for batch in tasks[-1].batches(at)] for at in (epoch, 1 - epoch))
    assert [batch.tolist() for batch in stored] == own != other
