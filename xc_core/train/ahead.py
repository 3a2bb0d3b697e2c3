"""Prepare the batches of a training ahead of its steps, in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prepared(make: Callable[[int], T], numbers: range, depth: int) -> Generator[T, None, None]:
    """Yield ``make(number)`` of each number, in order; at most ``depth`` of them are made before they are asked for.

    One thread makes them, one after the other, so ``make`` needs no lock against itself. An error is raised when its
    number is asked for. With a depth of 0 each is made when it is asked for, in the calling thread.
    """
    if not depth:
        yield from map(make, numbers)
        return
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as executor:
        try:
            for number in numbers:
                while len(waiting) < min(depth, numbers.stop - number):
                    waiting.append(executor.submit(make, number + len(waiting)))
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
