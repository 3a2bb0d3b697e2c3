"""Labels drawn from noise: as often as it says, counted, with their logarithms; what prediction needs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from xc_core.data.labels import LabelMatrix
from xc_core.errors import CorruptError
from xc_core.sampling import NEGATIVES, LabelTree, NegativesConfig, NegativeSource, load_noise, save_noise
from xc_core.sampling.drawn import signal
from xc_core.sampling.noise import FILE, FrequencyNoise
from xc_core.shapes import F32, PAD_ID

SIZE, LABELS, WIDTH = 60, 11, 6
KINDS = ("frequency", "tree", "uniform")


def truth() -> LabelMatrix:
    """Label l has about twice as many documents as label l - 1; each document has one or two."""
    random = np.random.default_rng(0)
    docs = np.repeat(np.arange(SIZE), 2)
    return LabelMatrix.from_pairs(docs, np.minimum(random.geometric(0.35, 2 * SIZE) - 1, LABELS - 1), (SIZE, LABELS))


def vectors() -> F32:
    return np.random.default_rng(1).standard_normal((SIZE, WIDTH)).astype(np.float32)


def source(kind: str, **settings: Any) -> NegativeSource:
    own = NEGATIVES[kind](NegativesConfig(kind=kind, positives=0, tree_width=4, **settings), truth(), 0)
    own.refresh(0, vectors(), np.zeros((LABELS, WIDTH), np.float32))
    return own


def probabilities(kind: str, doc: int) -> np.ndarray[Any, Any]:
    """p_n of every label for one document, from the room that defines it."""
    if kind == "uniform":
        return np.full(LABELS, 1 / LABELS)
    if kind == "frequency":
        counts = np.maximum(truth().frequency_L(), 0.5)
        return counts / counts.sum()
    tree = source("tree").noise()
    assert tree is not None
    return np.exp(tree.log_prob(vectors()[[doc]], np.arange(LABELS)[None])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_the_distribution_and_are_all_counted(kind: str) -> None:
    """Chi-square over 3,000 steps at the level of one in a thousand."""
    doc = 7
    own, pairs = source(kind, draws=2), len(truth().row(doc))
    counts = np.zeros(LABELS)
    for step in range(3000):
        pool = own.pool(np.array([doc]), step)
        assert pool.weight_BU is not None
        assert pool.weight_BU.sum() == 2 * pairs
        counts[pool.labels_U] += pool.weight_BU[0]
    expected = probabilities(kind, doc) * counts.sum()
    statistic = ((counts - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    assert statistic < chi2.ppf(0.999, LABELS - 1)
    others = {other: probabilities(other, doc) * counts.sum() for other in KINDS if other != kind}
    for other, wrong in others.items():
        assert ((counts - wrong) ** 2 / np.maximum(wrong, 1e-9)).sum() > chi2.ppf(0.999, LABELS - 1), other


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_the_logarithm_of_the_probability_where_a_pair_is_used(kind: str) -> None:
    docs = np.array([3, 7, 20])
    pool = source(kind).pool(docs, 5)
    assert pool.weight_BU is not None
    assert pool.noise_BU is not None
    used = pool.chosen_BU | (pool.weight_BU > 0)
    for row, doc in enumerate(docs.tolist()):
        expected = np.log(probabilities(kind, doc))[pool.labels_U]
        np.testing.assert_allclose(pool.noise_BU[row][used[row]], expected[used[row]], rtol=1e-5)


def test_a_tree_that_was_saved_draws_the_same() -> None:
    fitted = source("tree")
    other = NEGATIVES["tree"](NegativesConfig(kind="tree", positives=0, tree_width=4), truth(), 0)
    other.load(fitted.arrays())
    docs = np.arange(SIZE)
    assert other.pool(docs, 9).labels_U.tolist() == fitted.pool(docs, 9).labels_U.tolist()
    np.testing.assert_array_equal(other.pool(docs, 9).weight_BU, fitted.pool(docs, 9).weight_BU)


def test_a_tree_is_fitted_once_and_says_how_much_signal_it_promises() -> None:
    own = NEGATIVES["tree"](NegativesConfig(kind="tree", tree_width=4), truth(), 0)
    label_LD = np.zeros((LABELS, WIDTH), np.float32)
    figures = own.refresh(0, vectors(), label_LD)
    assert figures["signal_tree"] > figures["signal_uniform"]
    assert figures["tree_log_likelihood"] > -np.log(LABELS)
    assert own.refresh(1, vectors(), label_LD) == {}


@pytest.mark.parametrize("kind", ["frequency", "tree"])
def test_noise_survives_its_file(kind: str, tmp_path: Path) -> None:
    noise = source(kind).noise()
    assert noise is not None
    save_noise(noise, tmp_path)
    again = load_noise(tmp_path)
    assert again is not None
    ids = np.array([[0, 5, PAD_ID], [10, 1, 2]])
    np.testing.assert_array_equal(again.log_prob(vectors()[:2], ids), noise.log_prob(vectors()[:2], ids))
    np.testing.assert_array_equal(again.likely(vectors()[:2], 4), noise.likely(vectors()[:2], 4))
    assert again.log_prob(vectors()[:2], ids)[0, 2] == -np.inf


def test_no_file_is_no_noise_and_a_wrong_one_an_error(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    assert load_noise(tmp_path) is None
    save_file({"other/x": np.zeros(1)}, tmp_path / FILE)
    with pytest.raises(CorruptError, match="one noise"):
        load_noise(tmp_path)


@pytest.mark.parametrize("kind", ["frequency", "tree"])
@pytest.mark.parametrize("k", [1, 3, LABELS, 40])
def test_the_likeliest_labels_are_those_a_sort_of_all_finds_where_the_beam_is_wide(kind: str, k: int) -> None:
    noise = source(kind).noise()
    assert noise is not None
    found = noise.likely(vectors(), k)
    everything = noise.log_prob(vectors(), np.broadcast_to(np.arange(LABELS), (SIZE, LABELS)))
    assert found.shape[1] <= max(k, 16)
    for row, log_L in zip(found, everything, strict=True):
        own = row[row != PAD_ID]
        assert len(set(own.tolist())) == len(own) == min(k, LABELS)
        if k >= LABELS or kind == "frequency":
            np.testing.assert_allclose(np.sort(log_L[own])[::-1], np.sort(log_L)[::-1][: len(own)])


def test_a_narrow_beam_finds_most_of_the_likeliest() -> None:
    tree = source("tree").noise()
    assert isinstance(tree, LabelTree)
    best = np.argsort(-tree.log_probs(vectors()), axis=1)[:, :3]
    found = tree.likely(vectors(), 3)
    share = np.mean([len(set(a.tolist()) & set(b.tolist())) / 3 for a, b in zip(found, best, strict=True)])
    assert share > 0.8


def test_the_signal_is_one_for_the_data_itself_and_small_for_noise_that_misses() -> None:
    data = np.array([0.5, 0.5, 1.0])
    assert signal(data, data, 2) == pytest.approx(1.0)
    assert signal(data, np.full(3, 1e-3), 2) < 0.01
    assert FrequencyNoise.of(truth()).log_prob_L.max() < 0
