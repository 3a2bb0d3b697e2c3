"""The peers of the benchmarks: votes, sums and the table, on the toy world."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import sparse

from benchmarks import peers
from benchmarks.peers import PEERS, Data, added, as_matrix, best, measure, votes
from tests.conftest import open_corpus
from xc_core.chain import Workspace
from xc_core.encoders import build_encoder
from xc_core.errors import MissingError
from xc_core.metrics.names import TABLE
from xc_core.shapes import PAD_ID, Shortlist


def test_each_of_the_nearest_documents_votes_with_its_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "NEAREST", 3)
    random = np.random.default_rng(0)
    cosines, labels = (
        random.uniform(-1, 0.2, (6, 9)).astype(np.float32),
        (random.random((9, 5)) < 0.4).astype(np.float32),
    )
    wanted = np.zeros((6, 5), np.float32)
    for row, own in enumerate(cosines):
        for near in sorted(range(9), key=lambda at: -own[at])[:3]:
            wanted[row] += max(own[near], 0) * labels[near]
    assert np.allclose(votes(cosines, sparse.csr_matrix(labels)).toarray(), wanted)


def test_scores_are_added_after_each_is_divided_by_its_best_one() -> None:
    one, other = (
        sparse.csr_matrix([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
        sparse.csr_matrix([[0.0, 5.0, 10.0], [0.0, 4.0, 1.0]]),
    )
    assert np.allclose(added([one, other]).toarray(), [[1.0, 1.0, 1.0], [0.0, 1.0, 0.25]])


def test_the_best_labels_come_first_and_a_row_may_be_short() -> None:
    found = best(sparse.csr_matrix([[0.5, 0.0, 2.0, 1.0], [0.0, 0.0, 3.0, 0.0]]), k=2)
    assert found.ids_NK.tolist() == [[2, 3], [2, PAD_ID]]
    assert as_matrix(found, 4).toarray().tolist() == [[0, 0, 2, 1], [0, 0, 3, 0]]
    assert isinstance(found, Shortlist)


def test_on_the_toy_world_words_name_the_labels_and_each_peer_beats_chance(trained: Workspace) -> None:
    """A test document has two of ten labels: labels named at random have 20 percent P@1."""
    lines = list(measure(Data(open_corpus(trained), "bag"), list(PEERS)))
    rows = {cells[1].strip(): [float(cell) for cell in cells[2:-1]] for cells in (one.split("|") for one in lines[2:])}
    assert list(rows) == [*PEERS, *(" + ".join(parts) for parts in peers.SUMS)]
    assert all(len(figures) == len(TABLE) + 1 for figures in rows.values())
    assert rows["bonsai"][0] == 100.0
    assert all(figures[0] > 30 for figures in rows.values())
    assert all(figures[0] >= figures[2] for figures in rows.values()), "P@5 is at most 40, of two labels"


@pytest.mark.parametrize(("declared", "pooling"), [("cls", "cls"), ("max_tokens", "mean"), (None, "mean")])
def test_a_model_is_asked_as_it_was_trained(
    trained: Workspace, monkeypatch: pytest.MonkeyPatch, declared: str | None, pooling: str
) -> None:
    asked = []
    monkeypatch.setattr(peers, "declared_pooling", {"bag": declared}.__getitem__)
    monkeypatch.setattr(
        peers, "build_encoder", lambda own, size, seed: asked.append(own) or build_encoder(own, size, seed)
    )
    Data(open_corpus(trained), "bag").embedded(["river0 castle1"])
    assert [config.pooling for config in asked] == [pooling]


def test_a_dataset_that_was_not_ingested_is_named_without_a_traceback(
    trained: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(trained.root))
    result = CliRunner().invoke(peers.main, ["--dataset", "absent"])
    assert result.exit_code == MissingError.exit_code
    assert result.output.startswith("peers: found no dataset 'absent' in params.yaml")
