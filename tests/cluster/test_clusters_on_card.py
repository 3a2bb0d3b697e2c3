"""Balanced clusters by torch: those of numpy, on a tensor of the processor and on the device of ``tests/card.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tests.arrays import unit
from tests.card import CARD, CardTensor, WaitError, unread
from tests.cluster.points import COHESION, mixture, see, whole_numbers
from tests.naive import clusters as naive
from xc_core.cluster import balanced, balanced_clusters, cluster_sizes, cohesion, on_card, placed
from xc_core.cluster.tree import levels
from xc_core.data.labels import LabelMatrix
from xc_core.devices import CPU, Device, put
from xc_core.errors import ConfigError
from xc_core.progress import listen, silence
from xc_core.sampling import Clustered, Documents
from xc_core.seeds import generator
from xc_core.shapes import F32, I64


def by_torch(vectors: F32, target: int, seed: int = 0) -> tuple[I64, I64]:
    return balanced_clusters(torch.from_numpy(vectors), target, seed)


def sets(clusters: tuple[I64, I64]) -> set[frozenset[int]]:
    return {frozenset(part) for part in naive.clusters_of(*clusters)}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 700), st.integers(1, 800), st.integers(0, 2**32 - 1))
def test_every_point_is_in_one_cluster_and_sizes_differ_by_at_most_one(size: int, target: int, seed: int) -> None:
    order, sizes = by_torch(unit(np.random.default_rng(seed).standard_normal((size, 4))), target, seed)
    assert sorted(order.tolist()) == list(range(size))
    assert order.dtype == np.int64
    assert sizes.tolist() == (cluster_sizes(size, target).tolist() if size else [])


@pytest.mark.parametrize(("clusters", "size"), [(4, 10), (7, 30), (24, 25), (40, 60)])
def test_clusters_with_gaps_are_those_of_numpy(clusters: int, size: int) -> None:
    vectors, own = mixture(3, clusters * size, 32, clusters, 0.02)
    found = by_torch(vectors, size)
    assert sets(found) == sets(balanced_clusters(vectors, size, 0))
    assert all(len(set(own[part])) == 1 for part in naive.clusters_of(*found))


@pytest.mark.parametrize(
    ("size", "width", "centres", "noise", "target"),
    [(600, 16, 40, 0.7, 8), (2000, 64, 2000, 0.3, 5), (3000, 16, 20, 1.0, 16), (10_000, 32, 300, 0.8, 9)],
)
def test_clusters_without_gaps_are_as_near_as_those_of_numpy(
    size: int, width: int, centres: int, noise: float, target: int
) -> None:
    found, expected = [], []
    for seed in range(3):
        vectors, _ = mixture(seed, size, width, centres, noise)
        found.append(cohesion(vectors, *by_torch(vectors, target, seed)))
        expected.append(cohesion(vectors, *balanced_clusters(vectors, target, seed)))
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=COHESION)


@pytest.mark.parametrize("seen", [1 << 15, 64])
@pytest.mark.parametrize("copied", [1 << 28, 1 << 10, 1 << 4])
@pytest.mark.parametrize("device", ["cpu", "card"])
def test_the_order_is_that_of_numpy_if_sums_are_exact(
    device: str, copied: int, seen: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Draws, ties, samples of large nodes, and points that are copied together; nothing waits for the card."""
    see(monkeypatch, seen)
    monkeypatch.setattr(on_card, "_COPIED", copied)
    vectors = whole_numbers(512, 3)
    expected, sizes = balanced_clusters(vectors, 4, 5)
    if device == "cpu":
        found = by_torch(vectors, 4, 5)[0]
    else:
        request.getfixturevalue("fake_card")
        points = put(vectors, CARD.torch)
        with unread():
            order, finite = on_card._sorted(points, sizes, generator(5, "clusters"))
        assert isinstance(order, CardTensor)
        assert finite.cpu()
        found = order.cpu().numpy()
    assert np.array_equal(found, expected)


def test_nodes_around_the_number_that_is_seen_are_split_as_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some nodes of a level draw a sample, others do not; directions are those of the start, which are exact."""
    see(monkeypatch, 125)
    for module in (balanced, on_card):
        monkeypatch.setattr(module, "ROUNDS", 0)
    vectors = whole_numbers(1003, 3)
    counts = [set((end - begin).tolist()) for begin, _, end in levels(cluster_sizes(1003, 2))]
    assert any({125, 126} <= count for count in counts)
    assert np.array_equal(by_torch(vectors, 2)[0], balanced_clusters(vectors, 2, 0)[0])


@pytest.mark.usefixtures("fake_card")
def test_a_read_within_the_tree_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    split = on_card._split
    monkeypatch.setattr(on_card, "_split", lambda *args: torch.tensor(bool(split(*args))))
    points = put(whole_numbers(64, 3), CARD.torch)
    with unread(), pytest.raises(WaitError):
        on_card._sorted(points, cluster_sizes(64, 4), generator(0, "clusters"))


def test_the_seed_decides_and_vectors_stay() -> None:
    vectors, _ = mixture(1, 500, 8, 20, 1.0)
    before = vectors.copy()
    first, again, other = (by_torch(vectors, 7, seed)[0] for seed in (3, 3, 4))
    assert first.tolist() == again.tolist() != other.tolist()
    assert np.array_equal(vectors, before)


@pytest.mark.parametrize("target", [1, 3, 50, 400])
def test_equal_points_keep_their_order(target: int) -> None:
    order, sizes = by_torch(unit(np.ones((350, 5))), target)
    assert order.tolist() == list(range(350))
    assert sizes.max() - sizes.min() <= 1


def test_vectors_of_length_zero_are_points_like_others() -> None:
    vectors = np.concatenate([np.zeros((31, 4), np.float32), mixture(9, 30, 4, 2, 0.1)[0]])
    order, sizes = by_torch(vectors, 6)
    assert sorted(order.tolist()) == list(range(61))
    assert np.isfinite(cohesion(torch.from_numpy(vectors), order, sizes))


@pytest.mark.parametrize(("size", "target"), [(40, 4), (40, 100), (3000, 4)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused(value: float, size: int, target: int) -> None:
    vectors = mixture(10, size, 8, 5, 1.0)[0]
    vectors[17, 3] = value
    with pytest.raises(ConfigError, match="not finite"):
        by_torch(vectors, target)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("target", [52, 206])
def test_vectors_that_are_not_finite_are_refused_if_no_sample_has_them(
    target: int, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a padded node they came after its padding: clusters had a point twice, and lacked another."""
    see(monkeypatch, 16)
    vectors = mixture(10, 206, 4, 5, 1.0)[0]
    assert sorted(balanced_clusters(make(vectors), target, 0)[0].tolist()) == list(range(206))
    vectors[[17, 40], 1] = np.nan
    with pytest.raises(ConfigError, match="not finite"):
        balanced_clusters(make(vectors), target, 0)


@pytest.mark.parametrize("seen", [1 << 15, 16])
@pytest.mark.parametrize(("size", "target"), [(103, 21), (206, 52), (61, 7)])
def test_the_order_of_few_points_is_that_of_numpy(
    size: int, target: int, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded nodes, and halves of unequal size; few points are so far apart that rounding moves none."""
    see(monkeypatch, seen)
    vectors, _ = mixture(4, size, 6, 9, 0.7)
    assert np.array_equal(by_torch(vectors, target)[0], balanced_clusters(vectors, target, 0)[0])


@pytest.mark.parametrize("copied", [1 << 28, 64])
@pytest.mark.parametrize("device", ["cpu", "card"])
def test_cohesion_is_that_of_numpy(
    device: str, copied: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(on_card, "_COPIED", copied)
    vectors, _ = mixture(2, 301, 8, 20, 0.5)
    order, sizes = balanced_clusters(vectors, 6, 0)
    assert sizes.max() > sizes.min(), "some clusters are padded"
    points = torch.from_numpy(vectors)
    if device == "card":
        request.getfixturevalue("fake_card")
        points = put(vectors, CARD.torch)
    assert cohesion(points, order, sizes) == pytest.approx(cohesion(vectors, order, sizes), rel=1e-5)
    assert np.isnan(cohesion(points, np.arange(301), np.ones(301, np.int64)))


class Largest(TorchDispatchMode):
    """Remembers the bytes of the largest tensor that an operation made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.nbytes)
        return out


@pytest.mark.parametrize("target", [9, 5000])
@pytest.mark.parametrize("seen", [1 << 15, 512])
def test_no_operation_copies_all_vectors(seen: int, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 million vectors of 384 numbers are 15 GB: a card may hold them once, but not twice."""
    monkeypatch.setattr(on_card, "SEEN", seen)
    monkeypatch.setattr(on_card, "_COPIED", 512 * 64)
    vectors = torch.from_numpy(mixture(2, 5000, 64, 20, 0.5)[0])
    with Largest() as largest:
        order, sizes = balanced_clusters(vectors, target, 0)
    assert largest.size <= (4 * 512 * 64 if seen == 512 else vectors.nbytes)  # a node that is seen whole is copied
    with Largest() as largest:
        found = cohesion(vectors, order, sizes)
    assert largest.size <= 4 * 512 * 64
    assert found == pytest.approx(cohesion(vectors.numpy(), order, sizes), rel=1e-4)


def test_memory_on_a_card_is_that_of_the_vectors_once_of_some_points_and_of_places() -> None:
    """10 million vectors: 15.4 GB unless they are there, 1.07 GB of points, 128 bytes per vector."""
    assert on_card.memory_on_card(10**7, 384) == 4 * 384 * 10**7 + 2**30 + 128 * 10**7
    assert on_card.memory_on_card(10**7, 384, copied=False) == 2**30 + 128 * 10**7
    assert on_card.memory_on_card(10, 4, copied=False) == 4 * 2 * 10 * 4 + 128 * 10


def test_vectors_stay_in_their_array_without_a_card() -> None:
    vectors = whole_numbers(6, 2)
    assert placed(vectors, CPU) is vectors
    assert placed(vectors) is vectors, "tests have a CPU as the chosen device"
    assert np.shares_memory(placed(torch.from_numpy(vectors)), vectors)


@pytest.mark.usefixtures("fake_card")
def test_vectors_are_copied_to_the_chosen_card_once_and_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, copies = whole_numbers(11, 2), []
    vectors.setflags(write=False)
    monkeypatch.setattr(Device, "chosen", lambda: CARD)
    monkeypatch.setattr(on_card, "_COPIED", 4 * 2 * 3)
    monkeypatch.setattr(on_card, "put", lambda array, device: copies.append(len(array)) or put(array, device))
    found = placed(vectors)
    assert isinstance(found, CardTensor)
    assert np.array_equal(found.cpu().numpy(), vectors)
    assert copies == [3, 3, 3, 2]
    assert placed(found) is found


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize("there", [False, True])
def test_without_room_on_the_card_the_processor_clusters_and_says_so(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, asked, vectors = [], [], whole_numbers(11, 2)
    monkeypatch.setattr(Device, "chosen", lambda: CARD)
    monkeypatch.setattr(Device, "keeps", lambda device, size: bool(asked.append(size)))
    monkeypatch.setattr(on_card, "_PER_POINT", 10**8)
    listen(lines.append)
    found = placed(put(vectors, CARD.torch) if there else vectors)
    silence()
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, vectors)
    assert asked == [on_card.memory_on_card(11, 2, copied=not there)]
    assert lines == ["clusters of 11 vectors are made on the CPU: the GPU would need 1.1 GB for them"]


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize("there", [False, True])
def test_an_order_clusters_on_the_chosen_card_or_that_of_its_vectors(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.device] = []
    ordered = on_card.ordered
    monkeypatch.setattr(balanced, "ordered", lambda points, *rest: seen.append(points.device) or ordered(points, *rest))
    if not there:
        monkeypatch.setattr(Device, "chosen", lambda: CARD)
    vectors = mixture(3, 120, 8, 12, 0.02)[0]
    card, cpu = (Clustered(size=10, warmup_epochs=0).build(Documents(LabelMatrix.none(120, 1)), 0) for _ in range(2))
    figures = card.refresh(0, put(vectors, CARD.torch) if there else vectors)
    assert seen == [CARD.torch]
    monkeypatch.undo()
    assert figures == {name: pytest.approx(value, rel=1e-5) for name, value in cpu.refresh(0, vectors).items()}
    assert sets(card.clusters()) == sets(cpu.clusters())  # type: ignore[arg-type]
