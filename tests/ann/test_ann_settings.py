"""Settings of indexes that are out of range or of another index are refused; vectors are extended to equal length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xc_core.ann import Auto, Exact, Hnsw, IndexPart, Ivf, with_more
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


def test_the_seed_decides_the_centres_of_cells() -> None:
    vectors = np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32)
    built: list[Any] = [Ivf(lists=8, probes=1, seed=seed).build(vectors) for seed in (0, 0, 1)]
    first, again, other = (one.index.quantizer.reconstruct_n(0, 8) for one in built)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


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


def test_cells_take_later_vectors_of_their_own_length_alone() -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = Ivf(lists=2, probes=1).build(vectors)
    assert with_more(index, vectors[:5]) is not None
    assert with_more(index, 2 * vectors[:5]) is None, "it has to be built again"
