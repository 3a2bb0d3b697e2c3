"""Pairs that predictions leave out are neither positives nor negatives, in no training, no search and no fusion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from xc_core.cluster import theorem1
from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TRAIN
from xc_core.sampling import NEGATIVES, EveryLabel, NegativesConfig, hard_negatives
from xc_core.shapes import PAD_ID, Shortlist
from xc_core.stages import STAGES, Workspace, clusters, fusion, run_stage
from xc_core.train import encoder as training

SIZE, LABELS = 40, 20
DOCS = np.arange(SIZE)


def drawn(seed: int, share: float) -> LabelMatrix:
    pairs = np.nonzero(np.random.default_rng(seed).random((SIZE, LABELS)) < share)
    return LabelMatrix.from_pairs(*pairs, (SIZE, LABELS))


def dense(matrix: LabelMatrix) -> np.ndarray:
    out = np.zeros(matrix.shape, bool)
    out[matrix.pairs()] = True
    return out


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("positives", [0, 2])
@pytest.mark.parametrize("kind", NEGATIVES.names())
def test_no_pool_has_a_filtered_pair_as_a_positive_or_a_negative(kind: str, positives: int, share: bool) -> None:
    truth, filters = drawn(0, 0.12), drawn(1, 0.2)
    config = NegativesConfig(kind=kind, positives=positives, share=share, hard=3, search=3)
    source = NEGATIVES[kind](config, truth, 0, filters)
    random = np.random.default_rng(2)
    vectors = [random.standard_normal((size, 8)).astype(np.float32) for size in (SIZE, LABELS)]
    for epoch in range(2):
        source.refresh(epoch, *vectors)
    pool = source.pool(DOCS, 0)
    own, aside = (dense(matrix)[:, pool.labels_U] for matrix in (truth, filters))
    np.testing.assert_array_equal(pool.known_BU, own | aside)
    assert not (pool.chosen_BU & ~own).any()
    assert (aside & ~own).any(), "the pool holds labels that are filtered for some document"
    if pool.weight_BU is not None and pool.noise_BU is None:
        assert not pool.weight_BU[aside].any()


@pytest.mark.parametrize("kind", ["mined", "importance"])
def test_no_search_finds_a_filtered_pair(kind: str) -> None:
    """Each document's nearest label is its own text: filtered, as in item-to-item data."""
    own = LabelMatrix.identity(LABELS)
    truth = LabelMatrix.from_pairs(np.arange(LABELS), (np.arange(LABELS) + 1) % LABELS, (LABELS, LABELS))
    vectors = np.random.default_rng(0).standard_normal((LABELS, 8)).astype(np.float32)
    config = NegativesConfig(kind=kind, hard=4, search=4)
    with_own, without_own = (NEGATIVES[kind](config, truth, 0, filters) for filters in (None, own))
    for source in (with_own, without_own):
        source.refresh(0, vectors, vectors)
        source.refresh(1, vectors, vectors)
    numbers = np.arange(LABELS)[:, None]
    assert (with_own.arrays()["hard"] == numbers).any(1).all()
    found = without_own.arrays()["hard"]
    assert not (found == numbers).any()
    assert (found != PAD_ID).all(), "others stand in for them"


def test_hard_negatives_are_the_best_that_are_not_known() -> None:
    short = Shortlist(np.array([[3, 1, 0, 2]], np.int32), np.array([[4, 3, 2, 1]], np.float32))
    known = LabelMatrix.from_pairs(np.array([0, 0]), np.array([3, 0]), (1, 4))
    assert hard_negatives(short, known, 2).ids_NK.tolist() == [[1, 2]]


@pytest.fixture
def filtered(tmp_path: Path) -> Workspace:
    """Return the toy world in which label 0 is filtered for every train document of the file that has it not."""
    world = ToyWorld.make()
    workspace = make_workspace(tmp_path, world)
    lines = [f"{number} 0\n" for number, row in enumerate(world.train) if 0 not in row["target_ind"]]
    (workspace.raw("toy") / "filter_labels_train.txt").write_text("".join(lines), "utf-8")
    return workspace


def test_both_trainings_and_the_fusion_are_told(filtered: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LabelMatrix] = []
    real = NEGATIVES["in-batch"]

    def spy(*args: object) -> object:
        made.append(args[3])  # type: ignore[arg-type]
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setitem(NEGATIVES._parts, "in-batch", spy)
    gathered: list[fusion.Pairs] = []
    pairs_of = fusion._pairs
    monkeypatch.setattr(fusion, "_pairs", lambda *args: gathered.append(pairs_of(*args)) or gathered[-1])
    told: list[LabelMatrix] = []
    for module in (training, clusters):
        monkeypatch.setattr(module, "theorem1", lambda *args, **kw: told.append(args[2]) or theorem1(*args, **kw))
    for stage in STAGES:
        run_stage(filtered, stage, "toy", "ngame")
    corpus = Corpus.open(filtered.folder("corpus", "toy"))
    assert len(made) == 4, "M1; M4 without each half of the validation documents, and with both"
    for filters in made:
        assert 0 < len(filters.indices) < len(filters)
        assert (filters.indices == 0).all()
    assert len(made[0]) == len(corpus.rows(TRAIN))
    assert len(made[3]) == len(corpus.published_rows())
    with np.load(filtered.folder("negatives", "toy", "ngame") / "hard_negatives.npz") as mined:
        docs, ids = mined["docs"], mined["ids"]
    truth, aside = (pairs.rows(corpus.rows(TRAIN)) for pairs in (corpus.labels, corpus.filters))
    assert aside.counts_N[docs].any()
    assert not aside.contains(docs[:, None], ids).any()
    known = truth.union(aside)
    assert len(told) > 1
    assert all(np.array_equal(own.pairs(), known.pairs()) for own in told)
    assert len(known.indices) > len(truth.indices)
    for pairs in gathered:
        with_it = (pairs.ids_NK == 0).any(1)
        assert (pairs.positive_NK[pairs.ids_NK == 0]).all(), "label 0 is a candidate of documents that have it, alone"
        assert not with_it.all()


def test_the_gradient_that_an_estimate_is_compared_with_has_no_filtered_negative(
    filtered: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes: list[EveryLabel] = []
    real = training.gradient_error

    def spy(*args: Any) -> float:
        wholes.append(args[-1])
        return real(*args)

    monkeypatch.setattr(training, "gradient_error", spy)
    few = {"negatives": {"hard": 3, "uniform": 5}, "order": {"batch_size": 32}}
    filtered.declare_experiment("toy", "astra", "astra", {"encoder": {**TOY_CHANGES["encoder"], **few}})
    for stage in ("corpus", "tokens", "encoder"):
        run_stage(filtered, stage, "toy", "astra")
    assert wholes
    for whole in wholes:
        aside = whole.known_BU & ~whole.chosen_BU
        assert aside[:, 0].any()
        assert not aside[:, 1:].any()
