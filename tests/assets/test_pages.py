from __future__ import annotations

from typing import Any

import pytest

from assets.pages import paged


class Page(list[int]):
    """A page of MLflow's client."""

    def __init__(self, found: list[int], token: str | None) -> None:
        super().__init__(found)
        self.token = token


@pytest.mark.parametrize("end", [None, ""])
def test_all_pages_are_read_with_the_same_arguments_each_once(end: str | None) -> None:
    asked: list[Any] = []
    pages = {None: Page([1, 2], "a"), "a": Page([], "b"), "b": Page([3], end)}

    def search(experiments: list[str], *, max_results: int, page_token: str | None) -> Page:
        asked.append((experiments, max_results, page_token))
        return pages[page_token]

    assert list(paged(search, ["7"], max_results=2)) == [1, 2, 3]
    assert asked == [(["7"], 2, None), (["7"], 2, "a"), (["7"], 2, "b")]
