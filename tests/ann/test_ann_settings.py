"""Index settings that mean nothing are refused; one more coordinate keeps inner products as they are."""

from __future__ import annotations

import numpy as np
import pytest

from xc_core.ann import IndexConfig, build_index
from xc_core.ann.faiss_index import even_lengths
from xc_core.errors import ConfigError


@pytest.mark.parametrize(
    "changes",
    [{"kind": "hsnw"}, {"k": 0}, {"links": 0}, {"build_effort": 0}, {"search_effort": 0}, {"probes": 0}, {"lists": -1}],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        IndexConfig(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("lists", "probes", "message"), [(21, 1, "21 lists for 20 vectors"), (4, 5, "5 probes of 4")])
def test_cells_that_cannot_be_made_or_visited_are_refused(lists: int, probes: int, message: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    with pytest.raises(ConfigError, match=message):
        build_index(vectors, IndexConfig(kind="ivf", lists=lists, probes=probes))


def test_one_more_coordinate_makes_all_vectors_equally_long_and_keeps_inner_products() -> None:
    random = np.random.default_rng(0)
    vectors = (random.standard_normal((50, 4)) * random.lognormal(0, 2, (50, 1))).astype(np.float32)
    longer = even_lengths(vectors)
    assert longer.shape == (50, 5)
    assert np.array_equal(longer[:, :4], vectors)
    np.testing.assert_allclose(np.linalg.norm(longer, axis=1), np.linalg.norm(vectors, axis=1).max(), rtol=1e-5)


def test_vectors_of_one_length_stay_as_they_are() -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    vectors *= 3 / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert even_lengths(vectors) is vectors
    vectors[0] *= 0.99
    assert even_lengths(vectors).shape == (50, 5)
