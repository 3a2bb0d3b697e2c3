"""The record of what a training learnt from, and what a later corpus may hold out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ToyWorld
from tests.data.worlds import read_world
from xc_core.data.corpus import Corpus
from xc_core.data.folds import FINAL, Fold, folds
from xc_core.data.learnt import Learnt
from xc_core.data.splits import ACCEPTANCE, TEST, TRAIN, VALIDATION, digests
from xc_core.errors import MissingError, MovedError

REFITTED = [Fold("half-0", refit=True, half=0), Fold("half-1", refit=True, half=1), Fold(FINAL, refit=True)]
PLAIN = [Fold(FINAL, refit=False)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return read_world(ToyWorld.make(documents=400, tests=60).write(tmp_path_factory.mktemp("world") / "raw"))


def grown(folder: Path, corpus: Corpus, train: list[int], tests: list[int]) -> Corpus:
    """Return a corpus with other documents: these of the train file, and these as test documents."""
    world, uids = ToyWorld.make(documents=400, tests=60), corpus.uids(np.arange(corpus.num_documents))
    rows = {row["uid"]: row for row in (*world.train, *world.test)}
    learnt, held = ([rows[uids[place]] for place in places] for places in (train, tests))
    return read_world(ToyWorld(learnt, held, world.labels).write(folder / "raw"), allow=("unseen-labels",))


def test_each_fold_knows_what_it_learnt_from(corpus: Corpus, tmp_path: Path) -> None:
    Learnt.of(corpus).save(tmp_path)
    learnt, everything = Learnt.open(tmp_path), np.arange(corpus.num_documents)
    for fold in (*REFITTED, *PLAIN):
        assert learnt.seen(fold, corpus, everything).tolist() == fold.documents(corpus).tolist()
    assert learnt.check(corpus, REFITTED) == learnt.check(corpus, PLAIN) == 0
    assert len(corpus.validation_halves()[0]) and len(corpus.validation_halves()[1])


def test_a_record_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no record of what the rows in"):
        Learnt.open(tmp_path)


@pytest.mark.parametrize(
    ("split", "refused"), [(TRAIN, (True, True)), (VALIDATION, (True, False)), (TEST, (False, False))]
)
def test_a_test_document_must_be_new_to_the_rows(
    split: str, refused: tuple[bool, bool], corpus: Corpus, tmp_path: Path
) -> None:
    """Without refit, rows learnt from train documents alone."""
    moved = int(corpus.rows(split)[0])
    kept = [row for row in corpus.published_rows().tolist() if row != moved]
    later = grown(tmp_path, corpus, kept, [moved, *(row for row in corpus.rows(TEST).tolist() if row != moved)])
    uid = corpus.uids(np.array([moved]))[0]
    for folds_, wanted in zip((REFITTED, PLAIN), refused, strict=True):
        if wanted:
            with pytest.raises(MovedError) as caught:
                Learnt.of(corpus).check(later, folds_)
            assert caught.value.found == f"1 test document that the kept rows learnt from (the first: {uid})"
        else:
            assert Learnt.of(corpus).check(later, folds_) == 0


@pytest.mark.parametrize(("known", "refused"), [(0, False), (1, False), (3, True)])
def test_a_hundredth_of_the_held_out_documents_may_be_known(known: int, refused: bool, tmp_path: Path) -> None:
    world = ToyWorld.make(documents=2000, tests=60)
    corpus = read_world(world.write(tmp_path / "raw"), validation_fraction=0.1)
    made = folds(corpus, refit=True, enough=10**6)
    learnt, held = Learnt.of(corpus), corpus.rows(VALIDATION)
    assert 150 < len(held) < 250
    of_train = {int(digest) for digest in learnt.record_M["digest"][learnt.record_M["part"] > 0][:known]}
    for row in range(len(learnt.record_M)):
        if int(learnt.record_M["digest"][row]) in of_train:
            learnt.record_M["part"][row] = 0
    if refused:
        with pytest.raises(MovedError, match=f"{known} held-out documents of {len(held)} that the kept rows learnt"):
            learnt.check(corpus, made)
    else:
        assert learnt.check(corpus, made) == known


def test_each_fold_has_its_own_hundredth(tmp_path: Path) -> None:
    """Two of a hundred documents are too many for the half that they are in, though not for both halves together."""
    world = ToyWorld.make(documents=2000, tests=60)
    corpus = read_world(world.write(tmp_path / "raw"), validation_fraction=0.1)
    made, learnt = folds(corpus, refit=True, enough=10**6), Learnt.of(corpus)
    assert all(len(fold.unseen(corpus)) < 150 for fold in made)
    learnt.record_M["part"][np.flatnonzero(learnt.record_M["part"] == 1)[:2]] = 0
    with pytest.raises(MovedError, match="2 held-out documents"):
        learnt.check(corpus, made)


def test_a_document_that_changed_its_half_is_known_to_the_fold_that_holds_it_out(corpus: Corpus) -> None:
    learnt = Learnt.of(corpus)
    swapped = Learnt(learnt.record_M.copy())
    swapped.record_M["part"][learnt.record_M["part"] == 1] = 2
    with pytest.raises(MovedError, match=f"{len(corpus.validation_halves()[0])} held-out documents"):
        swapped.check(corpus, REFITTED)


def test_a_kept_encoder_has_learnt_from_documents_that_are_gone_and_that_are_held_out_now(corpus: Corpus) -> None:
    whole = Learnt.of(corpus)
    gone, held = whole.record_M["digest"][whole.record_M["part"] == 0][:2]
    today = Learnt(whole.record_M[whole.record_M["digest"] != gone].copy())
    today.record_M["part"][today.record_M["digest"] == held] = 2
    both = today.with_train_of(whole)
    assert both.record_M.tolist() == whole.record_M.tolist()
    half = Learnt(whole.record_M[whole.record_M["part"] != 1])
    assert half.with_train_of(whole).record_M.tolist() == half.record_M.tolist(), "rows alone learnt from validation"


def test_the_halves_of_the_record_are_those_of_families(tmp_path: Path) -> None:
    world = ToyWorld.make(documents=300, tests=30)
    for number, row in enumerate(world.train):
        row["group"] = f"g{number // 3}"
    grouped = read_world(world.write(tmp_path / "raw"), split="group", validation_fraction=0.4)
    learnt = Learnt.of(grouped)
    for fold in REFITTED:
        rows = learnt.seen(fold, grouped, np.arange(grouped.num_documents))
        assert rows.tolist() == fold.documents(grouped).tolist()
    assert learnt.check(grouped, REFITTED) == 0


def test_a_test_document_that_one_half_left_out_is_known_to_the_final_rows(corpus: Corpus, tmp_path: Path) -> None:
    moved = int(corpus.validation_halves()[0][0])
    kept = [row for row in corpus.published_rows().tolist() if row != moved]
    later = grown(tmp_path, corpus, kept, [moved, *corpus.rows(TEST).tolist()])
    with pytest.raises(MovedError, match="1 test document"):
        Learnt.of(corpus).check(later, REFITTED)


@pytest.mark.parametrize(("known", "refused"), [(1, False), (2, True)])
def test_the_acceptance_documents_must_be_new_to_the_rows_but_for_a_hundredth(
    known: int, refused: bool, corpus: Corpus, tmp_path: Path
) -> None:
    """The same files, ingested again with an acceptance set: the rows learnt from its documents."""
    world = ToyWorld.make(documents=400, tests=60).write(tmp_path / "raw")
    later = read_world(world, acceptance_fraction=0.1)
    accepted, learnt = later.rows(ACCEPTANCE), Learnt.of(corpus)
    assert 10 < len(accepted) < 100
    new = digests(later.uids(accepted[known:]))["high"]
    partly = Learnt(learnt.record_M[~np.isin(learnt.record_M["digest"], new)])
    if refused:
        with pytest.raises(MovedError, match=f"{known} acceptance documents of {len(accepted)} that the kept rows"):
            partly.check(later, PLAIN)
    else:
        assert partly.check(later, PLAIN) == 0


def test_acceptance_documents_that_one_half_left_out_are_known_to_the_final_rows(tmp_path: Path) -> None:
    world = ToyWorld.make(documents=400, tests=60).write(tmp_path / "raw")
    later = read_world(world, acceptance_fraction=0.1)
    learnt, accepted = Learnt.of(later), later.rows(ACCEPTANCE)[:2]
    more = np.empty(len(accepted), learnt.record_M.dtype)
    more["digest"], more["part"] = digests(later.uids(accepted))["high"], 1
    both = Learnt(np.sort(np.concatenate([learnt.record_M, more]), order="digest"))
    with pytest.raises(MovedError, match="2 acceptance documents"):
        both.check(later, REFITTED)
