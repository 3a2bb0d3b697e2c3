"""Labels drawn from a noise distribution: frequencies, weights, log probabilities; the distribution at prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.stats import chi2

from tests.made import made
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError, CorruptError
from xc_core.sampling import (
    NEGATIVES,
    TEXTS,
    Documents,
    LabelTree,
    NegativeSource,
    Tree,
    load_noise,
    save_noise,
)
from xc_core.sampling.drawn import signal
from xc_core.sampling.noise import FrequencyNoise
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


def fitted(kind: str, **settings: Any) -> NegativeSource:
    width = {"width": 4} if kind == "tree" else {}
    own = made(NEGATIVES, kind, positives=0, **width, **settings).build(Documents(truth()), 0)
    own.refresh(0, vectors(), {TEXTS: np.zeros((LABELS, WIDTH), np.float32)})
    return own


def probabilities(kind: str, doc: int) -> np.ndarray[Any, Any]:
    """Return p_n of every label for one document, by its definition."""
    if kind == "uniform":
        return np.full(LABELS, 1 / LABELS)
    if kind == "frequency":
        counts = np.maximum(truth().frequency_L(), 0.5)
        return counts / counts.sum()
    tree = fitted("tree").noise()
    assert tree is not None
    return np.exp(tree.log_prob(vectors()[[doc]], np.arange(LABELS)[None])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_the_distribution_and_all_count(kind: str) -> None:
    """Chi-square over 3,000 steps at the level of one in a thousand."""
    doc = 7
    own, pairs = fitted(kind, draws=2), len(truth().row(doc))
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
def test_noise_is_the_log_probability_of_each_used_pair(kind: str) -> None:
    docs = np.array([3, 7, 20])
    pool = fitted(kind).pool(docs, 5)
    assert pool.weight_BU is not None
    assert pool.noise_BU is not None
    used = pool.chosen_BU | (pool.weight_BU > 0)
    for row, doc in enumerate(docs.tolist()):
        expected = np.log(probabilities(kind, doc))[pool.labels_U]
        np.testing.assert_allclose(pool.noise_BU[row][used[row]], expected[used[row]], rtol=1e-5)


def test_a_tree_that_was_saved_draws_the_same() -> None:
    saved = fitted("tree")
    other = Tree(positives=0, width=4).build(Documents(truth()), 0)
    other.load(saved.arrays())
    docs = np.arange(SIZE)
    assert other.pool(docs, 9).labels_U.tolist() == saved.pool(docs, 9).labels_U.tolist()
    np.testing.assert_array_equal(other.pool(docs, 9).weight_BU, saved.pool(docs, 9).weight_BU)


def test_a_tree_is_fitted_with_the_settings_of_its_source() -> None:
    own = Tree(width=3, regulariser=0.5).build(Documents(truth()), 0)
    own.refresh(0, vectors(), {})
    found, every = own.noise(), np.tile(np.arange(LABELS), (SIZE, 1))
    assert found is not None
    expected, *others = (
        LabelTree.fit(vectors(), truth(), width=width, regulariser=regulariser, seed=0).log_prob(vectors(), every)
        for width, regulariser in ((3, 0.5), (WIDTH, 0.5), (3, 0.01))
    )
    np.testing.assert_array_equal(found.log_prob(vectors(), every), expected)
    assert all(np.abs(other - expected).max() > 0.01 for other in others)


def test_a_tree_is_fitted_once_and_reports_its_signal() -> None:
    own = Tree(width=4).build(Documents(truth()), 0)
    figures = own.refresh(0, vectors(), {})
    assert figures["signal_tree"] > figures["signal_uniform"]
    assert figures["tree_log_likelihood"] > -np.log(LABELS)
    assert own.refresh(1, vectors(), {}) == {}


def test_reported_signals_and_likelihood_are_those_of_their_definitions() -> None:
    """By loops: p_D(y | x) is the same for all labels of a document; the signal is a mean over documents."""
    own = Tree(width=4).build(Documents(truth()), 0)
    figures, tree = own.refresh(0, vectors(), {}), own.noise()
    assert tree is not None
    noises = {kind: np.tile(probabilities(kind, 0), (SIZE, 1)) for kind in ("uniform", "frequency")}
    noises["tree"] = np.exp(tree.log_prob(vectors(), np.tile(np.arange(LABELS), (SIZE, 1))))
    labels = [truth().row(doc).tolist() for doc in range(SIZE)]
    assert {1, 2} <= set(map(len, labels))
    for kind, noise_NL in noises.items():
        signals = [sum(2 * p / len(found) / (p + 1 / len(found)) for p in noise_NL[doc, found])
                   for doc, found in enumerate(labels)]  # fmt: skip
        assert figures[f"signal_{kind}"] == pytest.approx(np.mean(signals), rel=1e-5), kind
    likelihoods = [np.log(noises["tree"][doc, label]) for doc, found in enumerate(labels) for label in found]
    assert figures["tree_log_likelihood"] == pytest.approx(np.mean(likelihoods), rel=1e-5)


def test_of_many_documents_a_sample_has_the_signals_and_the_likelihood_of_all() -> None:
    """In the second half of the documents vectors point elsewhere, and each has three labels instead of one."""
    half, random = 2000, np.random.default_rng(3)
    one, three = np.arange(half) % 4, 4 + random.permuted(np.tile(np.arange(4), (half, 1)), axis=1)[:, :3]
    docs = np.concatenate([np.arange(half), np.repeat(half + np.arange(half), 3)])
    pairs = LabelMatrix.from_pairs(docs, np.concatenate([one, three.ravel()]), (2 * half, 8))
    doc_ND = np.repeat(np.eye(2, WIDTH, dtype=np.float32), half, axis=0)
    own = Tree(width=2).build(Documents(pairs), 0)
    figures, tree = own.refresh(0, doc_ND, {}), own.noise()
    assert tree is not None
    rows, labels = pairs.pairs()
    noise_P = tree.log_prob(doc_ND[rows], labels.astype(np.int64)[:, None])[:, 0]
    expected = signal(1 / pairs.counts_N[rows], np.exp(noise_P), len(pairs))
    assert figures["signal_tree"] == pytest.approx(expected, rel=0.05)
    assert figures["tree_log_likelihood"] == pytest.approx(noise_P.mean(), rel=0.05)


def test_a_label_without_documents_counts_as_half_a_pair() -> None:
    pairs = LabelMatrix.from_pairs(np.arange(4), np.array([0, 0, 0, 2]), (4, 3))
    np.testing.assert_allclose(np.exp(FrequencyNoise.of(pairs).log_prob_L), np.array([3, 0.5, 1]) / 4.5)


@pytest.mark.parametrize("kind", ["frequency", "tree"])
def test_noise_survives_its_file(kind: str, tmp_path: Path) -> None:
    noise = fitted(kind).noise()
    assert noise is not None
    save_noise(noise, tmp_path)
    again = load_noise(tmp_path)
    assert (again.kind, again.num_labels) == (kind, LABELS)
    ids = np.array([[0, 5, PAD_ID], [10, 1, 2]])
    np.testing.assert_array_equal(again.log_prob(vectors()[:2], ids), noise.log_prob(vectors()[:2], ids))
    np.testing.assert_array_equal(again.likely(vectors()[:2], 4), noise.likely(vectors()[:2], 4))
    assert again.log_prob(vectors()[:2], ids)[0, 2] == -np.inf


@pytest.mark.parametrize("arrays", [{}, {"other/x": np.zeros(1)}, {"frequency/x": np.zeros(1), "tree/x": np.zeros(1)}])
def test_a_file_without_exactly_one_known_distribution_is_refused(arrays: dict[str, Any], tmp_path: Path) -> None:
    save_noise(FrequencyNoise.of(truth()), tmp_path)
    (file,) = tmp_path.iterdir()
    save_file(arrays, file)
    with pytest.raises(CorruptError, match="one known distribution"):
        load_noise(tmp_path)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="cannot be read"):
        load_noise(tmp_path)
    save_noise(FrequencyNoise.of(truth()), tmp_path)
    (file,) = tmp_path.iterdir()
    for content in (file.read_bytes()[:-8], b""):
        file.write_bytes(content)
        with pytest.raises(CorruptError, match="cannot be read"):
            load_noise(tmp_path)


def test_only_sources_whose_noise_prediction_needs_have_one() -> None:
    for kind in NEGATIVES:
        own = NEGATIVES[kind]
        assert own.draws_from_noise == (kind in ("frequency", "tree"))
        if kind != "stored":
            assert (fitted(kind).noise() is not None) == own.draws_from_noise


@pytest.mark.parametrize("kind", ["frequency", "tree"])
@pytest.mark.parametrize("k", [1, 3, LABELS, 40])
def test_a_wide_beam_finds_the_same_likeliest_labels_as_a_sort_of_all(kind: str, k: int) -> None:
    noise = fitted(kind).noise()
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
    tree = fitted("tree").noise()
    assert isinstance(tree, LabelTree)
    everything = tree.log_prob(vectors(), np.broadcast_to(np.arange(LABELS), (SIZE, LABELS)))
    best = np.argsort(-everything, axis=1)[:, :3]
    found = tree.likely(vectors(), 3)
    share = np.mean([len(set(a.tolist()) & set(b.tolist())) / 3 for a, b in zip(found, best, strict=True)])
    assert share > 0.8


def test_the_signal_is_one_for_the_data_itself_and_small_for_noise_that_misses() -> None:
    data = np.array([0.5, 0.5, 1.0])
    assert signal(data, data, 2) == pytest.approx(1.0)
    assert signal(data, np.full(3, 1e-3), 2) < 0.01
    assert FrequencyNoise.of(truth()).log_prob_L.max() < 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{"draws": 0}, {"positives": -1}])
def test_a_number_of_labels_below_its_range_is_refused(kind: str, changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        made(NEGATIVES, kind, **changes)


def test_the_width_of_a_tree_has_a_range() -> None:
    assert [Tree(width=width).width for width in (1, 65_536)] == [1, 65_536]
    for width in (0, 65_537):
        with pytest.raises(ConfigError, match="width"):
            Tree(width=width)


@pytest.mark.parametrize("kind", KINDS)
def test_a_filtered_pair_is_no_negative(kind: str) -> None:
    every = LabelMatrix.from_pairs(np.repeat(np.arange(SIZE), 2), np.tile([0, 3], SIZE), (SIZE, LABELS))
    docs = np.arange(SIZE)
    pools = []
    for filters in (None, every):
        width = {"width": 4} if kind == "tree" else {}
        own = made(NEGATIVES, kind, positives=0, draws=20, **width).build(Documents(truth(), filters=filters), 0)
        own.refresh(0, vectors(), {TEXTS: np.zeros((LABELS, WIDTH), np.float32)})
        pools.append(own.pool(docs, 1))
    plain, filtered = pools
    np.testing.assert_array_equal(plain.labels_U, filtered.labels_U)
    assert plain.weight_BU is not None and filtered.weight_BU is not None
    out = np.isin(plain.labels_U, [0, 3])
    assert plain.weight_BU[:, out].sum() > 0
    assert not filtered.weight_BU[:, out].any()
    np.testing.assert_array_equal(filtered.weight_BU[:, ~out], plain.weight_BU[:, ~out])
