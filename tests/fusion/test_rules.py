"""The rules of fusion against values computed by hand; a fitted rule survives its file bit for bit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xc_core import artifacts
from xc_core.errors import ConfigError, CorruptError, MissingError
from xc_core.fusion import (
    FUSIONS,
    Boosted,
    FittedFusion,
    Fusion,
    Inputs,
    Pairs,
    RegressionTree,
    Sum,
    Tree,
    summed,
)
from xc_core.metrics.evaluation import FUSION
from xc_core.params import changed, plain
from xc_core.recipes.settings import FusionSettings
from xc_core.shapes import PAD_ID

NAMES = ("label_text", "classifier", "frequency", "noise")
INPUTS = Inputs(NAMES, ("label_text", "classifier"))
IDS = np.array([[0, 1, 2], [2, 0, PAD_ID]], np.int32)
BY_HAND = {
    "label_text": [[1.0, 0.0, 0.6], [1.0, 0.6, 9.0]],
    "classifier": [[0.0, 0.8, 1.0], [0.6, 0.8, 9.0]],
    "frequency": [[5.0, 1.0, 0.0], [0.0, 5.0, 9.0]],
    "noise": [[math.log(0.5), math.log(0.4), math.log(0.1)], [math.log(0.1), math.log(0.5), 9.0]],
}
VALUES = np.stack([np.array(BY_HAND[name], np.float32) for name in NAMES], axis=2)
STUMP = RegressionTree.fit(np.array([[0.0], [4.0]], np.float32), np.array([0.25, 0.75]), depth=1, min_leaf=1)
"""0.25 up to a frequency of 2, 0.75 above it."""


def filled(values_NK: np.ndarray) -> list[list[float]]:
    """Return each row's values of the candidates that are labels."""
    return [row[ids != PAD_ID].tolist() for row, ids in zip(values_NK, IDS, strict=True)]


def alone(rule: Fusion) -> FittedFusion:
    return summed(rule, INPUTS)


def with_stump(add: tuple[str, ...], weight: float = 1.0) -> FittedFusion:
    return FittedFusion(Tree(weight=weight), NAMES, add, (weight,) * len(add), ("frequency",), STUMP)


def random_pairs(scores: int) -> Pairs:
    random = np.random.default_rng(3)
    values = random.normal(size=(20, 6, scores)).astype(np.float32)
    return Pairs(values, (random.random((20, 6)) < 0.3).astype(np.float32), np.ones((20, 6), bool))


def test_the_sum_adds_the_named_scores_and_nothing_else() -> None:
    fitted = alone(Sum(add=("label_text", "classifier")))
    assert fitted.add == ("label_text", "classifier")
    for row, expected in zip(filled(fitted.scores(VALUES)), [[1, 0.8, 1.6], [1.6, 1.4]], strict=True):
        assert row == pytest.approx(expected, abs=1e-6)


def test_a_sum_without_names_adds_the_scores_that_rank_labels_by_themselves() -> None:
    np.testing.assert_array_equal(alone(Sum()).scores(VALUES), alone(Sum(add=INPUTS.summed)).scores(VALUES))


def test_one_score_alone_ranks_by_it() -> None:
    ranked = alone(Sum(add=("classifier",))).rank(IDS, VALUES)
    assert ranked.ids_NK.tolist() == [[2, 1, 0], [0, 2, PAD_ID]]
    assert ranked.scores_NK[0] == pytest.approx([1.0, 0.8, 0.0], abs=1e-6)
    assert ranked.scores_NK[1, 2] == -np.inf


def test_the_tree_adds_its_leaf_to_the_added_scores() -> None:
    """Source of the rule: NGAME, appendix C, tree + both scores."""
    found = filled(with_stump(("label_text", "classifier")).scores(VALUES))
    for row, expected in zip(found, [[1.75, 1.05, 1.85], [1.85, 2.15]], strict=True):
        assert row == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("fitted", [with_stump(()), with_stump(("label_text", "classifier"), weight=0.0)])
def test_the_tree_may_stand_alone(fitted: FittedFusion) -> None:
    assert filled(fitted.scores(VALUES)) == [[0.75, 0.25, 0.25], [0.25, 0.75]]


def test_the_tree_reads_its_own_scores_whatever_else_is_added() -> None:
    """A tree on the frequency reads the frequency, whether it is its first or its second score."""
    plain_tree = with_stump(("label_text",))
    tree = RegressionTree(np.array([1, -1, -1]), STUMP.threshold, STUMP.left, STUMP.right, STUMP.value)
    wider = FittedFusion(Tree(), NAMES, ("label_text",), (), ("classifier", "frequency"), tree)
    np.testing.assert_array_equal(wider.scores(VALUES), plain_tree.scores(VALUES))


@pytest.mark.parametrize("rule", [Tree, Boosted])
def test_a_fit_reads_the_named_scores_in_their_order(rule: type[Tree | Boosted]) -> None:
    pairs = random_pairs(4)
    named = rule(features=("noise", "classifier"), min_leaf=2).fit(INPUTS, pairs)
    swapped = Pairs(pairs.values_NKF[..., [3, 1]], pairs.target_NK, pairs.filled_NK)
    both = rule(min_leaf=2).fit(Inputs(("noise", "classifier"), ()), swapped)
    assert named.features == both.features == ("noise", "classifier")
    assert named.tree is not None
    assert both.tree is not None
    assert named.tree.to_dict() == both.tree.to_dict()


def test_a_fit_ignores_holes() -> None:
    """The values and targets of the holes here would change the tree."""
    values = np.array([[[0.0], [4.0], [100.0]], [[0.0], [4.0], [-100.0]]], np.float32)
    target = np.array([[0, 1, 0], [0, 1, 1]], np.float32)
    holes = np.array([[True, True, False], [True, True, False]])
    rule, inputs = Tree(features=("frequency",), depth=1, min_leaf=1), Inputs(("frequency",), ())
    tree = rule.fit(inputs, Pairs(values, target, holes)).tree
    assert isinstance(tree, RegressionTree)
    assert (tree.threshold[0], tree.value[tree.left[0]], tree.value[tree.right[0]]) == (2.0, 0.0, 1.0)
    spoilt = rule.fit(inputs, Pairs(values, target, np.ones_like(holes))).tree
    assert isinstance(spoilt, RegressionTree)
    assert spoilt.threshold[0] != 2.0


def test_a_rule_without_parameters_is_not_fitted() -> None:
    nothing = Pairs(np.zeros((0, 0, 4), np.float32), np.zeros((0, 0), np.float32), np.zeros((0, 0), bool))
    assert Sum().fit(INPUTS, nothing) == summed(Sum(), INPUTS)
    assert {name: FUSIONS[name].learns for name in ("sum", "tree", "boosted")} == {
        "sum": False,
        "tree": True,
        "boosted": True,
    }


def test_equal_scores_rank_by_id_and_holes_come_last() -> None:
    ids = np.array([[2, PAD_ID, 1, 0]], np.int32)
    ranked = summed(Sum(), Inputs(("label_text",), ("label_text",))).rank(ids, np.full((1, 4, 1), 0.5, np.float32))
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
    rules = with_stump(add).parts()
    assert set(rules) == expected
    for name in add:
        np.testing.assert_array_equal(rules[name].scores(VALUES), VALUES[..., NAMES.index(name)])


def test_a_score_that_is_the_same_for_every_document_is_compared_with_each_other_score(tmp_path: Path) -> None:
    three = NAMES[:3]
    own = FittedFusion(Sum(), NAMES, three, candidates=7, offsets=("frequency",))
    assert {name: part.add for name, part in own.parts().items()} == {
        **{name: (name,) for name in three},
        "label_text_and_frequency": ("label_text", "frequency"),
        "classifier_and_frequency": ("classifier", "frequency"),
        "sum": three,
    }
    assert list(replace(own, add=three[1:]).parts()) == ["classifier", "frequency", "sum"], "the pair is the sum"
    part = own.part("classifier_and_frequency")
    np.testing.assert_array_equal(part.scores(VALUES), VALUES[..., 1] + VALUES[..., 2])
    assert (part.candidates, part.parts().keys()) == (7, own.parts().keys()), "a later evaluation compares the same"
    part.write(tmp_path)
    assert FittedFusion.read(tmp_path) == part


@pytest.mark.parametrize("name", ["label_text", "classifier", "classifier_and_frequency", "sum"])
def test_a_part_that_is_used_instead_of_the_rule_knows_its_name(name: str, tmp_path: Path) -> None:
    own = replace(with_stump(NAMES[:3]), offsets=("frequency",))
    assert own.instead == ""
    own.part(name).write(tmp_path)
    assert FittedFusion.read(tmp_path).instead == name
    assert alone(Sum()).instead == "", "a sum is the rule itself"


def fitted_rule(kind: str) -> FittedFusion:
    settings = {} if kind == "sum" else {"depth": 4, "min_leaf": 2}
    rule: Fusion = changed(FUSIONS[kind](), {**settings, "add": ["classifier"]}, "rule")
    return rule.fit(INPUTS, random_pairs(4))


@pytest.mark.parametrize("kind", ["tree", "boosted", "sum"])
def test_a_rule_survives_its_file_bit_for_bit(kind: str, tmp_path: Path) -> None:
    fitted, values = fitted_rule(kind), random_pairs(4).values_NKF
    (tmp_path / "again").mkdir()
    fitted.write(tmp_path)
    again = FittedFusion.read(tmp_path)
    assert (again.rule, again.names, again.add) == (fitted.rule, NAMES, ("classifier",))
    assert (again.weights, again.features, again.candidates) == (fitted.weights, fitted.features, fitted.candidates)
    np.testing.assert_array_equal(again.scores(values), fitted.scores(values))
    again.write(tmp_path / "again")
    assert (tmp_path / "again" / "fusion.json").read_bytes() == (tmp_path / "fusion.json").read_bytes()
    assert (json.loads((tmp_path / "fusion.json").read_text())["tree"] is None) == (kind == "sum")


def test_a_file_that_no_release_wrote_is_refused_with_what_to_do(tmp_path: Path) -> None:
    fitted_rule("tree").write(tmp_path)
    content = json.loads((tmp_path / "fusion.json").read_text())
    del content["baselines"]
    (tmp_path / "fusion.json").write_text(json.dumps(content))
    with pytest.raises(CorruptError, match="no baselines") as caught:
        FittedFusion.read(tmp_path)
    assert "0.2.0" in caught.value.expected and "xc run fusion --force" in caught.value.do


@pytest.mark.parametrize(("kind", "weight"), [("tree", 0.25), ("boosted", 0.1), ("sum", 0.25)])
def test_a_file_from_before_a_weight_per_score_is_read(kind: str, weight: float, tmp_path: Path) -> None:
    """A sum had no weight, whatever its file says; 0.2.0 wrote such files."""
    scores = ("label_text", "classifier")
    fitted = replace(fitted_rule(kind), add=scores, weights=() if kind == "sum" else (weight, weight))
    fitted.write(tmp_path)
    content = json.loads((tmp_path / "fusion.json").read_text())
    del content["weights"]
    (tmp_path / "fusion.json").write_text(json.dumps({**content, "weight": weight}))
    read = FittedFusion.read(tmp_path)
    np.testing.assert_array_equal(read.scores(VALUES), fitted.scores(VALUES))
    assert read.weight_of() == dict.fromkeys(scores, 1.0 if kind == "sum" else weight)


def test_each_score_has_its_own_weight_and_one_without_weight_is_not_read(tmp_path: Path) -> None:
    values = VALUES.copy()
    values[..., 3] = np.inf
    fitted = replace(with_stump(()), add=("label_text", "classifier", "noise"), weights=(2.0, -0.5, 0.0))
    expected = 2 * VALUES[..., 0] - 0.5 * VALUES[..., 1] + with_stump(()).scores(VALUES)
    np.testing.assert_allclose(fitted.scores(values), expected, atol=1e-6)
    assert fitted.weight_of() == {"label_text": 2.0, "classifier": -0.5}
    fitted.write(tmp_path)
    np.testing.assert_array_equal(FittedFusion.read(tmp_path).scores(values), fitted.scores(values))
    np.testing.assert_allclose(fitted.parts()["label_text"].scores(VALUES), VALUES[..., 0])  # alone, a score has none
    np.testing.assert_allclose(fitted.part("sum").scores(VALUES), VALUES[..., [0, 1, 3]].sum(-1), atol=1e-6)


def test_a_score_that_is_named_twice_has_the_sum_of_its_weights() -> None:
    twice = Sum(add=("label_text", "classifier", "label_text")).fit(INPUTS, random_pairs(4))
    np.testing.assert_allclose(twice.scores(VALUES), 2 * VALUES[..., 0] + VALUES[..., 1], atol=1e-6)
    assert replace(twice, weights=(0.5, 1.0, -0.5)).weight_of() == {"classifier": 1.0}


def test_the_artefact_is_verified_when_opened(tmp_path: Path) -> None:
    fitted = fitted_rule("tree")
    with artifacts.building(tmp_path / "fusion", kind=FittedFusion.kind) as build:
        fitted.write(build.path)
    values = random_pairs(4).values_NKF
    np.testing.assert_array_equal(FittedFusion.open(tmp_path / "fusion").scores(values), fitted.scores(values))
    path = tmp_path / "fusion" / "fusion.json"
    path.write_text(path.read_text("utf-8").replace("1", "2"), "utf-8")
    with pytest.raises(CorruptError, match="changed since it was written"):
        FittedFusion.open(tmp_path / "fusion")


def test_an_absent_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="run the stage fusion"):
        FittedFusion.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"rule": "forest"}, "fusion 'forest'"),
        ({"rule": "treee"}, r"fusion 'treee' \(nearest: 'tree'\)"),
        (
            {"rule": {"features": ["label_txt"]}},
            r"'label_txt' in fusion\.rule\.features \(nearest: 'label_text'\)",
        ),
        ({"rule": {"add": ["clasifier"]}}, r"'clasifier' in fusion\.rule\.add \(nearest: 'classifier'\)"),
        (
            {"rule": {"kind": "sum", "add": ["clasifier"]}},
            r"'clasifier' in fusion\.rule\.add \(nearest: 'classifier'\)",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        changed(FusionSettings(), changes, "fusion").rule.check(INPUTS)


@pytest.mark.parametrize(
    ("rule", "setting"), [("sum", "depth"), ("sum", "features"), ("tree", "rounds"), ("tree", "shrinkage")]
)
def test_a_setting_of_another_rule_is_refused(rule: str, setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"fusion\.rule\.{setting}") as caught:
        changed(FusionSettings(), {"rule": {"kind": rule, setting: 3}}, "fusion")
    assert f"a setting of the fusion {rule!r}" in caught.value.expected


@pytest.mark.parametrize(
    ("rule", "inputs", "found"),
    [
        (Tree(), Inputs((), ()), "a fusion without scores"),
        (Boosted(), Inputs((), ()), "a fusion without scores"),
        (Sum(), Inputs(("frequency",), ()), "nothing to add"),
    ],
)
def test_a_fusion_of_nothing_is_refused(rule: Fusion, inputs: Inputs, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        rule.check(inputs)


@pytest.mark.parametrize("name", [FUSION, "sum", "", ".", "..", "a/b", "a b", "../up"])
def test_a_name_that_reports_or_folders_need_otherwise_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a score named") as caught:
        Inputs(("label_text", name), ())
    assert caught.value.do == "rename the score"
    assert Inputs(("bm25", "label-text_2"), ()).names == ("bm25", "label-text_2")


def test_a_recipe_checks_its_rule_against_its_scores() -> None:
    from xc_core.recipes import RECIPES

    wants_lexical = {"fusion": {"rule": {"add": ["classifier", "lexical"]}}}
    with pytest.raises(ConfigError, match=r"score 'lexical' in fusion\.rule\.add"):
        RECIPES["ngame"].changed(wants_lexical)
    recipe = RECIPES["ngame"].changed({**wants_lexical, "scores": {"lexical": {}}})
    assert recipe.fusion.rule.summed(recipe.inputs) == ("classifier", "lexical")
    without = RECIPES["house"].changed({"scores": {"lexical": None}})
    assert "lexical" not in without.fusion.rule.summed(without.inputs)


@pytest.mark.parametrize("rule", [Tree, Boosted])
def test_a_fusion_may_add_and_read_any_score(rule: type[Tree | Boosted]) -> None:
    inputs = Inputs(("classifier", "neighbours", "frequency"), ("classifier", "neighbours"))
    named = rule(features=("classifier", "neighbours"), add=("classifier", "neighbours"), min_leaf=2)
    fitted = named.fit(inputs, random_pairs(3))
    assert (fitted.features, fitted.add) == (("classifier", "neighbours"), ("classifier", "neighbours"))
    assert changed(FUSIONS[named.kind](), plain(named), "rule") == named


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_tree_has_the_depth_of_its_settings(depth: int) -> None:
    random = np.random.default_rng(0)
    features = random.random((500, 2), np.float32)
    grown: Any = Tree(depth=depth, min_leaf=1).grow(features, random.random(500), np.zeros(500, np.int64))
    assert (grown.feature < 0).sum() == 2**depth
