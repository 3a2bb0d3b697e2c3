"""Pairs that predictions leave out are neither positives nor negatives, in no training, no search and no fusion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arrays import masked
from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.classifiers import GradientError, gradient_error
from xc_core.cluster import theorem1
from xc_core.data.corpus import Corpus
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import TRAIN
from xc_core.errors import ConfigError
from xc_core.infer.gathered import Candidates
from xc_core.params import changed, deep_merged
from xc_core.sampling import NEGATIVES, Documents, InBatch, Negatives, NegativeSource, PairPool, hard_negatives
from xc_core.sampling.hard import HardNegatives
from xc_core.shapes import PAD_ID, Shortlist
from xc_core.stages import audit
from xc_core.train import encoder as training

SIZE, LABELS = 40, 20
DOCS = np.arange(SIZE)
FEW: dict[str, Any] = {"hard": 3, "search": 3}
"""Settings that some sources have: few hard negatives per document."""
SHARING = [kind for kind in NEGATIVES.names() if hasattr(NEGATIVES[kind](), "share")]


def drawn(seed: int, share: float) -> LabelMatrix:
    return masked(np.random.default_rng(seed).random((SIZE, LABELS)) < share)


def dense(matrix: LabelMatrix) -> np.ndarray:
    out = np.zeros(matrix.shape, bool)
    out[matrix.pairs()] = True
    return out


def source_of(kind: str, documents: Documents, **settings: Any) -> NegativeSource:
    """Return the source ``kind``, with those of the settings in ``FEW`` that it has."""
    default = NEGATIVES[kind]()
    few = {name: value for name, value in FEW.items() if hasattr(default, name)}
    part: Negatives = changed(default, {**few, **settings}, "negatives")
    return part.build(documents, 0)


@pytest.mark.parametrize(
    ("kind", "share"), [(kind, share) for share in (False, True) for kind in (SHARING if share else NEGATIVES.names())]
)
@pytest.mark.parametrize("positives", [0, 2])
def test_no_pool_has_a_filtered_pair_as_a_positive_or_a_negative(kind: str, positives: int, share: bool) -> None:
    truth, filters = drawn(0, 0.12), drawn(1, 0.2)
    random = np.random.default_rng(2)
    stored = random.integers(0, LABELS, (SIZE, 3), dtype=np.int32)
    documents = Documents(truth, filters, hard=lambda: stored)
    settings = {"share": True} if share else {}
    source = source_of(kind, documents, positives=positives, **settings)
    docs, labels = (random.standard_normal((size, 8)).astype(np.float32) for size in (SIZE, LABELS))
    for epoch in range(2):
        source.refresh(epoch, docs, {"texts": labels, "rows": labels})
    pool = source.pool(DOCS, 0)
    own, aside = (dense(matrix)[:, pool.labels_U] for matrix in (truth, filters))
    np.testing.assert_array_equal(pool.known_BU, own | aside)
    assert not (pool.chosen_BU & ~own).any()
    assert (aside & ~own).any(), "the pool holds labels that are filtered for some document"
    if pool.weight_BU is not None and pool.noise_BU is None:
        assert not pool.weight_BU[aside].any()


@pytest.mark.parametrize("kind", [kind for kind in NEGATIVES.names() if kind not in SHARING])
def test_a_source_whose_pool_is_not_shared_refuses_the_setting(kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"negatives\.share.*\n.*a setting of the source of negatives '{kind}'"):
        source_of(kind, Documents(drawn(0, 0.12)), share=True)


@pytest.mark.parametrize("kind", ["mined", "importance"])
def test_no_search_finds_a_filtered_pair(kind: str) -> None:
    """Each document's nearest label is its own text: filtered, as in item-to-item data."""
    own = LabelMatrix.identity(LABELS)
    truth = LabelMatrix.from_pairs(np.arange(LABELS), (np.arange(LABELS) + 1) % LABELS, (LABELS, LABELS))
    vectors = np.random.default_rng(0).standard_normal((LABELS, 8)).astype(np.float32)
    part = changed(NEGATIVES[kind](), {"hard": 4} | ({"search": 4} if kind == "mined" else {}), "negatives")
    with_own, without_own = (part.build(Documents(truth, filters), 0) for filters in (None, own))
    for source in (with_own, without_own):
        source.refresh(0, vectors, {"texts": vectors})
        source.refresh(1, vectors, {"texts": vectors})
    numbers = np.arange(LABELS)[:, None]
    assert (with_own.arrays()["hard"] == numbers).any(1).all()
    found = without_own.arrays()["hard"]
    assert not (found == numbers).any()
    assert (found != PAD_ID).all(), "others take their place"


def test_hard_negatives_are_the_best_that_are_not_known() -> None:
    short = Shortlist(np.array([[3, 1, 0, 2]], np.int32), np.array([[4, 3, 2, 1]], np.float32))
    known = LabelMatrix.from_pairs(np.array([0, 0]), np.array([3, 0]), (1, 4))
    assert hard_negatives(short, known, 2).ids_NK.tolist() == [[1, 2]]


@pytest.fixture
def filtered(tmp_path: Path) -> Workspace:
    """Return the toy world in which label 0 is filtered for every train document that does not have it."""
    world = ToyWorld.make()
    workspace = make_workspace(tmp_path, world)
    lines = [f"{number} 0\n" for number, row in enumerate(world.train) if 0 not in row["target_ind"]]
    (workspace.raw("toy") / "filter_labels_train.txt").write_text("".join(lines), "utf-8")
    return workspace


def test_both_trainings_both_searches_and_the_fusion_get_the_filters(
    filtered: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[LabelMatrix | None] = []
    build = InBatch.build

    def spy(part: InBatch, documents: Documents, seed: int) -> NegativeSource:
        made.append(documents.filters)
        return build(part, documents, seed)

    monkeypatch.setattr(InBatch, "build", spy)
    gathered: list[Candidates] = []
    gather = Candidates.of
    monkeypatch.setattr(Candidates, "of", lambda *args: gathered.append(gather(*args)) or gathered[-1])
    in_training, in_audit = (known_pairs_of_theorem1(module, monkeypatch) for module in (training, audit))
    changes = {"negatives": {"k": 4}, "scores": {"biased_rows": {"epochs": 1}}}
    filtered.params.declare_experiment("toy", "ngame", "ngame", deep_merged(TOY_CHANGES, changes))
    for stage in STAGES:
        run_stage(filtered, stage, "toy", "ngame")
    corpus = Corpus.open(filtered.folder("corpus", "toy"))
    assert len(made) == 7, "M1; M4 and the score without each half of the validation documents, and with both"
    for filters in made:
        assert filters is not None
        assert 0 < len(filters.indices) < len(filters)
        assert (filters.indices == 0).all()
    assert made[0] is not None and len(made[0]) == len(corpus.rows(TRAIN))
    for final in (made[3], made[6]):
        assert final is not None and len(final) == len(corpus.published_rows())
    check_theorems(corpus, in_training, in_audit)
    check_mined(corpus, HardNegatives.open(filtered.folder("negatives", "toy", "ngame")))
    for found in gathered:
        with_it = (found.ids_NK == 0).any(1)
        assert found.positive_NK[found.ids_NK == 0].all(), "label 0 is a candidate only of documents that have it"
        assert not with_it.all()


def known_pairs_of_theorem1(module: Any, monkeypatch: pytest.MonkeyPatch) -> list[LabelMatrix]:
    """Return a list that gets the known pairs of each call of ``theorem1`` in ``module``."""
    known: list[LabelMatrix] = []

    def spy(*args: Any, **settings: Any) -> Any:
        known.append(args[2])
        return theorem1(*args, **settings)

    monkeypatch.setattr(module, "theorem1", spy)
    return known


def check_theorems(corpus: Corpus, in_training: list[LabelMatrix], in_audit: list[LabelMatrix]) -> None:
    """Known pairs of the figures of Theorem 1 are positives and filtered pairs, of the documents trained on."""
    for used, rows in ((in_training, corpus.rows(TRAIN)), (in_audit, corpus.published_rows())):
        truth, aside = (pairs.rows(rows) for pairs in (corpus.labels, corpus.filters))
        known = truth.union(aside)
        assert used
        assert all(np.array_equal(own.pairs(), known.pairs()) for own in used)
        assert len(known.indices) > len(truth.indices)


def check_mined(corpus: Corpus, mined: HardNegatives) -> None:
    """No filtered pair is a hard negative."""
    aside = corpus.filters.rows(mined.rows_N)
    assert mined.found.k == 4
    assert aside.counts_N.any()
    assert not aside.contains(np.arange(len(aside))[:, None], mined.found.ids_NK).any()


def test_the_gradient_that_an_estimate_is_compared_with_has_no_filtered_negative(
    filtered: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes: list[PairPool] = []

    def spy(*args: Any) -> GradientError:
        wholes.append(args[4])
        return gradient_error(*args)

    monkeypatch.setattr(training, "gradient_error", spy)
    few = {"negatives": {"hard": 3, "uniform": 5}, "order": {"batch_size": 32}}
    filtered.params.declare_experiment("toy", "astra", "astra", {"encoder": {**TOY_CHANGES["encoder"], **few}})
    for stage in ("corpus", "tokens", "encoder"):
        run_stage(filtered, stage, "toy", "astra")
    assert wholes
    for whole in wholes:
        aside = whole.known_BU & ~whole.chosen_BU
        assert aside[:, 0].any()
        assert not aside[:, 1:].any()
