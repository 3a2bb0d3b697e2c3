"""The label tree does not gather the documents of all pairs at its root."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.bounded import bounded
from xc_core.data.labels import LabelMatrix
from xc_core.sampling import LabelTree, tree_growth
from xc_core.shapes import F32

PAIRS = 1_000_000


def world(docs: int, labels: int, pairs: int) -> tuple[F32, LabelMatrix]:
    """Return random documents, each with as many random labels."""
    random = np.random.default_rng(docs)
    ids = random.integers(0, labels, pairs)
    truth = LabelMatrix.from_pairs(np.arange(pairs) % docs, ids, (docs, labels))
    return random.standard_normal((docs, 16), np.float32), truth


@pytest.mark.parametrize("gathered", [1, 100, 700])
def test_a_tree_fitted_in_blocks_is_the_tree(gathered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    doc_ND, truth = world(300, 37, 900)
    whole = LabelTree.fit(doc_ND, truth, width=6, seed=0, regulariser=0.1)
    monkeypatch.setattr(tree_growth, "_GATHERED", gathered)
    blocks = LabelTree.fit(doc_ND, truth, width=6, seed=0, regulariser=0.1)
    assert np.array_equal(whole.label_M, blocks.label_M)
    np.testing.assert_allclose(blocks.weight_VQ, whole.weight_VQ, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(blocks.bias_V, whole.bias_V, rtol=1e-9, atol=1e-12)


def many_pairs() -> Callable[[], None]:
    """About 0.7 M pairs of 100 K documents and 16 labels, at most 16 K of which are gathered at a time."""
    doc_ND, truth = world(100_000, 16, PAIRS)
    tree_growth._GATHERED = 1 << 14  # type: ignore[misc]
    tree_growth.ROUNDS = 2  # type: ignore[misc]

    def fit() -> None:
        assert LabelTree.fit(doc_ND, truth, width=16, seed=0, regulariser=0.1).num_labels == 16

    return fit


def test_the_root_of_many_pairs_is_fitted_in_a_bounded_address_space() -> None:
    """Their documents, 0.7 M x 17 x 8 bytes, and a copy of them for the Hessian would take 200 MB."""
    bounded(many_pairs, megabytes=180)
