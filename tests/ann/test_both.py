"""A graph answers a few queries and exact search many; what was measured is stored and kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.arrays import unit
from xc_core.ann import Both, Exact, both, load_index, recall, save_index
from xc_core.ann.both import BothIndex, GraphFacts
from xc_core.errors import CorruptError
from xc_core.serve.limits import Limits
from xc_core.shapes import F32, Shortlist


def clustered(size: int, seed: int = 0) -> F32:
    random = np.random.default_rng(seed)
    centres = random.standard_normal((size // 20, 24))
    return unit(centres[random.integers(0, len(centres), size)] + 0.5 * random.standard_normal((size, 24)))


@pytest.fixture(scope="module")
def index() -> BothIndex:
    built = Both().build(clustered(3000))
    assert isinstance(built, BothIndex)
    return built


def test_the_recall_that_is_stored_is_reached_on_other_queries(index: BothIndex) -> None:
    queries = clustered(200, seed=1)
    index.facts = GraphFacts(index.facts.effort, index.facts.recall, few=1)
    assert not index.always_exact
    alone = Shortlist.stack([index.search(query[None], 100) for query in queries])
    found = recall(alone, index.exact.search(queries, 100))
    assert index.facts.recall >= Both().recall
    assert 0.95 < found < 1, "the graph answers, and nearly as well as exact search"


def test_more_than_a_few_queries_and_a_larger_k_than_the_effort_are_searched_exactly(
    index: BothIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.facts = GraphFacts(effort=128, recall=0.98, few=2)
    monkeypatch.setattr(both, "TOGETHER", 2)
    asked: list[int] = []
    through = both._search_graph
    monkeypatch.setattr(
        both,
        "_search_graph",
        lambda graph, effort, queries, k: asked.append(len(queries)) or through(graph, effort, queries, k),
    )
    queries = clustered(40, seed=2)
    for size, k in ((1, 10), (2, 128), (3, 10), (2, 129)):
        found = index.search(queries[:size], k)
        assert found.ids_NK.shape == (size, k)
    assert asked == [1, 2]
    np.testing.assert_array_equal(
        index.search(queries, 5).ids_NK, Exact().build(clustered(3000)).search(queries, 5).ids_NK
    )


def test_an_answer_does_not_depend_on_who_shares_a_pass_of_a_server(index: BothIndex) -> None:
    """Both searches agree on most labels only, so one of them answers all passes, also if the other is faster."""
    pass_size, queries = Limits().max_batch, clustered(40, seed=4)
    for few in (0, 1, 64):
        index.facts = GraphFacts(index.facts.effort, index.facts.recall, few)
        alone = Shortlist.stack([index.search(query[None], 100) for query in queries[:pass_size]])
        np.testing.assert_array_equal(index.search(queries[:pass_size], 100).ids_NK, alone.ids_NK)


@pytest.mark.parametrize(
    ("labels", "width", "compared", "expected"),
    [
        (
            117_837,
            384,
            6_000,
            64,
        ),  # measured: 0.86 ms per query of the graph, 15.5 ms of exact search, 64 at once 80 ms
        (20_000, 384, 4_040, 4),
        (2_000, 384, 2_200, 0),
        (40_000, 64, 4_060, 4),
    ],
)
def test_the_graph_is_used_while_it_is_faster(labels: int, width: int, compared: float, expected: int) -> None:
    assert both.few(labels, width, compared) == expected


def test_the_number_of_queries_follows_from_what_the_graph_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, float]] = []
    monkeypatch.setattr(both, "few", lambda *costs: asked.append(costs) or 7)
    built = Both(recall=0.5).build(clustered(3000))
    assert isinstance(built, BothIndex)
    assert built.facts.few == 7
    ((labels, width, compared),) = asked
    assert (labels, width) == (3000, 24)
    assert 100 < compared < 3000


def test_equal_vectors_give_equal_files(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        save_index(Both().build(clustered(3000)), tmp_path / name)
    files = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    assert len(files) == 4
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "second").iterdir()}


def test_a_graph_is_built_on_one_thread_whatever_the_environment_says() -> None:
    """With more, the order in which nodes are linked, and so the file, changes from run to run."""
    before = both._FAISS.omp_get_max_threads()
    try:
        both._FAISS.omp_set_num_threads(before + 1)
        with both._one_thread():
            assert both._FAISS.omp_get_max_threads() == 1
        assert both._FAISS.omp_get_max_threads() == before + 1
    finally:
        both._FAISS.omp_set_num_threads(before)


def test_a_graph_without_the_recall_is_not_used() -> None:
    built = Both(links=2, build_effort=1, recall=0.999999).build(clustered(3000))
    assert isinstance(built, BothIndex)
    assert built.facts.few == 0
    assert built.always_exact
    assert built.facts.recall < 0.999999


def test_the_effort_is_the_same_wherever_its_search_begins() -> None:
    poor = Both(links=4, build_effort=10, recall=0).build(clustered(3000))
    assert isinstance(poor, BothIndex)
    queries = clustered(3000)[:100]
    recalls = [recall(both._search_graph(poor.graph, effort, queries, 100), poor.exact.search(queries, 100))
               for effort in both._EFFORTS]  # fmt: skip
    assert recalls == sorted(recalls)
    assert recalls[0] < recalls[4] < recalls[-1] < 1
    for wanted, expected in ((0.0, 100), (recalls[4], both._EFFORTS[4]), (1.0, 512)):
        found = {both._least_effort(poor.graph, poor.exact, queries, wanted, first) for first in both._EFFORTS}
        assert {facts.effort for facts in found} == {expected}
        assert len(found) == 1


def test_the_effort_of_a_graph_with_more_labels_is_looked_for_from_the_present_one_on(
    index: BothIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.facts, efforts = GraphFacts(effort=192, recall=0.99, few=4), []
    through = both._search_graph
    monkeypatch.setattr(both, "_search_graph", lambda graph, *given: efforts.append(given[0]) or through(graph, *given))
    index.extended(clustered(40, seed=5))
    assert efforts[0] == 192


def test_what_was_measured_is_kept_in_files(index: BothIndex, tmp_path: Path) -> None:
    index.facts = GraphFacts(effort=130, recall=0.985, few=4)
    save_index(index, tmp_path)
    loaded = load_index(tmp_path)
    assert isinstance(loaded, BothIndex)
    assert loaded.facts == index.facts
    query = clustered(1 * 20, seed=3)[:1]
    np.testing.assert_array_equal(loaded.search(query, 100).ids_NK, index.search(query, 100).ids_NK)


@pytest.mark.parametrize("facts", [{}, {"effort": 1}])
def test_a_damaged_file_of_facts_is_reported(index: BothIndex, tmp_path: Path, facts: dict[str, int]) -> None:
    save_index(index, tmp_path)
    (tmp_path / "graph.json").write_text(json.dumps(facts))
    with pytest.raises(CorruptError, match="rebuild"):
        load_index(tmp_path)
