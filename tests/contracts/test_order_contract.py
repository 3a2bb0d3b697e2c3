"""The contract of a batch order, for every order in the table: each document once per epoch, all state saved."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.arrays import unit
from xc_core.cluster import balanced_clusters
from xc_core.data.labels import LabelMatrix
from xc_core.sampling import ORDERS, BatchOrder, Documents, Order
from xc_core.shapes import F32

pytestmark = pytest.mark.parametrize("kind", ORDERS.names())

SIZE = 203
SETTINGS: dict[str, dict[str, Any]] = {
    "clustered": {"size": 4, "double_every": 2, "refresh_every": 2, "warmup_epochs": 1}
}


def vectors(epoch: int) -> F32:
    """Return the document vectors before ``epoch``."""
    return unit(np.random.default_rng(epoch).standard_normal((SIZE, 6)))


def config(kind: str) -> Order:
    return ORDERS[kind](batch_size=20, **SETTINGS.get(kind, {}))  # type: ignore[call-arg]


def documents(size: int) -> Documents:
    """Return documents without labels, with stored clusters of up to 4."""
    stored = balanced_clusters(vectors(0)[:size], 4, 0)
    return Documents(LabelMatrix.none(size, 1), clusters=lambda: stored)


def order(kind: str, size: int = SIZE, seed: int = 0, until: int = 0) -> BatchOrder:
    """Return an order after the refreshes of the epochs before ``until``."""
    made = config(kind).build(documents(size), seed)
    for epoch in range(until):
        made.refresh(epoch, vectors(epoch)[:size])
    return made


def plain(made: BatchOrder, epoch: int) -> list[list[int]]:
    return [batch.tolist() for batch in made.batches(epoch)]


@pytest.mark.parametrize("until", [0, 1, 2, 6])
@pytest.mark.parametrize("size", [1, 19, 20, 21, SIZE])
def test_every_document_is_in_exactly_one_batch_of_an_epoch(kind: str, until: int, size: int) -> None:
    made = order(kind, size, until=until)
    batches, clusters = made.batches(until), made.clusters()
    largest = 1 if clusters is None else int(clusters[1].max())
    assert sorted(np.concatenate(batches).tolist()) == list(range(size))
    assert all(0 < len(batch) < 20 + largest for batch in batches)
    assert all(batch.dtype == np.int64 for batch in batches)


@pytest.mark.parametrize("until", [0, 1, 2, 6])
def test_clusters_hold_every_document_once_and_lie_within_batches(kind: str, until: int) -> None:
    made = order(kind, until=until)
    if (clusters := made.clusters()) is None:
        return
    order_N, sizes = clusters
    assert sorted(order_N.tolist()) == list(range(SIZE))
    assert sizes.sum() == SIZE
    batch_of = np.empty(SIZE, np.int64)
    for number, batch in enumerate(made.batches(until)):
        batch_of[batch] = number
    assert all(len(set(batch_of[part].tolist())) == 1 for part in np.split(order_N, np.cumsum(sizes)[:-1]))


@pytest.mark.parametrize("until", [1, 4])
def test_seed_and_epoch_decide_the_batches_and_nothing_else(kind: str, until: int) -> None:
    made = order(kind, until=until)
    first, second = plain(made, 5), plain(made, 6)
    assert first != second
    assert plain(made, 5) == first == plain(order(kind, until=until), 5)
    assert plain(order(kind, seed=1, until=until), 5) != first


def test_batches_are_mixed_again_and_not_merely_reordered(kind: str) -> None:
    made = order(kind, until=3)
    sets = [{frozenset(batch) for batch in plain(made, epoch)} for epoch in (5, 6)]
    assert len(sets[0] & sets[1]) <= 1


@pytest.mark.parametrize("saved_at", [0, 1, 2, 3, 5])
def test_saved_state_continues_with_the_same_batches(kind: str, saved_at: int) -> None:
    old, new = order(kind, until=saved_at), order(kind)
    new.load({name: array.copy() for name, array in old.arrays().items()})
    for epoch in range(saved_at, saved_at + 5):
        assert plain(new, epoch) == plain(old, epoch)
        assert new.refresh(epoch, vectors(epoch)) == old.refresh(epoch, vectors(epoch))
        assert plain(new, epoch) == plain(old, epoch)


def test_a_refresh_returns_figures_when_due_and_leaves_the_vectors_alone(kind: str) -> None:
    made, settings = order(kind), config(kind)
    for epoch in range(6):
        given = vectors(epoch)
        before = plain(made, 9)
        figures = made.refresh(epoch, given)
        assert np.array_equal(given, vectors(epoch))
        assert bool(figures) == settings.due(epoch)
        assert (plain(made, 9) != before) == settings.due(epoch)
        assert all(isinstance(value, float) and np.isfinite(value) for value in figures.values())


@pytest.mark.parametrize("epochs", [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 7.0])
def test_a_shortened_order_adapts_in_the_last_epoch_at_the_latest(kind: str, epochs: float) -> None:
    """Vectors come from the first epoch, so a training of one epoch stays as it is."""
    settings = replace(config(kind), **({"warmup_epochs": 3} if config(kind).adapts else {}))
    changes = settings.shortened(epochs)
    whole = math.ceil(epochs)
    if not settings.adapts or not 1 < whole < 4:
        assert changes == {}
    else:
        assert [epoch for epoch in range(whole) if replace(settings, **changes).due(epoch)][-1:] == [whole - 1]
