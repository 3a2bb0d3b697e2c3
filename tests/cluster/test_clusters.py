"""The artefact of clusters: what is written is read; the clusters of some of the documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naive import clusters as naive
from xc_core import artifacts
from xc_core.cluster import Clusters
from xc_core.errors import CorruptError, MissingError

ROWS = np.array([2, 3, 5, 7, 11])
CLUSTERS = Clusters(ROWS, np.array([4, 0, 2, 3, 1]), np.array([2, 3]))


def write(folder: Path, clusters: Clusters) -> Clusters:
    with artifacts.building(folder, kind=Clusters.kind) as build:
        clusters.write(build)
    return Clusters.open(folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = write(tmp_path / "clusters", CLUSTERS)
    for name in ("rows_N", "order_N", "sizes"):
        assert np.array_equal(getattr(found, name), getattr(CLUSTERS, name))
    facts = artifacts.read_made(tmp_path / "clusters").facts
    assert facts == {"clusters": 2, "smallest": 2, "largest": 3, "documents": 5}


@given(st.integers(1, 40), st.integers(1, 9), st.floats(0.05, 1.0), st.integers(0, 2**32 - 1))
def test_the_clusters_among_some_documents_equal_those_of_sets(size: int, count: int, share: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = np.flatnonzero(random.random(3 * size) < 0.5)
    rows = rows if len(rows) else np.array([7])
    sizes = np.array([len(part) for part in np.array_split(rows, min(count, len(rows)))])
    whole = Clusters(rows, random.permutation(len(rows)), sizes)
    some = rows[random.random(len(rows)) < share]
    order, left = whole.among(some)
    expected = [[row for row in rows[part].tolist() if row in some] for part in naive.clusters_of(whole.order_N, sizes)]
    found = [some[part].tolist() for part in naive.clusters_of(order, left)] if len(left) else []
    assert found == [part for part in expected if part]


@pytest.mark.parametrize("rows", [[2, 4], [12], [0, 2, 3, 5, 7, 11]])
def test_documents_that_are_in_no_cluster_are_refused(rows: list[int]) -> None:
    with pytest.raises(ValueError, match=f"1 of {len(rows)} documents are in no cluster"):
        CLUSTERS.among(np.array(rows))


@pytest.mark.parametrize(
    ("clusters", "covers"),
    [
        (CLUSTERS, True),
        (Clusters(ROWS[1:], np.arange(4), np.array([4])), False),
        (Clusters(ROWS, np.array([4, 0, 2, 3, 3]), np.array([2, 3])), False),
        (Clusters(ROWS, np.array([4, 0, 2, 3]), np.array([2, 2])), False),
        (Clusters(ROWS, np.array([4, 0, 2, 3, 1]), np.array([2, 2])), False),
        (Clusters(ROWS + 1, np.array([4, 0, 2, 3, 1]), np.array([2, 3])), False),
    ],
)
def test_clusters_cover_documents_only_if_each_is_in_exactly_one(clusters: Clusters, covers: bool) -> None:
    assert clusters.covers(ROWS) == covers


def test_a_missing_or_damaged_artefact_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "clusters"
    with pytest.raises(MissingError):
        Clusters.open(folder)
    write(folder, CLUSTERS)
    content = (folder / "order.npy").read_bytes()
    (folder / "order.npy").write_bytes(content[:-1] + b"x")
    with pytest.raises(CorruptError, match="changed since it was written"):
        Clusters.open(folder)
    (folder / "order.npy").unlink()
    with pytest.raises(CorruptError, match="no file"):
        Clusters.open(folder)
