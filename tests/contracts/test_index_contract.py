"""The contract of an index, for every index in the table, on data whose nearest labels are known."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arrays import unit
from tests.naive import search as naive
from xc_core.ann import INDEXES, Index, exact_search, load_index, save_index, with_more
from xc_core.errors import ConfigError, CorruptError, MissingError, XCError
from xc_core.shapes import F32, PAD_ID, Shortlist

pytestmark = pytest.mark.parametrize("kind", INDEXES.names())

EXACT = ("auto", "exact")
"""Kinds that search exactly among few labels."""


def there(kind: str, found: Any) -> Any:
    """Return what an optional method found; skip the test for an index of another package that is without it."""
    if found is None and not INDEXES[kind].__module__.startswith("xc_core."):
        pytest.skip(f"{kind} is without an optional method")
    assert found is not None
    return found


def clustered(labels: int = 3000, width: int = 24, queries: int = 200) -> tuple[F32, F32, np.ndarray]:
    """Labels around 60 centres; query i is a noisy copy of label ``copied[i]``, nearer to it than to any other."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((60, width))
    vectors = unit(centres[random.integers(0, 60, labels)] + 0.5 * random.standard_normal((labels, width)))
    copied = random.permutation(labels)[:queries]
    return vectors, unit(vectors[copied] + 0.02 * random.standard_normal((queries, width))), copied


@cache
def _nearest(vectors: bytes, queries: bytes, width: int, k: int) -> list[list[int]]:
    among, asked = (np.frombuffer(rows, np.float32).reshape(-1, width) for rows in (vectors, queries))
    return naive.nearest(among, asked, k)


def nearest(vectors_LD: F32, queries_ND: F32, k: int) -> list[list[int]]:
    """Return the nearest labels of each query; the slow search runs once for all kinds of index."""
    return _nearest(vectors_LD.tobytes(), queries_ND.tobytes(), vectors_LD.shape[1], k)


def share_of(true: list[list[int]], found: Shortlist) -> float:
    """Return the share of the true labels that were found."""
    both = zip(true, found.ids_NK.tolist(), strict=True)
    return float(np.mean([len(set(wanted) & set(got)) / len(wanted) for wanted, got in both]))


def build(kind: str, vectors_LD: F32, **changes: int) -> Index:
    return INDEXES[kind](**changes).build(vectors_LD)


def test_the_copied_label_comes_first_and_its_score_is_the_inner_product(kind: str) -> None:
    vectors, queries, copied = clustered()
    found = build(kind, vectors).search(queries, 5)
    assert (found.ids_NK[:, 0] == copied).mean() >= 0.99
    products = np.einsum("bkd,bd->bk", vectors[found.ids_NK], queries)
    np.testing.assert_allclose(found.scores_NK, products, atol=1e-5)
    assert (np.diff(found.scores_NK, axis=1) <= 0).all()
    assert (found.ids_NK.dtype, found.scores_NK.dtype) == (np.int32, np.float32)


def test_default_settings_find_nearly_all_of_the_ten_nearest(kind: str) -> None:
    vectors, queries, _ = clustered()
    true = nearest(vectors, queries, 10)
    found = build(kind, vectors).search(queries, 10)
    assert share_of(true, found) >= (0.999 if kind in EXACT else 0.95)


def test_lengths_count_because_the_search_is_by_inner_product(kind: str) -> None:
    vectors, queries, _ = clustered(labels=1500, queries=100)
    long = vectors * np.random.default_rng(1).lognormal(0, 1.0, (1500, 1)).astype(np.float32)
    true, by_angle = (nearest(table, queries, 10) for table in (long, vectors))
    found = build(kind, long).search(queries, 10)
    assert share_of(true, found) >= (0.999 if kind in EXACT else 0.95)
    assert share_of(by_angle, found) < 0.6
    assert found.scores_NK[0, 0] == pytest.approx(float(queries[0] @ long[found.ids_NK[0, 0]]), rel=1e-4)


@pytest.mark.parametrize("labels", [1, 2, 7])
def test_a_k_beyond_the_labels_ends_in_holes(kind: str, labels: int) -> None:
    vectors, queries, _ = clustered(labels=labels, queries=labels)
    found = build(kind, vectors).search(queries, 9)
    assert found.ids_NK.shape == (labels, 9)
    assert all(sorted(row[:labels]) == list(range(labels)) for row in found.ids_NK.tolist())
    assert (found.ids_NK[:, labels:] == PAD_ID).all()
    assert np.isneginf(found.scores_NK[:, labels:]).all()


def test_no_query_gives_an_empty_shortlist(kind: str) -> None:
    vectors, queries, _ = clustered(labels=50, queries=5)
    found = build(kind, vectors).search(queries[:0], 3)
    assert (len(found), found.k) == (0, 3)


def test_a_query_is_answered_the_same_alone_and_in_any_layout(kind: str) -> None:
    vectors, queries, _ = clustered(labels=500, queries=40)
    index = build(kind, vectors)
    whole = index.search(queries, 4)
    assert np.array_equal(index.search(queries[7:8], 4).ids_NK, whole.ids_NK[7:8])
    assert np.array_equal(index.search(np.asfortranarray(queries), 4).ids_NK, whole.ids_NK)
    assert np.array_equal(index.search(queries[::2], 4).ids_NK, whole.ids_NK[::2])


def test_a_saved_index_answers_the_same_after_loading(kind: str, tmp_path: Path) -> None:
    vectors, queries, _ = clustered(labels=800, queries=50)
    uneven = vectors * np.linspace(0.5, 3, 800, dtype=np.float32)[:, None]
    settings = {"ivf": {"probes": 5}, "hnsw": {"search_effort": 40}}
    index = build(kind, uneven, **settings.get(kind, {}))
    save_index(index, tmp_path)
    again = load_index(tmp_path)
    assert again.part == index.part
    assert (again.size, again.width) == (index.size, index.width) == (800, 24)
    for k in (1, 10):
        first, second = index.search(queries, k), again.search(queries, k)
        assert np.array_equal(first.ids_NK, second.ids_NK)
        assert np.array_equal(first.scores_NK, second.scores_NK)


def test_exact_search_over_a_saved_index_finds_every_nearest_label_and_leaves_the_index_as_it_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, again = (tmp_path / name for name in ("saved", "again"))
    saved.mkdir()
    again.mkdir()
    monkeypatch.setattr("xc_core.ann.faiss_index._ROWS_AT_ONCE", 300)
    vectors, queries, _ = clustered(labels=800, queries=50)
    uneven = vectors * np.linspace(0.5, 3, 800, dtype=np.float32)[:, None]
    worst: dict[str, dict[str, int]] = {"ivf": {"probes": 1}, "hnsw": {"search_effort": 1, "links": 2}}
    save_index(build(kind, uneven, **worst.get(kind, {})), saved)
    index = load_index(saved)
    for k in (10, 500):
        found = there(kind, exact_search(index, queries, k))
        assert share_of(nearest(uneven, queries, k), found) == 1.0
        np.testing.assert_allclose(found.scores_NK, np.sort(queries @ uneven.T)[:, ::-1][:, :k], atol=1e-5)
    save_index(index, again)
    for path in saved.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_building_and_searching_leave_the_arguments_alone(kind: str) -> None:
    vectors, queries, _ = clustered(labels=300, queries=20)
    before = vectors.copy(), queries.copy()
    build(kind, vectors).search(queries, 3)
    assert np.array_equal(vectors, before[0])
    assert np.array_equal(queries, before[1])


@pytest.mark.parametrize(
    ("shape", "k", "value", "message"),
    [
        ((3, 23), 1, 0.0, "queries of shape"),
        ((3, 25), 1, 0.0, "queries of shape"),
        ((24,), 1, 0.0, "queries of shape"),
        ((3, 24), 0, 0.0, "k 0"),
        ((3, 24), -2, 0.0, "k -2"),
        ((3, 24), 1, np.nan, "not finite"),
        ((3, 24), 1, np.inf, "not finite"),
    ],
)
def test_queries_that_cannot_be_answered_are_refused(
    kind: str, shape: tuple[int, ...], k: int, value: float, message: str
) -> None:
    index = build(kind, clustered(labels=50, queries=1)[0])
    queries = np.ones(shape, np.float32)
    queries.flat[-1] = value
    with pytest.raises(ConfigError, match=message):
        index.search(queries, k)


@pytest.mark.parametrize(
    "vectors",
    [np.zeros((0, 4)), np.zeros(4), np.array([[1.0, np.nan]]), np.array([[1.0, np.inf]])],
    ids=["empty", "flat", "nan", "inf"],
)
def test_vectors_that_cannot_be_searched_are_refused(kind: str, vectors: np.ndarray) -> None:
    with pytest.raises(XCError):
        build(kind, vectors.astype(np.float32))


def test_a_broken_or_missing_index_is_named(kind: str, tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        load_index(tmp_path)
    save_index(build(kind, clustered(labels=50, queries=1)[0]), tmp_path)
    for data in [path for path in tmp_path.iterdir() if path.name != "index.json"]:
        content = data.read_bytes()
        for broken in (content[: len(content) // 2], b"", None):
            data.unlink() if broken is None else data.write_bytes(broken)
            with pytest.raises(CorruptError):
                load_index(tmp_path)
        data.write_bytes(content)
    (tmp_path / "index.json").write_text("{", "utf-8")
    with pytest.raises(CorruptError):
        load_index(tmp_path)


def test_another_index_under_the_same_name_is_found_out(kind: str, tmp_path: Path) -> None:
    save_index(build(kind, clustered(labels=50, queries=1)[0]), tmp_path)
    (tmp_path / "other").mkdir()
    save_index(build(kind, clustered(labels=60, queries=1)[0]), tmp_path / "other")
    for data in [path for path in (tmp_path / "other").iterdir() if path.name != "index.json"]:
        data.replace(tmp_path / data.name)
    with pytest.raises(CorruptError, match="60"):
        load_index(tmp_path)


def test_vectors_that_come_later_are_found_and_the_index_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    vectors, _, _ = clustered()
    more = unit(np.random.default_rng(3).standard_normal((40, vectors.shape[1])))
    index = build(kind, vectors)
    grown = there(kind, with_more(index, more))
    assert (index.size, grown.size) == (3000, 3040)
    assert (index.search(more, 3).ids_NK < 3000).all()
    assert (grown.search(more, 3).ids_NK[:, 0] == np.arange(3000, 3040)).mean() >= 0.95
    both, queries = np.concatenate([vectors, more]), clustered()[1]
    true = nearest(both, queries, 10)
    assert share_of(true, grown.search(queries, 10)) >= (0.999 if kind in EXACT else 0.95)
    save_index(grown, tmp_path)
    np.testing.assert_array_equal(load_index(tmp_path).search(more, 3).ids_NK, grown.search(more, 3).ids_NK)


@pytest.mark.parametrize("more", [np.ones((2, 3), np.float32), np.full((2, 4), np.inf, np.float32)])
def test_later_vectors_of_another_width_or_not_finite_are_refused(kind: str, more: F32) -> None:
    with pytest.raises(ConfigError, match=r"found vectors"):
        with_more(build(kind, unit(np.random.default_rng(0).standard_normal((20, 4)))), more)
