"""Exact search equals a full sort, ties by id included, across the edges of its blocks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.card import CARD, CardTensor
from tests.naive import search as naive
from xc_core.ann import Auto, Exact, ExactIndex, Ivf, base, exact, load_index, mining_index, save_index
from xc_core.devices import CPU, Device, put
from xc_core.errors import CorruptError
from xc_core.shapes import PAD_ID


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_exact_search_equals_a_full_sort_with_ties_by_id(data: st.DataObject) -> None:
    """Small whole numbers make inner products exact and ties frequent, also at the k-th place."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    labels, k = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 70))
    most = data.draw(st.sampled_from([1, 2, 9]))
    vectors = random.integers(0, most + 1, (labels, 3)).astype(np.float32)
    queries = random.integers(-1, 2, (data.draw(st.integers(0, 9)), 3)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "LABELS", data.draw(st.sampled_from([5, 16, 1000])))
        patch.setattr(exact, "QUERIES", data.draw(st.sampled_from([1, 4, 256])))
        patch.setattr(exact, "_ONE_BY_FAISS", data.draw(st.sampled_from([0, 1000])))
        found = Exact().build(vectors).search(queries, k)
    assert found.ids_NK.shape == (len(queries), k)
    expected = naive.nearest(vectors, queries, k)
    assert [row[row != PAD_ID].tolist() for row in found.ids_NK] == expected
    for query, ids, scores in zip(queries, expected, found.scores_NK, strict=True):
        assert scores[: len(ids)].tolist() == [float(query @ vectors[i]) for i in ids]
        assert np.isneginf(scores[len(ids) :]).all()


def test_copies_of_a_label_are_listed_by_id() -> None:
    vectors = np.tile(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), (30_000, 1))
    found = Exact().build(vectors).search(np.array([[1.0, 0.0]], np.float32), 5)
    assert found.ids_NK.tolist() == [[0, 2, 4, 6, 8]]


@pytest.mark.parametrize("k", [1, 99, 100, 700, 3000, 3001])
@pytest.mark.parametrize("largest", [2, 300])
def test_a_query_finds_the_same_alone_and_among_many(k: int, largest: int) -> None:
    """faiss, which answers single queries, selects in another way from k = 100. Small numbers give equal scores."""
    random = np.random.default_rng(k)
    vectors, queries = (random.integers(-largest, largest, (size, 24)).astype(np.float32) for size in (3001, 3))
    index, expected = Exact().build(vectors), naive.nearest(vectors, queries, k)
    assert index.search(queries, k).ids_NK.tolist() == expected
    assert [index.search(query[None], k).ids_NK[0].tolist() for query in queries] == expected


@pytest.mark.parametrize(
    ("labels", "kind", "batches"),
    [(1, "exact", "exact"), (20, "exact", "exact"), (21, "both", "exact"), (31, "both", "hnsw")],
)
def test_auto_chooses_for_single_queries_and_for_batches_apart(
    labels: int, kind: str, batches: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (base.EXACT_UP_TO, base.BATCHES_EXACT_UP_TO) == (20_000, 400_000)
    monkeypatch.setattr(base, "EXACT_UP_TO", 20)
    monkeypatch.setattr(base, "BATCHES_EXACT_UP_TO", 30)
    vectors = np.random.default_rng(0).standard_normal((labels, 3)).astype(np.float32)
    assert Auto().build(vectors).part.kind == kind
    assert Auto().for_batches().build(vectors).part.kind == batches
    assert Ivf(lists=1, probes=1).for_batches().build(vectors).part.kind == "ivf"


@pytest.mark.parametrize("module", ["xc_core.infer.bundle", "xc_core.ann.hnsw", "benchmarks.cases"])
def test_torch_is_imported_before_faiss(module: str) -> None:
    """In the other order each has its own OpenMP runtime, and a prediction takes 22 ms per text instead of 13 ms.

    The process ends when it would import faiss: what follows takes seconds, and changes nothing.
    """
    code = f"""
import os, sys
class Asked:
    def find_spec(self, name, *_):
        if name == "faiss":
            print("torch" in sys.modules, flush=True)
            os._exit(0)
sys.meta_path.insert(0, Asked())
import {module}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.usefixtures("fake_card")
@settings(deadline=None, max_examples=80)
@given(st.data())
def test_a_search_on_a_card_equals_a_full_sort_with_ties_by_id(data: st.DataObject) -> None:
    """The device of ``tests/card.py``; blocks and groups are small, so that ties lie on both sides of an edge."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    labels, k = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 50))
    vectors = random.integers(0, data.draw(st.sampled_from([1, 2, 9])) + 1, (labels, 3)).astype(np.float32)
    queries = random.integers(-1, 2, (data.draw(st.integers(1, 9)), 3)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_CARD_LABELS", data.draw(st.sampled_from([5, 16, 1000])))
        patch.setattr(exact, "_CARD_QUERIES", data.draw(st.sampled_from([1, 4, 256])))
        patch.setattr(exact, "_CARD_GROUP", data.draw(st.sampled_from([1, 2, 4, 64])))
        patch.setattr(exact, "_CARD_GROUPS", data.draw(st.sampled_from([1, 4])))
        kept = data.draw(st.booleans())
        patch.setattr(Device, "keeps", lambda *_: kept)
        index = ExactIndex(vectors, CARD)
        found, expected = index.search(queries, k), ExactIndex(vectors, CPU).search(queries, k)
    assert isinstance(index._device_vectors, CardTensor) == kept, "a card that cannot keep all vectors gets blocks"
    assert np.array_equal(found.ids_NK, expected.ids_NK)
    assert np.array_equal(found.scores_NK, expected.scores_NK)


@pytest.mark.usefixtures("fake_card")
def test_a_card_that_cannot_keep_all_vectors_gets_each_block_once_and_queries_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact, "_CARD_LABELS", 8)
    monkeypatch.setattr(exact, "_CARD_QUERIES", 2)
    read: list[int] = []

    class Blocks:
        def __getitem__(self, at: slice) -> torch.Tensor:
            read.append(at.start)
            return torch.from_numpy(vectors[at])

    vectors = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    index = ExactIndex(vectors, CARD)
    index.__dict__["_device_vectors"] = Blocks()
    copied: list[int] = []
    monkeypatch.setattr(exact, "put", lambda array, device: copied.append(len(array)) or put(array, device))
    index.search(vectors[:9], 4)
    assert read == [0, 8, 16]
    assert copied == [9]


def test_vectors_of_another_width_in_the_file_of_an_index_are_found_out(tmp_path: Path) -> None:
    save_index(ExactIndex(np.eye(4, dtype=np.float32)), tmp_path)
    np.save(tmp_path / "index.npy", np.eye(4, 3, dtype=np.float32))
    with pytest.raises(CorruptError, match="an index of 4 vectors of width 3"):
        load_index(tmp_path)


@pytest.mark.usefixtures("fake_card")
def test_an_index_with_more_labels_searches_where_the_first_one_does() -> None:
    vectors = np.eye(3, dtype=np.float32)
    assert ExactIndex(vectors, CARD).extended(vectors).device is CARD


def test_a_search_for_mining_is_exact_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BATCHES_EXACT_UP_TO", 20)
    vectors = np.eye(30, dtype=np.float32)
    assert mining_index(vectors).part.kind == "hnsw"
    monkeypatch.setattr(Device, "chosen", lambda: CARD)
    assert mining_index(vectors).part.kind == "exact"


def test_the_largest_of_groups_are_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values as ``topk`` gives them, and columns that have them."""
    monkeypatch.setattr(exact, "_CARD_GROUP", 4)
    scores = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (30, 400)).astype(np.float32))
    ranked: list[tuple[int, ...]] = []
    topk = torch.Tensor.topk
    monkeypatch.setattr(
        torch.Tensor, "topk", lambda own, *a, **b: ranked.append(tuple(own.shape)) or topk(own, *a, **b)
    )
    values, ids = exact._grouped_topk(scores, 7)
    assert ranked == [(30, 100), (30, 28)], "all 400 scores are ranked in no row"
    assert torch.equal(values, topk(scores, 7, dim=1).values)
    assert torch.equal(scores.gather(1, ids), values)
    assert all(len(set(row)) == 7 for row in ids.tolist())


def test_of_very_many_equal_scores_the_first_are_best() -> None:
    assert exact._top_columns(torch.zeros(2, 70_000), 3).tolist() == [[0, 1, 2]] * 2


def test_a_card_knows_more_labels_than_float32_tells_apart() -> None:
    """The first block is joined to no labels: ids of numbers with a point would be rounded from 2^24 on."""
    best = exact._update_best(exact._no_labels(1, CPU.torch), torch.tensor([[0.5, 0.25]]), 2**24, 2)
    assert best[1].tolist() == [[2**24, 2**24 + 1]]
