"""ASTRA's source: an unbiased sample of all labels, each document's own hard negatives, searches in the background."""

from __future__ import annotations

import math
import multiprocessing
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.arrays import masked
from tests.made import made
from tests.naive import search
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.losses import Bce, Sampled
from xc_core.params import changed
from xc_core.sampling import NEGATIVES, ROWS, Documents, Importance, NegativeSource
from xc_core.shapes import F32, Shortlist

SIZE, LABELS, WIDTH = 30, 40, 8
DOCS = np.array([3, 17, 22, 29])


def truth() -> LabelMatrix:
    return masked(np.random.default_rng(0).random((SIZE, LABELS)) < 0.1)


def source(kind: str = "importance", filters: LabelMatrix | None = None, **settings: Any) -> NegativeSource:
    return made(NEGATIVES, kind, positives=0, search_in=ROWS, **settings).build(Documents(truth(), filters), 0)


class Labels(dict[str, F32]):
    """Vectors of labels."""

    steady = False


class Steady(Labels):
    """Vectors that no step changes."""

    steady = True


def refresh(own: NegativeSource, epoch: int, docs: F32, rows: F32) -> dict[str, float]:
    """Refresh a source that has to search the rows: there are no other vectors."""
    return own.refresh(epoch, docs, Labels({ROWS: rows}))


def banks(seed: int = 1) -> tuple[F32, F32]:
    random = np.random.default_rng(seed)
    docs, rows = (random.standard_normal((n, WIDTH)).astype(np.float32) for n in (SIZE, LABELS))
    return docs, rows


def searched(**settings: Any) -> NegativeSource:
    own = source(**settings)
    for epoch in range(2):
        refresh(own, epoch, *banks())
    return own


def hardest(count: int) -> list[list[int]]:
    docs, rows = banks()
    order = search.nearest(rows, docs, LABELS)
    return [
        [label for label in row if label not in set(truth().row(i).tolist())][:count] for i, row in enumerate(order)
    ]


@pytest.mark.parametrize("draws", [1, 3, 4])
def test_the_binary_loss_on_the_sample_is_the_loss_over_all_labels_in_expectation(draws: int) -> None:
    """1,500 steps; the interval of the mean is so narrow that a bias of 4 % would fall outside. Gradients too."""
    own = searched(hard=5, uniform=12, draws=draws)
    scores_NL = torch.from_numpy(np.random.default_rng(3).normal(0, 1.5, (SIZE, LABELS)).astype(np.float32))
    loss = Bce(temperature=1.0)
    known = torch.from_numpy(truth().contains(DOCS[:, None], np.arange(LABELS)[None]))
    whole = scores_NL[DOCS].clone().requires_grad_(True)
    full, _ = loss(whole, known, known)
    (expected,) = torch.autograd.grad(full, whole)
    values, gradient = [], torch.zeros(len(DOCS), LABELS, dtype=torch.float64)
    for step in range(1500):
        pool = own.pool(DOCS, step)
        part = scores_NL[DOCS][:, pool.labels_U].clone().requires_grad_(True)
        assert pool.weight_BU is not None
        chosen = torch.from_numpy(pool.chosen_BU)
        total, _ = loss(part, chosen, chosen, Sampled(weight_BU=torch.from_numpy(pool.weight_BU)))
        (found,) = torch.autograd.grad(total, part)
        values.append(float(total.detach()))
        gradient[:, pool.labels_U] += found.double()
    error = np.std(values) / math.sqrt(len(values))
    assert 3.3 * error < 0.04 * float(full.detach())
    assert abs(np.mean(values) - float(full.detach())) < 3.3 * error
    np.testing.assert_allclose((gradient / 1500).numpy(), expected.numpy(), atol=0.12)


def drawn_by(pool: Any, row: int) -> set[int]:
    """Return the labels that a document without hard negatives has a weight for, or that it knows."""
    return set(pool.labels_U[(pool.weight_BU[row] > 0) | pool.known_BU[row]].tolist())


def test_each_draw_is_shared_by_an_equal_part_of_the_batch_and_has_all_its_labels() -> None:
    docs = np.arange(12)
    pool = source(hard=0, uniform=10, draws=3).pool(docs, 0)
    assert pool.weight_BU is not None
    assert set(np.unique(pool.weight_BU).tolist()) == {0.0, LABELS / 10}
    drawn = []
    for group in range(3):
        rows = range(group, 12, 3)
        unknown = [set(np.flatnonzero(~pool.known_BU[row])) for row in rows]
        weighed = [set(np.flatnonzero(pool.weight_BU[row])) for row in rows]
        drawn.append(set().union(*weighed))
        assert all(own == drawn[group] & free for own, free in zip(weighed, unknown, strict=True))
        assert 10 - len(drawn[group]) <= 2, "a label may be a positive of all four documents"
    assert len(set(map(frozenset, drawn))) == 3


def test_the_first_draw_is_that_of_a_single_one() -> None:
    one, more = (source(hard=0, uniform=10, draws=draws).pool(np.array([3, 17]), 0) for draws in (1, 2))
    first = drawn_by(one, 0)
    assert first <= set(more.labels_U.tolist())
    assert drawn_by(more, 0) - set(truth().row(3).tolist()) == first - set(truth().row(3).tolist())
    assert len(source(hard=0, uniform=10, draws=2).pool(np.zeros(0, np.int64), 0).labels_U) > 10


def test_a_document_has_its_own_hard_negatives_and_no_others() -> None:
    pool = searched(hard=3, uniform=1).pool(DOCS, 0)
    assert pool.weight_BU is not None
    for row, doc in enumerate(DOCS.tolist()):
        weighed = set(pool.labels_U[pool.weight_BU[row] > 0].tolist())
        assert set(hardest(3)[doc]) <= weighed
        assert len(weighed - set(hardest(3)[doc])) <= 1
        assert (pool.weight_BU[row, np.isin(pool.labels_U, hardest(3)[doc])] == 1).all()


def test_positives_have_no_weight() -> None:
    own = searched(hard=3, uniform=LABELS)
    pool = own.pool(DOCS, 0)
    assert pool.weight_BU is not None
    assert not (pool.weight_BU * pool.known_BU).any()
    assert (pool.weight_BU[~pool.known_BU] == 1).all(), "all labels drawn: every weight is 1"


def test_before_the_first_search_all_negatives_are_uniform_and_as_many() -> None:
    own = source(hard=5, uniform=10)
    refresh(own, 0, *banks())
    pool = own.pool(np.zeros(0, np.int64), 0)
    assert len(pool.labels_U) == 15
    refresh(own, 1, *banks())
    assert len(own.pool(np.zeros(0, np.int64), 0).labels_U) == 10


def test_without_uniform_draws_only_hard_negatives_have_weight() -> None:
    own = searched(hard=3, uniform=0)
    pool = own.pool(DOCS, 0)
    assert pool.weight_BU is not None
    assert set(np.unique(pool.weight_BU).tolist()) == {0.0, 1.0}
    assert (pool.weight_BU > 0).sum() == 3 * len(DOCS)


def test_a_curriculum_lets_hard_negatives_grow_and_keeps_the_sum() -> None:
    own = source(hard=8, uniform=4, curriculum=4.0)
    used = []
    for epoch in range(7):
        refresh(own, epoch, *banks())
        pool = own.pool(np.array([3]), 0)
        assert pool.weight_BU is not None
        hard = int((pool.weight_BU == 1).sum())
        drawn = len(own.pool(np.zeros(0, np.int64), 0).labels_U)
        assert hard + drawn == 12
        used.append(hard)
    assert used == [0, 2, 4, 6, 8, 8, 8]


def test_a_curriculum_goes_on_where_it_was_saved() -> None:
    own, other = (source(hard=8, uniform=4, curriculum=4.0) for _ in range(2))
    for epoch in range(3):
        refresh(own, epoch, *banks())
    other.load(own.arrays())
    found, again = own.pool(DOCS, 4), other.pool(DOCS, 4)
    np.testing.assert_array_equal(again.labels_U, found.labels_U)
    np.testing.assert_array_equal(again.weight_BU, found.weight_BU)
    assert (found.weight_BU == 1).sum() == 4 * len(DOCS), "half of the way"


@pytest.mark.parametrize("kind", ["mined", "importance"])
def test_a_search_in_the_background_uses_the_vectors_at_its_start(kind: str) -> None:
    """The search starts an epoch ahead; later changes of the vectors do not matter."""
    kept = {"search": 4} if kind == "mined" else {}
    plain = source(kind, hard=4, **kept)
    ahead = source(kind, hard=4, ahead=1, warmup_epochs=2, **kept)
    docs, rows = banks(1)
    refresh(plain, 1, docs, rows)
    assert refresh(ahead, 0, *banks(3)) == {}, "before the start of its first search"
    refresh(ahead, 1, docs, rows)
    docs[:], rows[:] = banks(2)
    refresh(ahead, 2, docs, rows)
    np.testing.assert_array_equal(ahead.arrays()["hard"], plain.arrays()["hard"])
    refresh(plain, 2, docs, rows)
    refresh(ahead, 3, *banks(3))
    np.testing.assert_array_equal(ahead.arrays()["hard"], plain.arrays()["hard"])


def test_vectors_are_read_when_a_search_begins_and_when_it_ends() -> None:
    """In other epochs they are not even copied from a card."""
    settings = Importance(warmup_epochs=2, ahead=1, refresh_every=3)
    assert [epoch for epoch in range(9) if settings.due(epoch)] == [2, 5, 8]
    assert [epoch for epoch in range(9) if settings.reads(epoch)] == [1, 2, 4, 5, 7, 8]
    assert [epoch for epoch in range(9) if Importance(refresh_every=3).reads(epoch)] == [1, 4, 7]


@pytest.mark.parametrize(
    ("labels", "beside", "copied", "waits"),
    [(Labels, 1 << 20, True, False), (Labels, 0, False, True), (Steady, 0, False, False)],
)
def test_a_search_beside_the_training_has_its_own_vectors_and_a_large_one_is_waited_for(
    labels: type[Labels], beside: int, copied: bool, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xc_core.sampling.searched._BESIDE", beside)
    own, (docs, rows), seen = source(hard=4, ahead=1, warmup_epochs=2), banks(1), []
    search = own._search  # type: ignore[attr-defined]

    def spy(doc_ND: F32, label_LD: F32) -> Any:
        seen.append((doc_ND, label_LD, threading.current_thread() is threading.main_thread()))
        return search(doc_ND, label_LD)

    monkeypatch.setattr(own, "_search", spy)
    own.refresh(1, docs, labels({ROWS: rows}))
    own.arrays()  # waits for the thread
    ((doc_ND, label_LD, here),) = seen
    assert here == waits
    assert np.shares_memory(doc_ND, docs) == np.shares_memory(label_LD, rows) == (not copied)


def test_a_process_that_ends_does_not_wait_for_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    fork = multiprocessing.get_context("fork")
    asked = fork.Value("i", 0)

    class Slow:
        size, width = LABELS, WIDTH

        def search(self, queries: F32, k: int) -> Shortlist:
            asked.value += 1
            time.sleep(0.2)
            return Shortlist(np.zeros((len(queries), k), np.int32), np.zeros((len(queries), k), np.float32))

    monkeypatch.setattr("xc_core.sampling.searched.mining_index", lambda vectors: Slow())
    monkeypatch.setattr("xc_core.sampling.mining._DOCS_AT_ONCE", 1)
    begin = fork.Process(target=refresh, args=(source(hard=4, ahead=1, warmup_epochs=2), 1, *banks()))
    begin.start()
    begin.join(60)
    assert begin.exitcode == 0
    assert asked.value < SIZE


def test_a_running_search_is_part_of_the_state() -> None:
    begun, other = (source(hard=4, ahead=1, warmup_epochs=2) for _ in range(2))
    refresh(begun, 1, *banks(1))
    other.load(begun.arrays())
    for own in (begun, other):
        refresh(own, 2, *banks(2))
    np.testing.assert_array_equal(other.arrays()["hard"], begun.arrays()["hard"])
    np.testing.assert_array_equal(other.arrays()["hard_next"], begun.arrays()["hard_next"])
    assert other.pool(DOCS, 4).labels_U.tolist() == begun.pool(DOCS, 4).labels_U.tolist()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hard": 0, "uniform": 0}, "uniform 0"),
        ({"ahead": 1, "warmup_epochs": 1}, "ahead 1\n  expected: less than 1"),
        ({"ahead": 2, "warmup_epochs": 3, "refresh_every": 1}, "ahead 2\n  expected: less than 2"),
        ({"search_in": "row"}, "search_in 'row'\n  expected: texts or rows"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(Importance(), wrong, "encoder.negatives")


def test_recall_is_one_if_nothing_moved_and_falls_if_rows_moved() -> None:
    own = source(hard=6, ahead=1, warmup_epochs=2)
    refresh(own, 1, *banks(1))
    same = refresh(own, 2, *banks(1))
    moved = refresh(own, 3, *banks(2))
    assert same["hard_recall"] == 1.0
    assert "hard_recall_left" not in same, "there were none before"
    assert moved["hard_recall"] < 0.7, "searched on the vectors before they moved"
    assert moved["hard_recall_left"] < 0.7
    assert refresh(source(hard=6), 1, *banks(1))["hard_recall"] == 1.0


@pytest.mark.parametrize(
    ("epochs", "changes"),
    [
        (0.7, {}),
        (1.0, {}),
        (1.5, {"warmup_epochs": 1, "ahead": 0, "curriculum": 0.9}),
        (2.5, {"warmup_epochs": 2, "ahead": 1, "curriculum": 1.5}),
        (3.5, {"curriculum": 2.1}),
        (10.0, {"curriculum": 6.0}),
    ],
)
def test_a_shorter_training_searches_in_its_last_epoch_at_the_latest(epochs: float, changes: dict[str, float]) -> None:
    """Vectors to search come from the first epoch, so a training of one epoch stays as it is."""
    settings = Importance(warmup_epochs=3, ahead=2, refresh_every=2, curriculum=6.0)
    assert settings.shortened(epochs, of=10.0) == changes
    shorter = replace(settings, **changes)  # type: ignore[arg-type]
    assert any(shorter.due(epoch) for epoch in range(math.ceil(epochs))) == (epochs > 1)
    assert not Importance(hard=0, warmup_epochs=3).shortened(epochs, of=10.0)


@pytest.mark.parametrize("filters", [None, LabelMatrix.from_pairs(DOCS, DOCS % 5, (SIZE, LABELS))])
def test_the_comparison_has_as_many_negatives_all_uniform(filters: LabelMatrix | None) -> None:
    own = searched(filters=filters, hard=4, uniform=8)
    estimates = own.estimates()
    assert list(estimates) == ["gradient_error", "gradient_error_uniform"]
    assert estimates["gradient_error"] is own
    other = estimates["gradient_error_uniform"]
    pool = other.pool(np.zeros(0, np.int64), 0)
    assert len(pool.labels_U) == 12
    np.testing.assert_array_equal(other.known.indices, own.known.indices)
    assert set(np.unique(other.pool(DOCS, 0).weight_BU).tolist()) == {0.0, np.float32(LABELS / 12)}
