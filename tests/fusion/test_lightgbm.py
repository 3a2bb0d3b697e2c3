"""The rule of LightGBM's trees: the project's arrays predict what LightGBM predicts, and need no LightGBM."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

from xc_core.errors import ConfigError, MissingError
from xc_core.fusion import FittedFusion, Inputs, LightGBM, Objective, Pairs
from xc_core.fusion.boosting import BoostedTrees
from xc_core.fusion.lightgbm import _levels, converted
from xc_core.fusion.linear import fit_weights
from xc_core.params import in_use
from xc_core.shapes import F32

NAMES = ("label_text", "classifier", "frequency")
INPUTS = Inputs(NAMES, NAMES[:2])


def world(documents: int = 300, seed: int = 0) -> Pairs:
    """Return documents whose positives are the candidates that are best by two scores; the third is a count."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(documents, 15, 3)).astype(np.float32)
    values[..., 2] = random.integers(0, 9, (documents, 15))
    gap = values[..., 0] - values[..., 0].max(1, keepdims=True) + 0.5 * np.sin(2 * values[..., 1])
    positive = gap + 0.3 * random.normal(size=gap.shape) > -0.4
    return Pairs(values, positive.astype(np.float32), random.random((documents, 15)) < 0.9)


def fitted_with_booster(rule: LightGBM, pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> tuple[FittedFusion, Any]:
    """Return the fitted rule and the booster that it was converted from."""
    boosters: list[Any] = []
    train = lightgbm.train

    def spy(*args: Any) -> Any:
        boosters.append(train(*args))
        return boosters[-1]

    monkeypatch.setattr(lightgbm, "train", spy)
    return rule.fit(INPUTS, pairs), boosters[-1]


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("derived", [True, False])
def test_predictions_are_those_of_lightgbm(
    objective: Objective, derived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = world()
    rule = LightGBM(objective=objective, derived=derived, rounds=30, leaves=15)
    fitted, booster = fitted_with_booster(rule, pairs, monkeypatch)
    new = world(50, seed=1)
    features = fitted.features_of(new.values_NKF, new.filled_NK)
    expected = booster.predict(features, raw_score=True)
    assert fitted.tree is not None
    np.testing.assert_allclose(fitted.tree.predict(features), expected, atol=1e-6)
    np.testing.assert_allclose(fitted.scores(new.values_NKF, new.filled_NK)[new.filled_NK], expected, atol=1e-6)
    wrong = fitted.tree.predict(features[:, ::-1])
    assert np.abs(wrong - expected).max() > 0.01


def test_a_value_at_a_threshold_goes_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = world()
    fitted, booster = fitted_with_booster(LightGBM(derived=False, leaves=31), pairs, monkeypatch)
    assert isinstance(fitted.tree, BoostedTrees)
    rows = []
    for tree in fitted.tree.trees:
        for feature, threshold in zip(tree.feature, tree.threshold, strict=True):
            if feature >= 0:
                for value in (np.nextafter(np.float32(threshold), s * np.inf, dtype=np.float32) for s in (-1, 1)):
                    rows.append(np.where(np.arange(3) == feature, value, 0.5))
    features: F32 = np.array(rows, np.float32)
    np.testing.assert_allclose(fitted.tree.predict(features), booster.predict(features, raw_score=True), atol=1e-6)


def test_two_fits_are_the_same_bytes_and_another_target_is_not(tmp_path: Path) -> None:
    pairs, rule = world(), LightGBM()
    files = []
    for number, own in enumerate((pairs, pairs, replace(pairs, target_NK=pairs.target_NK[::-1]))):
        folder = tmp_path / str(number)
        folder.mkdir()
        rule.fit(INPUTS, own).write(folder)
        files.append((folder / "fusion.json").read_bytes())
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize("derived", [True, False])
def test_a_saved_fusion_gives_the_same_scores_without_lightgbm(derived: bool, tmp_path: Path) -> None:
    pairs = world()
    fitted = LightGBM(derived=derived).fit(INPUTS, pairs)
    fitted.write(tmp_path)
    np.save(tmp_path / "values.npy", pairs.values_NKF)
    np.save(tmp_path / "filled.npy", pairs.filled_NK)
    code = (
        "import sys, numpy as np, pathlib\n"
        "sys.modules['lightgbm'] = None\n"
        "from xc_core.fusion import FittedFusion\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "fusion = FittedFusion.read(folder)\n"
        "values, filled = (np.load(folder / name) for name in ('values.npy', 'filled.npy'))\n"
        "np.save(folder / 'scores.npy', fusion.scores(values, filled))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), fitted.scores(pairs.values_NKF, pairs.filled_NK))


@pytest.mark.parametrize("objective", list(Objective))
def test_it_ranks_better_than_each_score(objective: Objective) -> None:
    pairs, new = world(), world(200, seed=1)
    fitted = LightGBM(objective=objective).fit(INPUTS, pairs)

    def first(scores: F32) -> float:
        best = np.where(new.filled_NK, scores, -np.inf).argmax(1)
        return float(new.target_NK[np.arange(len(best)), best].mean())

    alone = max(first(new.values_NKF[..., score]) for score in range(3))
    assert first(fitted.scores(new.values_NKF, new.filled_NK)) > alone + 0.05


@pytest.mark.parametrize("objective", list(Objective))
def test_with_a_tail_the_rarer_of_two_equal_candidates_comes_first(objective: Objective) -> None:
    """One score tells the two kinds of label apart; both are positive equally often."""
    random = np.random.default_rng(0)
    values = np.tile(np.array([0.0, 1.0], np.float32), (600, 1))[..., None]
    positive = random.random((600, 2)) < 0.3
    weight = np.tile(np.array([8.0, 1.0], np.float32), (600, 1))
    ahead = []
    for tail in (0.0, 0.5):
        rule = LightGBM(objective=objective, tail=tail, derived=False, leaves=2)
        pairs = Pairs(values, rule.target(positive, weight), np.ones((600, 2), bool))
        rare, common = rule.fit(Inputs(("label_text",), ("label_text",)), pairs).scores(values)[0].tolist()
        ahead.append(rare - common)
    assert abs(ahead[0]) < 0.1
    assert ahead[1] > 0.25


def test_with_linear_the_trees_are_added_to_the_linear_model_that_they_start_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LightGBM's own prediction leaves the start out."""
    pairs = world()
    fitted, booster = fitted_with_booster(LightGBM(linear=True, rounds=20), pairs, monkeypatch)
    alone, _ = fitted_with_booster(LightGBM(rounds=20), pairs, monkeypatch)
    assert (fitted.add, fitted.baselines, list(fitted.parts())) == (NAMES, NAMES[:2], [*NAMES[:2], "sum"])
    weights = fit_weights(pairs.values_NKF, pairs.target_NK, pairs.filled_NK)
    assert fitted.weights == tuple(weights.tolist())
    new = world(50, seed=1)
    trees = booster.predict(new.values_NKF[new.filled_NK], raw_score=True)
    expected = new.values_NKF[new.filled_NK] @ weights + trees
    np.testing.assert_allclose(fitted.scores(new.values_NKF, new.filled_NK)[new.filled_NK], expected, atol=1e-5)
    assert abs(np.corrcoef(trees, expected - trees)[0, 1]) < 0.5, "they correct the start, they do not repeat it"
    assert alone.tree is not None
    assert np.abs(trees - alone.tree.predict(new.values_NKF[new.filled_NK])).max() > 0.5, "they start from it"


def of_probabilities(documents: int = 300, seed: int = 0) -> Pairs:
    """Return the world with its first two scores as probabilities, of which a quarter are 0."""
    pairs = world(documents, seed)
    values = pairs.values_NKF.copy()
    values[..., :2] = np.where(values[..., :2] < -0.7, 0, np.exp(values[..., :2] - 4))
    return replace(pairs, values_NKF=values)


def written(fusion: FittedFusion, folder: Path) -> Any:
    """Return the content of the file of a fusion."""
    fusion.write(folder)
    return json.loads((folder / "fusion.json").read_text("utf-8"))


def test_the_linear_model_reads_the_logarithm_of_a_probability_and_the_trees_its_value(tmp_path: Path) -> None:
    """The twin takes the logarithms before the fit; the second score is not declared to be a probability."""
    inputs, pairs, new = replace(INPUTS, probabilities=NAMES[:1]), of_probabilities(), of_probabilities(50, seed=1)
    plain, rule = LightGBM(linear=True, rounds=20), LightGBM(linear=True, rounds=20, log_probabilities=True)
    fitted = rule.fit(inputs, pairs)

    def twin_of(pairs: Pairs) -> Pairs:
        values = pairs.values_NKF.copy()
        values[..., 0] = [[np.log(max(value, 1e-4)) for value in row] for row in values[..., 0]]
        return replace(pairs, values_NKF=values)

    twin = plain.fit(inputs, twin_of(pairs))
    assert (fitted.logarithms, twin.logarithms, fitted.add) == (NAMES[:1], (), NAMES)
    np.testing.assert_allclose(fitted.weights, twin.weights, rtol=1e-5)
    expected = twin.scores(twin_of(new).values_NKF, new.filled_NK)
    np.testing.assert_allclose(fitted.scores(new.values_NKF, new.filled_NK), expected, atol=1e-4)
    np.testing.assert_array_equal(fitted.features_of(new.values_NKF, new.filled_NK), new.values_NKF[new.filled_NK])
    expected_parts = {name: replace(part, rule=rule) for name, part in plain.fit(inputs, pairs).parts().items()}
    assert fitted.parts() == expected_parts, "each score alone and their plain sum read values"
    served = fitted.part("sum")
    np.testing.assert_allclose(served.scores(new.values_NKF), new.values_NKF[..., :2].sum(-1), rtol=1e-6)
    assert "logarithms" not in written(served, tmp_path), "a part in place of the fusion"
    fitted.write(tmp_path)
    read = FittedFusion.read(tmp_path)
    assert read.logarithms == NAMES[:1]
    np.testing.assert_array_equal(read.scores(new.values_NKF), fitted.scores(new.values_NKF))


def test_without_the_setting_or_without_probabilities_the_linear_model_reads_values(tmp_path: Path) -> None:
    pairs, rule = of_probabilities(), LightGBM(linear=True, rounds=2)
    plain = rule.fit(replace(INPUTS, probabilities=NAMES[:2]), pairs)
    for other in (rule.fit(INPUTS, pairs), replace(rule, log_probabilities=True).fit(INPUTS, pairs)):
        assert (other.logarithms, other.weights) == ((), plain.weights)
    assert "logarithms" not in written(plain, tmp_path), "as files from before logarithms"
    alone = LightGBM(rounds=2).fit(replace(INPUTS, probabilities=NAMES), pairs)
    assert alone.scores(pairs.values_NKF).tolist() == (
        LightGBM(rounds=2, log_probabilities=True)
        .fit(replace(INPUTS, probabilities=NAMES), pairs)
        .scores(pairs.values_NKF)
        .tolist()
    ), "without a linear model nothing is summed"


def test_a_probability_that_is_not_finite_is_refused_before_its_logarithm_is_taken() -> None:
    pairs, rule = of_probabilities(), LightGBM(linear=True, log_probabilities=True)
    pairs.values_NKF[0, :, 0] = -np.inf
    with pytest.raises(ConfigError, match="values of the score 'label_text' that are not finite"):
        rule.fit(replace(INPUTS, probabilities=NAMES[:1]), pairs)


def test_with_few_documents_a_linear_start_ranks_better_than_trees_alone() -> None:
    """Positives are the candidates with the highest sum of two scores; the trees have to build it from steps."""
    few, new = world(12), world(400, seed=1)

    def right(rule: LightGBM) -> float:
        scores = rule.fit(INPUTS, few).scores(new.values_NKF, new.filled_NK)
        best = np.where(new.filled_NK, scores, -np.inf).argmax(1)
        return float(new.target_NK[np.arange(len(best)), best].mean())

    assert right(LightGBM(linear=True)) > right(LightGBM()) + 0.03


def test_a_linear_start_reads_only_candidates_that_a_score_proposed() -> None:
    """The others are holes, and positives that were added for the rules of the papers."""
    pairs, rule = world(), LightGBM(linear=True, rounds=3)
    proposed = np.random.default_rng(2).random(pairs.filled_NK.shape) < 0.7
    found = pairs.filled_NK & proposed
    values = np.where(found[..., None], pairs.values_NKF, np.float32(np.nan))
    target = np.where(found, pairs.target_NK, np.float32(1.0))
    fitted = rule.fit(INPUTS, Pairs(values, target, pairs.filled_NK, proposed))
    expected = rule.fit(INPUTS, replace(pairs, filled_NK=found))
    assert fitted.weights == expected.weights
    np.testing.assert_array_equal(fitted.scores(pairs.values_NKF), expected.scores(pairs.values_NKF))


def test_a_penalty_makes_leaves_smaller() -> None:
    trees = [LightGBM(penalty=penalty, rounds=1).fit(INPUTS, world()).tree for penalty in (0.0, 100.0)]
    free, held = (np.abs(own.predict(np.zeros((1, 3), np.float32))).max() for own in trees if own is not None)
    assert 0 < held < 0.9 * free


def test_a_fusion_without_a_linear_start_and_penalty_has_the_fingerprint_of_before_they_existed() -> None:
    settings = in_use(LightGBM())
    assert not {"linear", "penalty", "log_probabilities"} & settings.keys()
    later = {"linear": True, "penalty": 10, "log_probabilities": True}
    assert in_use(LightGBM(linear=True, penalty=10, log_probabilities=True)) == settings | later


def test_a_linear_model_refuses_what_it_cannot_rank() -> None:
    for other in ({"weight": 0.5}, {"objective": Objective.BINARY}):
        with pytest.raises(ConfigError, match="linear=true with weight=") as error:
            LightGBM(linear=True, **other)  # type: ignore[arg-type]
        assert "linear=false" in str(error.value)
    pairs = world()
    pairs.values_NKF[0, :, 1] = -np.inf
    with pytest.raises(ConfigError, match="values of the score 'classifier' that are not finite") as error:
        LightGBM(linear=True).fit(INPUTS, pairs)
    assert "fusion.rule.features" in str(error.value)
    assert LightGBM(linear=True, features=("label_text",)).fit(INPUTS, pairs).add == ("label_text",)


def test_levels_keep_the_order_and_the_total_of_the_targets() -> None:
    targets = np.concatenate([np.zeros(50), np.random.default_rng(0).gamma(2.0, size=400)])
    level, gains = _levels(targets)
    assert len(gains) == 31
    assert level.max() == 30
    assert (level[targets == 0] == 0).all()
    assert (np.diff(level[targets.argsort()]) >= 0).all()
    assert np.take(gains, level).sum() == pytest.approx(targets.sum())
    few, kept = _levels(np.array([0.0, 0.5, 2.0, 0.5]))
    assert (few.tolist(), kept) == ([0, 1, 2, 1], [0.0, 0.5, 2.0])
    assert _levels(np.zeros(3))[1] == [0.0]


def test_one_leaf_is_converted() -> None:
    data = lightgbm.Dataset(np.zeros((50, 1)), np.arange(50.0))
    booster = lightgbm.train({"objective": "regression", "verbose": -1, "num_threads": 1}, data, 1)
    assert converted(booster).predict(np.zeros((2, 1), np.float32)) == pytest.approx(booster.predict(np.zeros((2, 1))))


def test_without_lightgbm_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    for attempt in (LightGBM().require, lambda: LightGBM().fit(INPUTS, world())):
        with pytest.raises(MissingError, match="extra lightgbm"):
            attempt()


def test_no_found_candidates_are_refused() -> None:
    pairs = world(3)
    with pytest.raises(ValueError, match="no found candidates"):
        LightGBM().fit(INPUTS, replace(pairs, proposed_NK=np.zeros_like(pairs.filled_NK)))


def test_lightgbm_is_given_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores parameters that it does not know, so the model's own text says what it used."""
    rule = LightGBM(rounds=3, leaves=5, shrinkage=0.25, truncation=4, min_leaf=7, seed=9)
    _, booster = fitted_with_booster(rule, world(), monkeypatch)
    used = dict(line[1:-1].split(": ", 1) for line in booster.model_to_string().splitlines() if line.startswith("["))
    assert used["objective"] == "lambdarank"
    assert booster.num_trees() == 3
    names = ("num_leaves", "learning_rate", "lambdarank_truncation_level", "min_data_in_leaf", "seed")
    assert [float(used[name]) for name in names] == [5, 0.25, 4, 7, 9]


def test_more_leaves_than_a_word_has_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match="leaves 65"):
        LightGBM(leaves=65)


def test_more_candidates_than_lightgbm_can_rank_are_refused() -> None:
    values = np.zeros((1, 10_001, 3), np.float32)
    pairs = Pairs(values, values[..., 0], np.ones((1, 10_001), bool))
    with pytest.raises(ConfigError, match="10,001 candidates of a document"):
        LightGBM().fit(INPUTS, pairs)
    assert LightGBM(objective=Objective.BINARY, rounds=1).fit(INPUTS, pairs).tree is not None
