"""The fusion must not learn from labels that reveal held-out documents: a planted leak, and counts by a naive twin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ToyWorld
from tests.data.worlds import read_world
from tests.stages.halves import open_corpus, prepared, run_until
from xc_core import artifacts
from xc_core.chain import Workspace
from xc_core.data.corpus import Corpus
from xc_core.data.folds import FINAL, Fold, _rare
from xc_core.data.splits import TEST, VALIDATION
from xc_core.fusion import FittedFusion, Inputs, Pairs, Tree

RULE = {"kind": "tree", "features": ["frequency"], "add": ["classifier"], "depth": 2, "min_leaf": 1}


def random_world(counts_L: list[int], tests: int = 120) -> ToyWorld:
    """Return a world whose texts say nothing of their labels; label l has ``counts_L[l]`` train documents."""
    world, rng = ToyWorld.make(sum(counts_L), tests), np.random.default_rng(0)
    world.labels = [{"uid": f"L{i}", "title": f"label{i}", "content": ""} for i in range(len(counts_L))]
    labels = [label for label, count in enumerate(counts_L) for _ in range(count)]
    for row, label in zip(world.train, rng.permutation(labels).tolist(), strict=True):
        row |= {"target_ind": [label], "target_rel": [1.0]}
    for number, row in enumerate(world.test):
        row |= {"target_ind": [number % len(counts_L)], "target_rel": [1.0]}
    return world


def run(root: Path, counts_L: list[int], *, refit: bool = False) -> tuple[Workspace, Pairs]:
    """Run all stages until the fusion; return what the served rule was fitted on."""
    changes = {
        "classifier": {"refit": refit, "enough": 10_000, "epochs": 1.0},
        "fusion": {"candidates": len(counts_L), "rule": RULE},
    }
    workspace = prepared(root, random_world(counts_L), changes)
    fits: list[Pairs] = []
    fit = Tree.fit

    def spy(rule: Tree, inputs: Inputs, pairs: Pairs) -> FittedFusion:
        fits.append(pairs)
        return fit(rule, inputs, pairs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tree, "fit", spy)
        run_until(workspace, "fusion")
    return workspace, max(fits, key=lambda pairs: len(pairs.filled_NK))


def facts_of(workspace: Workspace) -> dict[str, Any]:
    return artifacts.read_made(workspace.folder("fusion", "toy", "ngame")).facts


def counts(corpus: Corpus, rows: Any) -> Counter[int]:
    """Return the number of the documents ``rows`` of each label, by a loop."""
    return Counter(int(label) for row in rows for label in corpus.labels.row(int(row)))


@pytest.mark.parametrize("refit", [True, False])
def test_low_counts_are_not_evidence_of_a_label_if_texts_tell_nothing(tmp_path: Path, refit: bool) -> None:
    """The share of positives of a rare label must be about what its count says, as for new documents."""
    counts_L = [int(count) + 2 for count in np.random.default_rng(1).geometric(0.2, 400)]
    workspace, pairs = run(tmp_path, counts_L, refit=refit)
    assert min(counts_L) == 3
    assert all(facts_of(workspace)["revealing_labels"].values())
    frequency_NK, filled_NK = pairs.values_NKF[..., 2], pairs.filled_NK
    assert frequency_NK[filled_NK].min() == 3
    rare_NK = filled_NK & (frequency_NK <= 4)
    expected = frequency_NK[rare_NK].mean() / sum(counts_L)
    assert 0.5 * expected < pairs.target_NK[rare_NK].mean() < 1.5 * expected


def test_pairs_of_labels_below_the_least_published_count_are_left_out(tmp_path: Path) -> None:
    counts_L = [4] * 10 + [9] * 50
    workspace, pairs = run(tmp_path, counts_L)
    corpus = open_corpus(workspace)
    published, train = counts(corpus, corpus.published_rows()), counts(corpus, corpus.rows("train"))
    assert [published[label] for label in range(len(counts_L))] == counts_L
    marked = {label for label in range(len(counts_L)) if train[label] < 4}
    validation = corpus.rows(VALIDATION)
    kept = [row for row in validation if not marked & set(corpus.labels.row(int(row)).tolist())]
    assert len(validation) / 2 < len(kept) < len(validation)
    assert len(pairs.filled_NK) == len(kept), "a document without any other label is left out"
    assert set(pairs.filled_NK.sum(1)) == {len(counts_L) - len(marked)}
    assert facts_of(workspace)["documents"] == len(kept)
    assert facts_of(workspace)["revealing_labels"] == {FINAL: len(marked)}


@pytest.mark.parametrize(("least", "left_out"), [(20, True), (21, False)])
def test_only_labels_of_few_documents_are_left_out(tmp_path: Path, least: int, left_out: bool) -> None:
    workspace, pairs = run(tmp_path, [least] * 3 + [60] * 12)
    (marked,) = facts_of(workspace)["revealing_labels"].values()
    assert (marked > 0) == left_out
    lowest = pairs.values_NKF[..., 2][pairs.filled_NK].min()
    assert lowest >= least if left_out else lowest == least, "a lower count would reveal as much"
    assert (len(pairs.filled_NK) < len(open_corpus(workspace).rows(VALIDATION))) == left_out


def test_all_pairs_are_kept_if_more_than_half_would_be_left_out(tmp_path: Path) -> None:
    """Each label has exactly 4 documents, so every positive is one of a label below 4."""
    workspace, pairs = run(tmp_path, [4] * 60)
    assert facts_of(workspace)["revealing_labels"] == {FINAL: 0}
    assert pairs.target_NK.sum() == len(open_corpus(workspace).rows(VALIDATION))
    assert set(np.unique(pairs.values_NKF[..., 2][pairs.filled_NK])) == {4.0}


def test_labels_without_published_documents_keep_the_count_zero_and_are_not_left_out(tmp_path: Path) -> None:
    world = ToyWorld.make()
    world.labels.append({"uid": "new", "title": "new", "content": ""})
    corpus = read_world(world.write(tmp_path / "world"), allow=("unseen-labels",))
    least = min(counts(corpus, corpus.published_rows()).values())
    for fold in (Fold(FINAL, refit=False), Fold("half-0", refit=True, half=0), Fold(FINAL, refit=True)):
        assert fold.counts(corpus)[-1] == 0
        assert not fold.revealing_labels(corpus)[-1]
        assert fold.counts(corpus)[:-1].min() >= least


@pytest.mark.parametrize("unused", [0, 200])
def test_a_count_of_zero_says_of_held_out_documents_what_it_says_of_new_ones(unused: int, tmp_path: Path) -> None:
    """Labels by Zipf's law, many of which only test documents have, and some that no document has."""
    rng, labels = np.random.default_rng(0), 800
    rate_L = 1 / np.arange(1, labels + 1)
    train, test = (rng.choice(labels, size, p=rate_L / rate_L.sum()) for size in (1000, 400))
    world = ToyWorld.make(len(train), len(test))
    world.labels = [{"uid": f"L{i}", "title": f"label{i}", "content": ""} for i in range(labels + unused)]
    for rows, drawn in ((world.train, train), (world.test, test)):
        for row, label in zip(rows, drawn.tolist(), strict=True):
            row |= {"target_ind": [label], "target_rel": [1.0]}
    corpus = read_world(world.write(tmp_path / "world"), allow=("unseen-labels",), validation_fraction=0.2)
    halves = corpus.validation_halves()

    def share_of_zero(fold: Fold, rows: Any) -> float:
        """Return the share of documents with a label that counts 0, of those that a fusion is fitted on."""
        zero_L, kept_L = fold.counts(corpus) == 0, ~fold.revealing_labels(corpus)
        had = [label for row in rows for label in corpus.labels.row(int(row)).tolist() if kept_L[label]]
        return float(zero_L[had].mean())

    new = share_of_zero(Fold(FINAL, refit=True), corpus.rows(TEST))
    held_out = [share_of_zero(Fold(f"half-{half}", refit=True, half=half), halves[half]) for half in (0, 1)]
    assert new > 0.05
    assert 0.6 * new < np.mean(held_out) < 1.5 * new
    assert 0.6 * new < share_of_zero(Fold(FINAL, refit=False), corpus.rows(VALIDATION)) < 1.7 * new


def test_whether_a_count_of_zero_is_plain_is_the_same_for_both_held_out_trainings(tmp_path: Path) -> None:
    """It depends on all labels that only validation documents have, about half of which one training has seen."""
    world = random_world([1] * 100)
    world.labels += [{"uid": f"new{i}", "title": "new", "content": ""} for i in range(18)]
    corpus = read_world(world.write(tmp_path / "world"), validation_fraction=0.5, allow=("unseen-labels",))
    held_out = {label for label, count in counts(corpus, corpus.rows("train")).items() if count}
    held_out = set(range(100)) - held_out
    assert len(held_out) > 2 * 18 > len(held_out) / 2
    for half in (0, 1):
        fold = Fold(f"half-{half}", refit=True, half=half)
        unseen = held_out - set(counts(corpus, fold.documents(corpus)))
        assert 2 * 18 > len(unseen) > 10
        assert set(np.flatnonzero(fold.revealing_labels(corpus)).tolist()) == unseen
        assert fold.counts(corpus).tolist() == [1] * 100 + [0] * 18


@pytest.mark.parametrize("beside", [0, -1])
def test_a_count_of_zero_is_plain_beside_half_as_many_labels_without_documents(beside: int, tmp_path: Path) -> None:
    world = random_world([1] * 100)
    drawn = read_world(world.write(tmp_path / "drawn"), validation_fraction=0.5)
    held_out = 100 - len(counts(drawn, drawn.rows("train")))
    unused = -(-held_out // 2) + beside
    world.labels += [{"uid": f"new{i}", "title": "new", "content": ""} for i in range(unused)]
    corpus = read_world(world.write(tmp_path / "world"), validation_fraction=0.5, allow=("unseen-labels",))
    fold = Fold(FINAL, refit=False)
    assert (fold.counts(corpus) == 0).sum() == unused + (0 if beside else held_out)
    assert fold.revealing_labels(corpus).sum() == (held_out if beside else 0)


def test_a_count_of_zero_is_plain_while_lower_counts_than_published_still_reveal(tmp_path: Path) -> None:
    world = random_world([4] * 60 + [9] * 40)
    world.labels += [{"uid": f"new{i}", "title": "new", "content": ""} for i in range(50)]
    corpus = read_world(world.write(tmp_path / "world"), validation_fraction=0.5, allow=("unseen-labels",))
    own, fold = counts(corpus, corpus.rows("train")), Fold(FINAL, refit=False)
    assert min(own.get(label, 0) for label in range(100)) == 0, "some label has validation documents only"
    marked = {label for label in range(100) if 0 < own[label] < 4}
    assert set(np.flatnonzero(fold.revealing_labels(corpus)).tolist()) == marked
    expected = [max(own[label], 4) if own[label] else 0 for label in range(150)]
    assert fold.counts(corpus).tolist() == expected


@pytest.mark.parametrize(
    ("published", "rare"),
    [
        ([], 1),
        ([0, 0], 1),
        ([0, 5], 5),
        ([3, 18, 25, 30], 3),  # a rare label, not one that lost documents
        ([3, 5, 5, 30], 5),
        ([3, 6, 6, 30], 3),
        ([3, 3, 4, 30], 3),
        ([1, *[9] * 98], 1),
        ([1, *[9] * 99], 9),  # one of 100 labels
        ([1, 1, *[9] * 197], 1),
        ([1, 1, *[9] * 198], 9),
    ],
)
def test_the_count_of_a_rare_label_is_that_of_the_rarest_but_for_a_hundredth(published: list[int], rare: int) -> None:
    assert _rare(np.array(published, np.int64)) == rare


@pytest.mark.parametrize("spoilt", ["acceptance", "forgotten", "added"])
def test_a_few_labels_of_fewer_documents_do_not_hide_those_that_reveal_held_out_documents(
    spoilt: str, tmp_path: Path
) -> None:
    """Every label of the train file has 4 documents or more; then the gate takes some, one goes, or a label comes."""
    world, settings = random_world([4] * 40 + [9] * 60), {"validation_fraction": 0.2, "allow": ("unseen-labels",)}
    if spoilt == "acceptance":
        settings["acceptance_fraction"] = 0.2
    elif spoilt == "forgotten":
        rare = next(row for row in world.train if row["target_ind"] == [0])
        world.train.remove(rare)
    else:
        world.labels.append({"uid": "added", "title": "added", "content": ""})
        world.train[0] |= {"target_ind": [*world.train[0]["target_ind"], len(world.labels) - 1]}
        world.train[0]["target_rel"] = [1.0, 1.0]
    corpus = read_world(world.write(tmp_path / "world"), **settings)
    published, fold = counts(corpus, corpus.published_rows()), Fold(FINAL, refit=False)
    assert min(published.values()) < 4
    own = counts(corpus, corpus.rows("train"))
    marked = {label for label in published if own[label] < 4}
    assert set(np.flatnonzero(fold.revealing_labels(corpus)).tolist()) == marked
    assert len(marked) > 10
    assert [int(count) for count in fold.counts(corpus)] == [max(own[label], 4) for label in range(len(published))]
