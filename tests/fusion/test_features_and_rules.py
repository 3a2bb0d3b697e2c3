"""Features and rules of fusion against values computed by hand; a fitted rule survives its file bit for bit."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError, MissingError
from xc_core.fusion import (
    FEATURES,
    FUSIONS,
    Fusion,
    FusionConfig,
    Neighbours,
    Query,
    RegressionTree,
    Sources,
    feature_table,
    load_fusion,
)
from xc_core.fusion.features import own_products
from xc_core.fusion.neighbours import TEMPERATURE
from xc_core.fusion.rules import parts_of
from xc_core.sampling.noise import FrequencyNoise
from xc_core.shapes import PAD_ID

VOTERS = LabelMatrix.from_pairs(np.array([0, 0, 1]), np.array([0, 2, 2]), (2, 3))
"""Two train documents, which are the two documents asked for: the first has the labels 0 and 2, the other 2."""
NEAR = 1 / (1 + math.exp(-0.4 / TEMPERATURE))
"""The share of the nearer voter where the cosines are 1 and 0.6."""
SOURCES = Sources(
    label_LD=np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], np.float32),
    rows_LD=np.array([[0.0, 1.0], [0.8, 0.6], [1.0, 0.0]], np.float32),
    frequency_L=np.array([5, 1, 0], np.int64),
    neighbours=Neighbours.of(np.array([[1.0, 0.0], [0.6, 0.8]], np.float32), VOTERS),
    noise=FrequencyNoise(np.log([0.5, 0.4, 0.1])),
)
DOCS = np.array([[1.0, 0.0], [0.6, 0.8]], np.float32)
IDS = np.array([[0, 1, 2], [2, 0, PAD_ID]], np.int32)
BY_HAND = {
    "label_text": [[1.0, 0.0, 0.6], [1.0, 0.6]],
    "classifier": [[0.0, 0.8, 1.0], [0.6, 0.8]],
    "frequency": [[5.0, 1.0, 0.0], [0.0, 5.0]],
    "noise": [[math.log(0.5), math.log(0.4), math.log(0.1)], [math.log(0.1), math.log(0.5)]],
    "neighbours": [[NEAR, 0.0, 1.0], [1.0, 1 - NEAR]],
}
ELSEWHERE = {"label_words", "lexical"}
"""Features that want a text, not a vector; they are checked in files of their own."""
STUMP = RegressionTree.fit(np.array([[0.0], [4.0]], np.float32), np.array([0.25, 0.75]), depth=1)
"""0.25 up to a frequency of 2, 0.75 above it."""


def filled(values_NK: np.ndarray) -> list[list[float]]:
    """Return each row's values where there is a label."""
    return [row[ids != PAD_ID].tolist() for row, ids in zip(values_NK, IDS, strict=True)]


def features(config: FusionConfig) -> np.ndarray:
    return feature_table(config.needed, Query(DOCS, SOURCES), IDS)


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_a_feature_has_the_value_computed_by_hand(name: str) -> None:
    found = FEATURES[name](Query(DOCS, SOURCES), IDS)
    assert found.dtype == np.float32
    for row, expected in zip(filled(found), BY_HAND[name], strict=True):
        assert row == pytest.approx(expected, abs=1e-6)


def test_every_feature_is_checked_by_hand_above() -> None:
    assert FEATURES.names() == sorted(ELSEWHERE.union(BY_HAND))


@pytest.mark.parametrize("names", list(itertools.permutations(sorted(BY_HAND))))
def test_a_table_holds_the_features_in_the_order_asked_for(names: tuple[str, ...]) -> None:
    table = feature_table(names, Query(DOCS, SOURCES), IDS)
    assert table.shape == (2, 3, len(BY_HAND))
    for i, name in enumerate(names):
        assert np.array_equal(table[..., i], FEATURES[name](Query(DOCS, SOURCES), IDS))


@pytest.mark.parametrize("documents", [0, 1, 15, 16, 17, 40])
def test_products_are_the_same_whatever_block_a_document_falls_into(documents: int) -> None:
    random = np.random.default_rng(0)
    doc_ND = random.normal(size=(documents, 8)).astype(np.float32)
    vectors_LD = random.normal(size=(30, 8)).astype(np.float32)
    ids_NK = random.integers(0, 30, (documents, 5)).astype(np.int32)
    expected = np.einsum("nd,nkd->nk", doc_ND.astype(float), vectors_LD[ids_NK].astype(float))
    np.testing.assert_allclose(own_products(doc_ND, ids_NK, vectors_LD), expected, atol=1e-5)


def test_the_sum_adds_the_named_scores_and_nothing_else() -> None:
    config = FusionConfig(kind="sum", add=("label_text", "classifier"))
    assert config.needed == ("label_text", "classifier")
    for row, expected in zip(filled(Fusion(config).scores(features(config))), [[1, 0.8, 1.6], [1.6, 1.4]], strict=True):
        assert row == pytest.approx(expected, abs=1e-6)


def test_one_score_alone_ranks_by_it() -> None:
    config = FusionConfig(kind="sum", add=("classifier",))
    ranked = Fusion(config).rank(IDS, features(config))
    assert ranked.ids_NK.tolist() == [[2, 1, 0], [0, 2, PAD_ID]]
    assert ranked.scores_NK[0] == pytest.approx([1.0, 0.8, 0.0], abs=1e-6)
    assert ranked.scores_NK[1, 2] == -np.inf


def test_the_tree_adds_its_leaf_to_the_added_scores() -> None:
    """Source of the rule: NGAME, appendix C, tree + both scores."""
    config = FusionConfig(features=("frequency",), add=("label_text", "classifier"))
    found = filled(Fusion(config, STUMP).scores(features(config)))
    for row, expected in zip(found, [[1.75, 1.05, 1.85], [1.85, 2.15]], strict=True):
        assert row == pytest.approx(expected, abs=1e-6)


def test_the_tree_may_stand_alone() -> None:
    config = FusionConfig(features=("frequency",), add=())
    assert filled(Fusion(config, STUMP).scores(features(config))) == [[0.75, 0.25, 0.25], [0.25, 0.75]]


def test_the_tree_reads_its_own_features_whatever_else_is_added() -> None:
    """A tree on the frequency, which comes first in ``features`` or last in ``needed``, reads the frequency."""
    plain = FusionConfig(features=("frequency",), add=("label_text",))
    wider = FusionConfig(features=("classifier", "frequency"), add=("label_text",))
    tree = RegressionTree(np.array([1, -1, -1]), STUMP.threshold, STUMP.left, STUMP.right, STUMP.value)
    expected = Fusion(plain, STUMP).scores(features(plain))
    np.testing.assert_array_equal(Fusion(wider, tree).scores(features(wider)), expected)


def test_fitting_takes_filled_candidates_alone() -> None:
    """A hole whose features and target would turn the tree around is not seen."""
    config = FusionConfig(features=("frequency",), add=(), depth=1, min_leaf=1)
    values = np.array([[[0.0], [4.0], [100.0]], [[0.0], [4.0], [-100.0]]], np.float32)
    positive = np.array([[False, True, False], [False, True, True]])
    holes = np.array([[True, True, False], [True, True, False]])
    tree = FUSIONS["tree"](config, values, positive, holes).tree
    assert tree is not None
    assert (tree.threshold[0], tree.value[tree.left[0]], tree.value[tree.right[0]]) == (2.0, 0.0, 1.0)
    spoilt = FUSIONS["tree"](config, values, positive, np.ones_like(holes)).tree
    assert spoilt is not None
    assert spoilt.threshold[0] != 2.0


def test_a_rule_without_parameters_is_not_fitted() -> None:
    config = FusionConfig(kind="sum")
    nothing = np.zeros((0, 0, 2), np.float32)
    assert FUSIONS["sum"](config, nothing, np.zeros((0, 0), bool), np.zeros((0, 0), bool)) == Fusion(config)


def test_equal_scores_rank_by_id_and_holes_come_last() -> None:
    config = FusionConfig(kind="sum", add=("label_text",))
    ids = np.array([[2, PAD_ID, 1, 0]], np.int32)
    ranked = Fusion(config).rank(ids, np.full((1, 4, 1), 0.5, np.float32))
    assert ranked.ids_NK.tolist() == [[0, 1, 2, PAD_ID]]


@pytest.mark.parametrize(
    ("add", "expected"),
    [
        (("label_text", "classifier"), {"label_text", "classifier", "sum"}),
        (("classifier",), {"classifier"}),
        ((), set()),
    ],
)
def test_a_fusion_is_compared_with_its_scores_alone_and_with_their_sum(
    add: tuple[str, ...], expected: set[str]
) -> None:
    config = FusionConfig(add=add)
    rules = parts_of(config)
    assert set(rules) == expected
    table = features(config)
    for name in add:
        alone = rules[name].scores(rules[name].own(table, config.needed))
        np.testing.assert_array_equal(alone, FEATURES[name](Query(DOCS, SOURCES), IDS))


@pytest.mark.parametrize("kind", ["tree", "boosted", "sum"])
def test_a_rule_survives_its_file_bit_for_bit(kind: str, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    config = FusionConfig(kind=kind, depth=4, min_leaf=2, add=("classifier",))
    values = random.normal(size=(20, 6, len(config.needed))).astype(np.float32)
    fitted = FUSIONS[kind](config, values, random.random((20, 6)) < 0.3, np.ones((20, 6), bool))
    fitted.save(tmp_path / "fusion.json")
    again = load_fusion(tmp_path / "fusion.json")
    assert again.config == config
    np.testing.assert_array_equal(again.scores(values), fitted.scores(values))
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "fusion.json").read_bytes()
    assert (json.loads((tmp_path / "fusion.json").read_text())["tree"] is None) == (kind == "sum")


def test_an_absent_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="run the stage fusion"):
        load_fusion(tmp_path / "fusion.json")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"kind": "forest"}, "fusion 'forest'"),
        ({"kind": "treee"}, r"fusion 'treee' \(nearest: 'tree'\)"),
        ({"features": ("label_txt",)}, r"fusion feature 'label_txt' \(nearest: 'label_text'\)"),
        ({"add": ("clasifier",)}, r"fusion feature 'clasifier' \(nearest: 'classifier'\)"),
        ({"depth": 0}, "depth 0"),
        ({"min_leaf": 0}, "min_leaf 0"),
        ({"rows": 0}, "rows 0"),
        ({"candidates": -1}, "candidates -1"),
        ({"features": ()}, "a tree without features"),
        ({"kind": "sum", "add": ()}, "nothing to add"),
    ],
)
def test_a_config_that_cannot_work_is_refused_at_birth(changes: dict[str, object], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        FusionConfig(**changes)  # type: ignore[arg-type]
