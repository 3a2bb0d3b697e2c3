"""The contract of a batch order, kept by every order in the table: each document once an epoch, all state saved."""

from __future__ import annotations

import numpy as np
import pytest

from xc_core.sampling import ORDERS, BatchOrder, OrderConfig
from xc_core.shapes import F32

pytestmark = pytest.mark.parametrize("kind", ORDERS.names())

SIZE = 203


def vectors(epoch: int) -> F32:
    """Document vectors as they stand before ``epoch``."""
    random = np.random.default_rng(epoch)
    found = random.standard_normal((SIZE, 6))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def config(kind: str) -> OrderConfig:
    return OrderConfig(kind=kind, batch_size=20, cluster_size=4, double_every=2, refresh_every=2, warmup_epochs=1)


def order(kind: str, seed: int = 0, until: int = 0) -> BatchOrder:
    """Return an order that has lived through the refreshes of the epochs before ``until``."""
    made = ORDERS[kind](config(kind), SIZE, seed)
    for epoch in range(until):
        made.refresh(epoch, vectors(epoch))
    return made


def plain(made: BatchOrder, epoch: int) -> list[list[int]]:
    return [batch.tolist() for batch in made.batches(epoch)]


@pytest.mark.parametrize("until", [0, 1, 2, 6])
@pytest.mark.parametrize("size", [1, 19, 20, 21, SIZE])
def test_every_document_is_in_exactly_one_batch_of_an_epoch(kind: str, until: int, size: int) -> None:
    made = ORDERS[kind](config(kind), size, 0)
    for epoch in range(until):
        made.refresh(epoch, vectors(epoch)[:size])
    batches = made.batches(until)
    assert sorted(np.concatenate(batches).tolist()) == list(range(size))
    assert all(0 < len(batch) < 20 + config(kind).size_at(until) for batch in batches)
    assert all(batch.dtype == np.int64 for batch in batches)


@pytest.mark.parametrize("until", [1, 4])
def test_seed_and_epoch_decide_the_batches_and_nothing_else(kind: str, until: int) -> None:
    made = order(kind, until=until)
    first, second = plain(made, 5), plain(made, 6)
    assert first != second
    assert plain(made, 5) == first == plain(order(kind, until=until), 5)
    assert plain(order(kind, seed=1, until=until), 5) != first


def test_batches_are_mixed_anew_and_not_merely_reordered(kind: str) -> None:
    made = order(kind, until=3)
    sets = [{frozenset(batch) for batch in plain(made, epoch)} for epoch in (5, 6)]
    assert len(sets[0] & sets[1]) <= 1


@pytest.mark.parametrize("saved_at", [0, 1, 2, 3, 5])
def test_saved_state_goes_on_the_same(kind: str, saved_at: int) -> None:
    old, new = order(kind, until=saved_at), order(kind)
    new.load({name: array.copy() for name, array in old.arrays().items()})
    for epoch in range(saved_at, saved_at + 5):
        assert plain(new, epoch) == plain(old, epoch)
        assert new.refresh(epoch, vectors(epoch)) == old.refresh(epoch, vectors(epoch))
        assert plain(new, epoch) == plain(old, epoch)


def test_a_refresh_reports_numbers_where_due_and_leaves_the_vectors_alone(kind: str) -> None:
    made, settings = order(kind), config(kind)
    for epoch in range(6):
        given = vectors(epoch)
        before = plain(made, 9)
        figures = made.refresh(epoch, given)
        assert np.array_equal(given, vectors(epoch))
        assert bool(figures) == settings.due(epoch)
        assert (plain(made, 9) != before) == settings.due(epoch)
        assert all(isinstance(value, float) and np.isfinite(value) for value in figures.values())
