"""Vectors that are computed when they are read are searched as an array of them, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests import arrays
from xc_core.ann import Auto, Exact, Hnsw, IndexPart
from xc_core.errors import ConfigError
from xc_core.shapes import F32, Computed


def vectors(size: int, width: int = 12) -> F32:
    return arrays.unit(np.random.default_rng(size).standard_normal((size, width), np.float32))


@pytest.mark.parametrize("queries", [1, 3, 600])
@pytest.mark.parametrize(
    ("part", "size"), [(Exact(), 300), (Exact(), 40_000), (Auto().for_batches(), 40_000), (Hnsw(), 2_000)]
)
def test_a_search_gives_ids_and_scores_of_the_array(part: IndexPart, size: int, queries: int) -> None:
    label_LD, doc_ND = vectors(size), vectors(queries)
    parts: list[slice] = []

    def read(at: slice) -> F32:
        parts.append(at)
        return label_LD[at]

    expected = part.build(label_LD).search(doc_ND, 20)
    found = part.build(Computed(label_LD.shape, read)).search(doc_ND, 20)
    np.testing.assert_array_equal(found.ids_NK, expected.ids_NK)
    np.testing.assert_array_equal(found.scores_NK, expected.scores_NK)
    assert max(at.stop - at.start for at in parts) <= 20_000, "never all of many"


def test_computed_vectors_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        Exact().build(Computed((9_000, 2), lambda at: np.full((at.stop - at.start, 2), np.nan, np.float32)))
