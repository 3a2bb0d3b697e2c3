"""Folds: which documents a training uses, and which validation documents it leaves out for the fusion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.worlds import read_world, small_world, write_world
from xc_core.data.corpus import Corpus
from xc_core.data.folds import FINAL, Fold, folds, unseen
from xc_core.data.splits import drawn


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return read_world(write_world(tmp_path_factory.mktemp("folds") / "world"), validation_fraction=0.5)


@pytest.fixture(scope="module")
def without_validation(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return read_world(write_world(tmp_path_factory.mktemp("folds") / "world"), validation_fraction=0.0)


def chosen(corpus: Corpus, limit: int, *, refit: bool = True, enough: int = 1000) -> dict[str, list[int]]:
    """Return the rows that ``unseen`` chooses, by the name of the fold."""
    made = folds(corpus, refit=refit, enough=enough)
    return {fold.name: rows.tolist() for fold, rows in unseen(made, corpus, limit)}


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
    assert unseen([only], without_validation, 10) == []


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
    halves = corpus.validation_halves()
    assert chosen(corpus, 1000) == {"half-0": halves[0].tolist(), "half-1": halves[1].tolist()}


@pytest.mark.parametrize("limit", [1, 2, 5, 17])
def test_unseen_keeps_some_rows_of_both_halves_together(corpus: Corpus, limit: int) -> None:
    found, halves = chosen(corpus, limit), corpus.validation_halves()
    assert sum(len(rows) for rows in found.values()) == limit
    assert all(found.values()), "a fold without rows is left out"
    assert all(rows == sorted(rows) for rows in found.values())
    assert all(set(rows) <= set(halves[int(name[-1])].tolist()) for name, rows in found.items())


def test_unseen_of_one_half_only_has_that_half(corpus: Corpus) -> None:
    found = chosen(corpus, 3, enough=1)
    assert list(found) == ["half-0"]
    assert len(found["half-0"]) == 3
    assert set(found["half-0"]) < set(corpus.validation_halves()[0].tolist())


def test_unseen_without_refit_is_the_final_fold(corpus: Corpus) -> None:
    found = chosen(corpus, 4, refit=False)
    assert list(found) == [FINAL]
    assert len(found[FINAL]) == 4
    assert set(found[FINAL]) < set(corpus.rows("validation").tolist())


@pytest.mark.parametrize("refit", [False, True])
def test_unseen_rows_do_not_depend_on_the_order_of_the_file(tmp_path: Path, corpus: Corpus, *, refit: bool) -> None:
    world = small_world()
    world.train.reverse()
    reversed_corpus = read_world(write_world(tmp_path / "reversed", world=world), validation_fraction=0.5)
    found = [
        {name: set(c.uids(np.array(rows))) for name, rows in chosen(c, 7, refit=refit).items()}
        for c in (corpus, reversed_corpus)
    ]
    assert found[0] == found[1]


def test_unseen_rows_of_a_file_sorted_by_label_have_labels_from_all_of_it(tmp_path: Path) -> None:
    """The lowest rows of such a file have its first labels only; drawn rows have them in proportion."""
    world = small_world(3000, 10)
    size, labels = len(world.train), len(world.labels)
    for row, document in enumerate(world.train):
        document |= {"target_ind": [row * labels // size], "target_rel": [1.0]}
    corpus = read_world(write_world(tmp_path / "sorted", world=world), validation_fraction=0.5)
    rows, limit = corpus.rows("validation"), len(corpus.rows("validation")) // 4
    kept = np.concatenate([np.array(own) for own in chosen(corpus, limit).values()])
    share = [np.bincount(corpus.labels.rows(own).indices, minlength=labels) / len(own) for own in (rows, kept)]
    assert len(kept) == limit
    assert np.abs(share[0] - share[1]).max() < 0.05
    by_order = np.bincount(corpus.labels.rows(rows[:limit]).indices, minlength=labels) / limit
    assert np.abs(share[0] - by_order).max() > 0.2, "the first rows would fail this test"


def test_drawn_uids_are_also_drawn_from_fewer() -> None:
    uids = [f"D{number}" for number in range(200)]
    few, many = ([uids[at] for at in drawn(uids, count)] for count in (20, 60))
    assert len(few) == 20 and set(few) < set(many)
    assert few != uids[:20]
    assert set(few) & set(uids[100:]), "not the first ones"
    fewer = [uid for uid in uids if uid in few or uid.endswith("7")]
    assert set(few) == {fewer[at] for at in drawn(fewer, 60)} & set(few)
    assert drawn(uids, 1000).tolist() == list(range(200))


def test_a_document_stays_in_its_half_when_documents_are_added(tmp_path: Path, corpus: Corpus) -> None:
    """Rows of the table that a refresh keeps have never seen the half that their fold leaves out."""
    more = read_world(write_world(tmp_path / "more", world=small_world(90)), validation_fraction=0.5)
    before, after = ([set(c.table("documents", rows)["uid"]) for rows in c.validation_halves()] for c in (corpus, more))
    assert before[0] < after[0] and before[1] < after[1]
