"""Exact search through products in bf16 finds what a full sort finds, whatever rounding hides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import search as naive
from xc_core.ann import ExactIndex, blocks, exact, rounded
from xc_core.devices import CPU, Device
from xc_core.shapes import F32, PAD_ID, Computed, Shortlist, in_order


@pytest.fixture(autouse=True)
def _any_processor_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round on any processor, also few queries and labels."""
    monkeypatch.setattr(Device, "multiplies_bf16", lambda self: self.is_cpu)
    monkeypatch.setattr(rounded, "_LEAST_QUERIES", 1)
    monkeypatch.setattr(rounded, "_LABELS_PER_KEPT", 1)


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of queries that were searched in fp32."""
    numbers: list[int] = []
    products: Callable[[ExactIndex, F32, int], Shortlist] = ExactIndex._search_products

    def counted(index: ExactIndex, query_BD: F32, k: int) -> Shortlist:
        numbers.append(len(query_BD))
        return products(index, query_BD, k)

    monkeypatch.setattr(ExactIndex, "_search_products", counted)
    return numbers


def unit(random: np.random.Generator, rows: int, width: int) -> F32:
    vectors = random.standard_normal((rows, width)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_whole_numbers_are_ranked_as_by_a_full_sort(data: st.DataObject) -> None:
    """Inner products are exact in fp32, ties are frequent, and numbers above 256 are rounded."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    labels, k = data.draw(st.integers(2, 80)), data.draw(st.integers(1, 12))
    least, most = data.draw(st.sampled_from([(0, 1), (-3, 9), (-9, -1), (-2000, 2000), (1, 2000)]))
    vectors = random.integers(least, most + 1, (labels, 3)).astype(np.float32)
    queries = random.integers(-1, 2, (data.draw(st.integers(2, 9)), 3)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounded, "_EXTRA", data.draw(st.integers(1, 5)))
        patch.setattr(rounded, "_TOGETHER", data.draw(st.sampled_from([3, 1000])))
        patch.setattr(rounded, "_ROUNDED_TOGETHER", data.draw(st.sampled_from([3, 1000])))
        block = data.draw(st.sampled_from([5, 16, 1000]))
        for module in (exact, rounded):
            patch.setattr(module, "LABELS", block)
            patch.setattr(module, "QUERIES", 4)
        found = ExactIndex(vectors, CPU).search(queries, k)
    expected = naive.nearest(vectors, queries, k)
    assert [row[row != PAD_ID].tolist() for row in found.ids_NK] == expected
    for query, ids, scores in zip(queries, expected, found.scores_NK, strict=True):
        assert scores[: len(ids)].tolist() == [float(query @ vectors[i]) for i in ids]


@pytest.mark.parametrize("width", [3, 48])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_vectors_are_ranked_as_in_float64(width: int, scale: float, again: list[int]) -> None:
    random = np.random.default_rng(width)
    vectors, queries = scale * unit(random, 5000, width), unit(random, 300, width)
    found = ExactIndex(vectors, CPU).search(queries, 10)
    exact = queries.astype(float) @ vectors.astype(float).T
    expected = -np.sort(-exact, axis=1)[:, :10]
    assert np.abs(np.take_along_axis(exact, found.ids_NK.astype(int), 1) - expected).max() < 1e-6 * scale
    assert np.abs(found.scores_NK - expected).max() < 1e-6 * scale
    assert sum(again) < 30 if width == 48 else again, "with width 3, labels are too near to each other for bf16"


def test_labels_that_rounding_cannot_tell_apart_are_searched_in_fp32(again: list[int]) -> None:
    """The best label of each query is one of 2,000 that bf16 makes equal, and has the last id."""
    random = np.random.default_rng(0)
    labels = np.tile(unit(random, 1, 32), (2000, 1)) * (1 + 1e-6 * np.arange(2000, dtype=np.float32))[:, None]
    queries = np.abs(unit(random, 40, 32)) * np.sign(labels[0])
    found = ExactIndex(labels, CPU).search(queries, 3)
    assert again == [40]
    assert found.ids_NK.tolist() == [[1999, 1998, 1997]] * 40


def test_only_uncertain_queries_are_searched_again(again: list[int]) -> None:
    """Queries 1 and 3 point to 500 labels that are nearly equal, the others to labels that differ."""
    random = np.random.default_rng(1)
    far, near = np.zeros((300, 8), np.float32), np.zeros((500, 8), np.float32)
    far[:, 0], near[:, 1] = np.linspace(1, 2, 300), 1 + 1e-5 * random.permutation(500).astype(np.float32)
    queries = np.eye(8, dtype=np.float32)[[0, 1, 0, 1, 0]]
    vectors = np.concatenate([far, near])
    found = ExactIndex(vectors, CPU).search(queries, 4)
    assert again == [2]
    assert found.ids_NK.tolist() == naive.nearest(vectors, queries, 4)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 30]), st.sampled_from([1e-30, 1.0, 1e12]))
def test_the_bound_holds(seed: int, width: int, scale: float) -> None:
    """Also for the vectors that rounding moves most: those just above a power of two."""
    random = np.random.default_rng(seed)

    def vectors(rows: int, scale: float) -> torch.Tensor:
        signs = random.choice([-1, 1], (rows, width))
        return torch.from_numpy(scale * signs * (1 + random.random((rows, width)) / 200)).float()

    queries, labels = vectors(7, scale), vectors(40, 1)
    block = torch.empty(labels.shape, dtype=torch.bfloat16)
    norm, error = rounded._round_into(block, labels)
    bound = rounded._bound(queries, queries.bfloat16(), norm, error)
    exact = queries.double() @ labels.double().T
    moved = (queries.bfloat16().double() @ block.double().T - exact).abs().amax(1)
    assert (moved <= bound.double()).all()
    assert scale < 1 or width > 2 or (bound < 6 * moved.clamp(min=scale * 1e-4)).all(), (
        "the bound is of the order of the error"
    )


def test_a_score_that_is_stored_in_bf16_may_be_half_an_ulp_off() -> None:
    """The k-th score may be as low as 1.996, the last one as high as 1.988."""
    scores = np.array([[2.0, 1.984375]], np.float32)
    assert not rounded._certain(scores, 1, np.zeros(1, np.float32))[0]
    assert not rounded._certain(-scores[:, ::-1], 1, np.zeros(1, np.float32))[0], "of negative scores too"
    assert rounded._certain(np.array([[2.0, 1.96]], np.float32), 1, np.zeros(1, np.float32))[0]
    assert not rounded._certain(np.array([[2.0, 1.96]], np.float32), 1, np.array([0.02], np.float32))[0]


@pytest.mark.parametrize("least", [3.4e38, 3.395e38])
def test_numbers_that_bf16_cannot_hold_are_searched_in_fp32(least: float, again: list[int]) -> None:
    vectors = np.array([[1e30, 1], [least, 2], [1e38, 3]] * 20, np.float32)
    queries = np.array([[1e-38, 1], [0, 1]], np.float32)
    assert ExactIndex(vectors, CPU).search(queries, 2).ids_NK.tolist() == naive.nearest(vectors, queries, 2)
    assert again == [2]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_scores_that_are_all_minus_zero_have_the_first_labels(kind: torch.dtype) -> None:
    """Their bits are the lowest integer; one less would be the highest."""
    hits = blocks._candidates(torch.full((2, 40), -0.0, dtype=kind), 3, None)
    found = blocks._merge(Shortlist.nothing(2), hits, 7, 3)
    assert found.ids_NK.tolist() == [[7, 8, 9]] * 2
    assert not found.scores_NK.any()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_bits_in_order(kind: type) -> None:
    numbers = np.array([-np.inf, -3e38, -2, -1e-40, -0.0, 0.0, 1e-40, 2, 3e38, np.inf], kind)
    bits = numbers.view(np.int32 if kind is np.float32 else np.int64)
    keys = in_order(bits)
    assert (np.diff(keys) > 0).all()
    assert np.array_equal(in_order(keys), bits)


def test_a_query_has_the_same_scores_whatever_is_searched_with_it(again: list[int]) -> None:
    random = np.random.default_rng(4)
    index, queries = ExactIndex(unit(random, 3000, 40), CPU), unit(random, 50, 40)
    together, few = index.search(queries, 10), index.search(queries[20:23], 10)
    assert again == []
    assert np.array_equal(together.ids_NK[20:23], few.ids_NK)
    assert np.array_equal(together.scores_NK[20:23], few.scores_NK)


def test_vectors_of_a_mapped_file_that_may_only_be_read(tmp_path: object, again: list[int]) -> None:
    random = np.random.default_rng(5)
    vectors, queries = unit(random, 3000, 40), unit(random, 9, 40)
    np.save(f"{tmp_path}/index.npy", vectors)
    mapped = np.load(f"{tmp_path}/index.npy", mmap_mode="c")
    assert np.array_equal(ExactIndex(mapped, CPU).search(queries, 5).ids_NK, naive.nearest(vectors, queries, 5))
    assert again == []


@pytest.mark.parametrize("block", [7, 100, 16_384])
def test_computed_vectors_are_searched_as_an_array_of_them(
    block: int, monkeypatch: pytest.MonkeyPatch, again: list[int]
) -> None:
    """To the bit, and in blocks."""
    monkeypatch.setattr(rounded, "LABELS", block)
    monkeypatch.setattr(rounded, "_PAIRS", 5)
    random = np.random.default_rng(6)
    vectors, queries, read = unit(random, 300, 40), unit(random, 9, 40), []

    def at(rows: slice) -> F32:
        read.append(rows.stop - rows.start)
        return vectors[rows]

    expected = ExactIndex(vectors, CPU).search(queries, 5)
    found = ExactIndex(Computed(vectors.shape, at), CPU).search(queries, 5)
    assert np.array_equal(found.ids_NK, expected.ids_NK)
    assert np.array_equal(found.scores_NK, expected.scores_NK)
    assert np.array_equal(found.ids_NK, naive.nearest(vectors, queries, 5))
    assert max(read) <= block
    assert sum(read) == 600
    assert again == []


def test_where_rounding_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(Device, "multiplies_bf16", lambda self: True)
    vectors = np.zeros((4800, 2), np.float32)
    assert rounded.pays(vectors, 64, 100, CPU)
    assert not rounded.pays(vectors, 63, 100, CPU)
    assert not rounded.pays(vectors, 64, 101, CPU)
    assert not rounded.pays(vectors[:-1], 64, 100, CPU)
    assert rounded.pays(np.zeros((24 * 37, 2), np.float32), 64, 5, CPU), "at least 32 labels beside the k best are kept"
    assert not rounded.pays(np.zeros((4800, 4), np.float32)[:, ::2], 64, 100, CPU), "faiss reads rows as they lie"
    assert rounded.pays(Computed((4800, 2), lambda rows: vectors[rows]), 64, 100, CPU)
    monkeypatch.setattr(Device, "multiplies_bf16", lambda self: False)
    assert not rounded.pays(vectors, 64, 100, CPU)


@pytest.mark.parametrize("query", [[0.0, 1.0], [-1.0, 1.0], [-1e5, 1.0]])
def test_scores_that_bf16_cannot_hold_for_any_label(query: list[float], again: list[int]) -> None:
    """Rounded scores are not numbers, or all -inf; those of the last query are -inf in fp32 too."""
    vectors = np.tile(np.array([[3.4e38, 1.0]], np.float32), (300, 1))
    found = ExactIndex(vectors, CPU).search(np.array([query] * 2, np.float32), 2)
    assert again == [2]
    assert found.ids_NK.tolist() == [[PAD_ID, PAD_ID] if query[0] < -1 else [0, 1]] * 2


def test_queries_whose_scores_fp32_cannot_hold_have_no_labels_beside_others_that_have_some() -> None:
    vectors = np.tile(np.array([[1e30, 0.0], [0.0, 1e-30]], np.float32), (300, 1))
    queries = np.array([[-1e20, -1e20], [1e-20, 0.0], [0.0, 1.0]], np.float32)
    found = ExactIndex(vectors[::2].copy(), CPU).search(queries[[0, 0]], 3)
    assert found.ids_NK.tolist() == [[PAD_ID] * 3] * 2
    found = ExactIndex(vectors, CPU).search(queries, 3)
    assert found.ids_NK[1:].tolist() == naive.nearest(vectors, queries[1:], 3)


def test_computed_vectors_whose_rows_are_not_beside_each_other() -> None:
    random = np.random.default_rng(7)
    vectors, queries = unit(random, 300, 40), unit(random, 9, 40)
    computed = Computed(vectors.shape, lambda rows: np.asfortranarray(vectors[rows]))
    found = ExactIndex(computed, CPU).search(queries, 5)
    assert np.array_equal(found.ids_NK, naive.nearest(vectors, queries, 5))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("block", "rows"), [(16, 1024), (16_384, 7)])
def test_the_bound_is_that_of_the_largest_vectors_in_whichever_block(
    order: int, block: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounded, "LABELS", block)
    monkeypatch.setattr(rounded, "_ROUNDED_TOGETHER", rows)
    bounds: list[tuple[float, float]] = []
    bound = rounded._bound

    def recorded(queries: torch.Tensor, rounded_BD: torch.Tensor, norm: float, error: float) -> torch.Tensor:
        bounds.append((norm, error))
        return bound(queries, rounded_BD, norm, error)

    monkeypatch.setattr(rounded, "_bound", recorded)
    random = np.random.default_rng(8)
    vectors = (unit(random, 100, 8) * np.linspace(1, 9, 100, dtype=np.float32)[:, None])[::order].copy()
    ExactIndex(vectors, CPU).search(unit(random, 3, 8), 2)
    near = torch.from_numpy(vectors).bfloat16().float().numpy()
    expected = [np.linalg.norm(some, axis=1).max() for some in (near, near - vectors)]
    assert bounds == [pytest.approx(expected, rel=1e-5)]
