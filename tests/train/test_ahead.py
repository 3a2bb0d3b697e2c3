"""Batches are made ahead of their steps, so far and no further, and only while somebody asks for them."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future

import pytest

from xc_core.train.ahead import prepared


def test_batches_are_made_at_most_so_far_ahead_and_their_errors_are_raised() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return 10 // (5 - number)

    queue = prepared(make, range(2, 7), 2)
    assert next(queue) == 3
    assert max(made) <= 3
    assert list(itertools.islice(queue, 2)) == [5, 10]
    with pytest.raises(ZeroDivisionError):
        next(queue)


def test_without_a_thread_a_batch_is_made_when_it_is_asked_for() -> None:
    made: list[tuple[int, str]] = []
    queue = prepared(lambda number: made.append((number, threading.current_thread().name)) or number, range(2, 9), 0)
    assert list(itertools.islice(queue, 2)) == [2, 3]
    assert made == [(2, "MainThread"), (3, "MainThread")]


def test_batches_that_nobody_asks_for_any_more_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    begun, cancelled, cancel = threading.Event(), threading.Event(), Future.cancel

    def make(number: int) -> int:
        made.append(number)
        if number == 1:
            begun.set()
            cancelled.wait(1)
        return number

    def noting(future: Future[int]) -> bool:
        done = cancel(future)
        if done:
            cancelled.set()
        return done

    monkeypatch.setattr(Future, "cancel", noting)
    queue = prepared(make, range(9), 3)
    assert next(queue) == 0
    assert begun.wait(10)
    queue.close()
    assert made == [0, 1], "2 was waiting when the training ended"
