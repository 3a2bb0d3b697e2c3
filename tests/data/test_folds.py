"""Folds: which documents a training uses, and which validation documents it leaves out for the fusion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.worlds import read_world, small_world, write_world
from xc_core.data.corpus import Corpus
from xc_core.data.folds import FINAL, Fold, folds, unseen


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return read_world(write_world(tmp_path_factory.mktemp("folds") / "world"), validation_fraction=0.5)


@pytest.fixture(scope="module")
def without_validation(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return read_world(write_world(tmp_path_factory.mktemp("folds") / "world"), validation_fraction=0.0)


def test_without_refit_the_only_training_uses_train_documents(corpus: Corpus) -> None:
    (only,) = folds(corpus, refit=False, enough=1)
    assert only == Fold(FINAL, refit=False)
    assert only.final
    assert only.documents(corpus).tolist() == corpus.rows("train").tolist()
    assert only.unseen(corpus).tolist() == corpus.rows("validation").tolist()


def test_without_validation_documents_refit_changes_nothing(without_validation: Corpus) -> None:
    (only,) = folds(without_validation, refit=True, enough=1)
    assert only == Fold(FINAL, refit=False)
    assert only.documents(without_validation).tolist() == list(range(60))
    assert unseen([only], without_validation, 10) == {}


def test_refit_trains_two_held_out_folds_before_the_final_one(corpus: Corpus) -> None:
    halves = corpus.validation_halves()
    made = folds(corpus, refit=True, enough=len(halves[0]) + 1)
    assert [(fold.name, fold.half, fold.final) for fold in made] == [
        ("half-0", 0, False),
        ("half-1", 1, False),
        (FINAL, None, True),
    ]
    assert all(fold.refit for fold in made)


def test_a_held_out_fold_uses_all_documents_but_its_half(corpus: Corpus) -> None:
    published = set(corpus.published_rows().tolist())
    for fold in folds(corpus, refit=True, enough=1000)[:2]:
        assert fold.half is not None
        half = corpus.validation_halves()[fold.half]
        assert set(fold.documents(corpus).tolist()) == published - set(half.tolist())
        assert fold.unseen(corpus).tolist() == half.tolist()
        assert fold.documents(corpus).tolist() == sorted(fold.documents(corpus).tolist())


def test_the_final_fold_of_a_refit_has_seen_everything(corpus: Corpus) -> None:
    final = folds(corpus, refit=True, enough=1)[-1]
    assert final.documents(corpus).tolist() == corpus.published_rows().tolist()
    assert len(final.unseen(corpus)) == 0


@pytest.mark.parametrize(("more", "names"), [(0, ["half-0", FINAL]), (1, ["half-0", "half-1", FINAL])])
def test_a_half_that_is_large_enough_makes_the_other_fold_needless(corpus: Corpus, more: int, names: list[str]) -> None:
    enough = len(corpus.validation_halves()[0]) + more
    assert [fold.name for fold in folds(corpus, refit=True, enough=enough)] == names


def test_unseen_rows_belong_to_the_fold_that_left_them_out(corpus: Corpus) -> None:
    found = unseen(folds(corpus, refit=True, enough=1000), corpus, 1000)
    halves = corpus.validation_halves()
    assert {name: rows.tolist() for name, rows in found.items()} == {
        "half-0": halves[0].tolist(),
        "half-1": halves[1].tolist(),
    }


@pytest.mark.parametrize("limit", [1, 2, 5, 17])
def test_unseen_keeps_the_lowest_rows_of_both_halves_together(corpus: Corpus, limit: int) -> None:
    found = unseen(folds(corpus, refit=True, enough=1000), corpus, limit)
    rows = np.sort(np.concatenate([*found.values()]))
    assert rows.tolist() == corpus.rows("validation")[:limit].tolist()
    assert all(len(kept) for kept in found.values()), "a fold without rows is left out"
    assert all(kept.tolist() == sorted(kept.tolist()) for kept in found.values())


def test_unseen_of_one_half_only_has_that_half(corpus: Corpus) -> None:
    found = unseen(folds(corpus, refit=True, enough=1), corpus, 3)
    assert {name: rows.tolist() for name, rows in found.items()} == {
        "half-0": corpus.validation_halves()[0][:3].tolist()
    }


def test_unseen_without_refit_is_the_final_fold(corpus: Corpus) -> None:
    found = unseen(folds(corpus, refit=False, enough=1), corpus, 4)
    assert {name: rows.tolist() for name, rows in found.items()} == {FINAL: corpus.rows("validation")[:4].tolist()}


def test_a_document_stays_in_its_half_when_documents_are_added(tmp_path: Path, corpus: Corpus) -> None:
    """Rows of the table that a refresh keeps have never seen the half that their fold leaves out."""
    more = read_world(write_world(tmp_path / "more", world=small_world(90)), validation_fraction=0.5)
    before, after = ([set(c.table("documents", rows)["uid"]) for rows in c.validation_halves()] for c in (corpus, more))
    assert before[0] < after[0] and before[1] < after[1]
