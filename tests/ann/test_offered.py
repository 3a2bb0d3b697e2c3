"""An index of a plug-in need not say what it offers beyond a search: its methods do."""

from __future__ import annotations

from typing import Any

import numpy as np

from xc_core.ann import Exact, HasAlwaysExact, exact_search, with_more
from xc_core.shapes import F32, Shortlist

VECTORS, MORE = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[:1]


class Plain:
    """Only searches."""

    size = width = 3

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        return Exact().build(VECTORS).search(queries_BD, k)


class Full(Plain):
    """Does all that an index may do."""

    always_exact = True

    def extended(self, vectors_ND: F32) -> Any:
        return f"{len(vectors_ND)} more"

    def exactly(self, queries_BD: F32, k: int) -> Shortlist:
        return self.search(queries_BD, k)


def test_what_an_index_does_not_offer_is_not_asked_for() -> None:
    index: Any = Plain()
    assert with_more(index, MORE) is None, "it has to be built again"
    assert exact_search(index, MORE, 1) is None
    assert not isinstance(index, HasAlwaysExact)


def test_what_an_index_offers_is_found_by_its_methods() -> None:
    index: Any = Full()
    assert with_more(index, MORE) == "1 more"
    found = exact_search(index, MORE, 1)
    assert found is not None
    assert found.ids_NK.tolist() == [[0]]
    assert isinstance(index, HasAlwaysExact)
