"""Settings of indexes that are out of range or of another index are refused; vectors are extended to equal length."""

from __future__ import annotations

import numpy as np
import pytest

from xc_core.ann import Auto, Exact, Hnsw, IndexPart, Ivf
from xc_core.ann.faiss_index import even_lengths
from xc_core.errors import ConfigError
from xc_core.params import changed


def test_an_unknown_kind_is_refused_and_the_nearest_is_named() -> None:
    with pytest.raises(ConfigError, match=r"index 'hsnw' \(nearest: 'hnsw'\)"):
        changed(Auto(), "hsnw", "index")


@pytest.mark.parametrize(
    ("part", "setting", "known"),
    [
        (Auto(), "k", "the index 'auto': none"),
        (Auto(), "links", "the index 'auto': none"),
        (Exact(), "probes", "the index 'exact': none"),
        (Hnsw(), "probes", "the index 'hnsw': links, build_effort, search_effort"),
        (Ivf(), "links", "the index 'ivf': lists, probes, seed"),
    ],
)
def test_a_setting_of_another_index_is_refused(part: IndexPart, setting: str, known: str) -> None:
    with pytest.raises(ConfigError, match=rf"index\.{setting}.*\n.*a setting of {known}\n"):
        changed(part, {setting: 5}, "index")


@pytest.mark.parametrize(("lists", "probes", "message"), [(21, 1, "21 lists for 20 vectors"), (4, 5, "5 probes of 4")])
def test_more_cells_than_vectors_or_probes_than_cells_are_refused(lists: int, probes: int, message: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    with pytest.raises(ConfigError, match=message):
        Ivf(lists=lists, probes=probes).build(vectors)


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
