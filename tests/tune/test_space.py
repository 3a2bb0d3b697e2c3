"""The space file: what it may hold, and what is refused with which words."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from xc_core.chain.params_file import nested
from xc_core.errors import ConfigError, MissingError
from xc_core.params import dotted, plain, put
from xc_core.recipes import RECIPES
from xc_core.tune.space import Space, present


def one(spec: Any, name: str = "classifier.table.lr") -> Any:
    return Space.of({name: spec}).settings[name]


@pytest.mark.parametrize(
    ("spec", "distribution", "size"),
    [
        ({"log": [0.001, 0.1]}, FloatDistribution(0.001, 0.1, log=True), None),
        ({"range": [0.5, 1]}, FloatDistribution(0.5, 1.0), None),
        ({"range": [0, 1.0], "step": 0.25}, FloatDistribution(0, 1, step=0.25), 5),
        ({"range": [0.1, 0.7], "step": 0.1}, FloatDistribution(0.1, 0.7, step=0.1), 7),
        ({"range": [2, 9]}, IntDistribution(2, 9), 8),
        ({"range": [8, 64], "step": 8}, IntDistribution(8, 64, step=8), 8),
        ({"log": [1, 100]}, IntDistribution(1, 100, log=True), 100),
        ([0, 0.25, 0.5], CategoricalDistribution([0, 0.25, 0.5]), 3),
        ({"choices": ["a", "b"]}, CategoricalDistribution(["a", "b"]), 2),
        ([None, True, [1, 2], {"kind": "sum"}],
         CategoricalDistribution(["null", "true", "[1, 2]", '{"kind": "sum"}']), 4),
    ],
)  # fmt: skip
def test_what_a_line_means(spec: Any, distribution: Any, size: int | None) -> None:
    own = one(spec)
    assert (own.distribution(), own.size) == (distribution, size)
    assert Space.of({"fusion.candidates": own.plain()}).settings["fusion.candidates"] == own, "what is shown is a space"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "no settings"),
        ({}, "no settings"),
        ([1], "a list"),
        ({"epochs": [1, 2]}, "'epochs'"),
        ({"encoder..epochs": [1, 2]}, "'encoder..epochs'"),
        ({3: [1, 2]}, "3"),
        ({"encodr.epochs": [1, 2]}, "encodr.epochs (nearest: 'encoder')"),
        ({"evaluation.seed": [1, 2]}, "evaluation.seed, a setting of the stage evaluation"),
        ({"audit.k": [1, 2]}, "a setting of the stage audit"),
        ({"model.max_drop": [1, 2]}, "a setting of the stage model"),
        ({"corpus.validation_fraction": [0.1, 0.2]}, "a setting of the stage corpus"),
        ({"leaderboard.x": [0.1, 0.2]}, "a setting of the stage leaderboard"),
        (
            {"classifier.refit": [True, False]},
            "classifier.refit, which changes the documents that trials are judged by",
        ),
        ({"classifier.enough": [1, 2]}, "classifier.enough, which changes the documents"),
        ({"encoder.refit": [True, False]}, "encoder.refit, which changes the documents"),
        ({"fusion.rows": [100, 200]}, "fusion.rows, which changes the documents"),
        ({"encoder.epochs": 3}, "3"),
        ({"encoder.epochs": [3]}, "[3]"),
        ({"encoder.epochs": [3, 3]}, "[3, 3]"),
        ({"encoder.epochs": [datetime.date(2026, 11, 28), 3]}, "2026-11-28, a date"),
        ({"encoder.epochs": [3, [datetime.date(2026, 11, 28)]]}, "[datetime.date(2026, 11, 28)]"),
        ({"encoder.loss": ["a", "b"], "encoder.loss.kind": ["a", "b"]}, "encoder.loss and encoder.loss.kind"),
        ({"encoder.loss.kind": ["a", "b"], "encoder.loss": ["c", "d"]}, "encoder.loss and encoder.loss.kind"),
        ({"encoder.epochs": {"choices": "ab"}}, "'ab'"),
        ({"encoder.epochs": {"lgo": [1, 2]}}, "'lgo' (nearest: 'log')"),
        ({"encoder.epochs": {"log": [1, 2], "range": [1, 2]}}, "log, range"),
        ({"encoder.epochs": {"step": 1}}, "step"),
        ({"encoder.epochs": {"choices": [1, 2], "step": 1}}, "choices, step"),
        ({"encoder.epochs": {}}, "nothing"),
        ({"encoder.epochs": {"range": [2, 1]}}, "{'range': [2, 1]}"),
        ({"encoder.epochs": {"range": [1, 1]}}, "[1, 1]"),
        ({"encoder.epochs": {"range": [1]}}, "[1]"),
        ({"encoder.epochs": {"range": [1, "b"]}}, "'b'"),
        ({"encoder.epochs": {"range": [1, float("nan")]}}, "nan"),
        ({"encoder.epochs": {"range": [True, 3]}}, "True"),
        ({"encoder.epochs": {"log": [0, 1]}}, "'log': [0, 1]"),
        ({"encoder.epochs": {"log": [1, 2], "step": 1}}, "'step': 1"),
        ({"encoder.epochs": {"range": [1, 2], "step": 0}}, "'step': 0"),
        ({"encoder.epochs": {"range": [1, 3], "step": 5}}, "'step': 5"),
        ({"encoder.epochs": {"range": [0.1, 0.3], "step": 0.5}}, "'step': 0.5"),
    ],
)
def test_what_is_no_space_is_refused(content: Any, found: str) -> None:
    with pytest.raises(ConfigError) as error:
        Space.of(content, "space.yaml")
    assert found in error.value.found
    assert error.value.where.startswith("space.yaml")


def test_the_message_about_a_date_says_what_is_wrong_with_it() -> None:
    """It asked for a list of at least two values, which there were."""
    with pytest.raises(ConfigError) as error:
        one([datetime.date(2026, 1, 1), "b"])
    assert error.value.do == "write it in quotes if it is a text; no setting is a date"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("audit.k", "trials end before that stage"), ("corpus.validation_fraction", "a study has one dataset")],
)
def test_a_stage_that_no_trial_runs_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        Space.of({name: [1, 2]})
    assert error.value.do == f"drop it: {reason}"


def test_a_file_that_is_missing_or_no_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no .*space\.yaml"):
        Space.read(tmp_path / "space.yaml")
    for text in ("a: [1", "a: 1\na: 2"):
        (tmp_path / "space.yaml").write_text(text)
        with pytest.raises(ConfigError, match="invalid YAML"):
            Space.read(tmp_path / "space.yaml")


def test_exponents_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("classifier.table.lr: {log: [1e-3, 1e-1]}\n")
    assert Space.read(tmp_path / "space.yaml").settings["classifier.table.lr"].plain() == {"log": [0.001, 0.1]}


def test_whole_ends_of_a_setting_with_fractions_give_fractions() -> None:
    space = Space.of({"fusion.rule.weight": {"range": [0, 1]}, "fusion.rule.depth": {"range": [1, 7]}})
    typed = space.typed(present(plain(RECIPES["ngame"]), space.settings))
    kinds = {name: type(own.distribution()) for name, own in typed.settings.items()}
    assert kinds == {"fusion.rule.weight": FloatDistribution, "fusion.rule.depth": IntDistribution}
    assert (space.size, typed.size) == (14, None)


def test_values_come_back_from_what_the_study_stores() -> None:
    values = {"fusion.rule": "sum", "fusion.candidates": [1, 2], "encoder.epochs": 1.5, "negatives.k": None}
    choices = {"fusion.rule": ["sum", "tree"], "fusion.candidates": [[1, 2], 3], "negatives.k": [None, 5]}
    space = Space.of({**choices, "encoder.epochs": {"range": [1.0, 2.0]}})
    labels = space.labels(values)
    assert labels is not None
    assert space.values(labels) == values
    assert space.labels({**values, "encoder.epochs": 2.5}) is None
    assert space.labels({**values, "fusion.rule": "boosted"}) is None
    assert space.labels({"fusion.rule": "sum"}) is None


def test_a_drawn_fraction_has_four_digits_and_stays_in_its_range() -> None:
    own = one({"log": [0.0123412, 0.1]})
    assert own.value(0.0765432109) == 0.07654
    assert own.value(0.0123412) == 0.0123412, "0.01234 is below the range"


def test_a_sum_of_steps_is_the_number_that_a_user_writes() -> None:
    """Else a trial would have the settings of another one and be counted beside it, in place of one never tried."""
    own, third = one({"range": [0.1, 0.5], "step": 0.1}), 1 / 3
    assert [own.value(0.1 + step * 0.1) for step in range(5)] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert one({"range": [third, 1.0], "step": third}).value(third) == third


def test_present_values_are_those_of_the_recipe() -> None:
    names = dict.fromkeys(["fusion.rule", "fusion.rule.depth", "encoder.loss", "encoder.loss.scale"])
    found = present(plain(RECIPES["ngame"]), names)
    assert found == {
        "fusion.rule": "tree",
        "fusion.rule.depth": RECIPES["ngame"].fusion.rule.depth,  # type: ignore[attr-defined]
        "encoder.loss": "triplet",
    }


def test_dotted_names_and_nested_changes_are_each_others_reverse() -> None:
    values = {
        "encoder.loss.kind": "supcon",
        "encoder.loss.temperature": 0.1,
        "scores.lexical": {},
        "fusion.candidates": None,
    }
    assert dotted(nested(values)) == values
    changes: dict[str, Any] = {}
    put(changes, "encoder.loss.temperature", 0.1)
    put(changes, "encoder.loss", "supcon")
    assert changes == {"encoder": {"loss": {"kind": "supcon", "temperature": 0.1}}}
    with pytest.raises(ConfigError, match="another value of epochs"):
        nested({"encoder.epochs": 3, "encoder.epochs.x": 1})
