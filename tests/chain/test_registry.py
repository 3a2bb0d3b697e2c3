"""The registry of stages: an order in which every stage can run, code for each, names that are also folders."""

from __future__ import annotations

import importlib

import pytest

from tests.chain.toy import NAMES, downstream
from xc_core.chain import STAGES
from xc_core.chain.registry import find_stage, versioned_stages
from xc_core.chain.runner import code
from xc_core.errors import ConfigError
from xc_core.recipes import Recipe

SHOWN = {
    ("corpus", "data", "polars", "parquet"),
    ("tokens", "data", "huggingface", "numpy"),
    ("encoder", "training", "pytorch", "huggingface"),
    ("embeddings", "training", "pytorch", "numpy"),
    ("clusters", "training", "pytorch", "numpy"),
    ("negatives", "training", "faiss", "numpy"),
    ("classifier", "training", "pytorch"),
    ("scores", "search", "faiss", "numpy"),
    ("fusion", "search", "numpy"),
    ("evaluation", "release", "numpy"),
    ("audit", "release", "numpy"),
    ("model", "release", "mlflow"),
    ("leaderboard", "release", "polars"),
}
"""Name, group and kinds of stages."""


def test_stages_come_after_what_they_read_and_have_code() -> None:
    seen: set[str] = set()
    for name, stage in STAGES.items():
        assert set(stage.deps) <= seen
        assert stage.name == name and stage.does.endswith(".")
        assert callable(code(stage, "run"))
        seen.add(name)


def test_the_classifier_alone_has_code_for_a_refresh() -> None:
    found = [name for name in STAGES if hasattr(importlib.import_module(f"xc_core.stages.{name}"), "refresh")]
    assert found == ["classifier"]


def test_what_comes_after_a_stage() -> None:
    assert downstream("fusion") == ["evaluation", "model", "leaderboard"]
    assert downstream("corpus") == [*NAMES[1:], "leaderboard"]
    assert downstream("audit") == downstream("leaderboard") == []


def test_a_stage_of_an_experiment_has_settings_in_the_recipe_and_the_others_have_none_there() -> None:
    assert [stage.name for stage in versioned_stages("experiment")] == list(Recipe.stages())
    assert [stage.name for stage in versioned_stages("dataset")] == ["corpus", "tokens"]


def test_stages_that_need_an_accelerator_and_results_that_are_not_versioned() -> None:
    assert [name for name in STAGES if STAGES[name].on_gpu] == [
        "encoder",
        "embeddings",
        "clusters",
        "negatives",
        "classifier",
    ]
    assert [name for name in STAGES if not STAGES[name].versioned] == ["leaderboard"]
    assert [name for name in STAGES if STAGES[name].needs_source] == ["corpus"]


def test_stages_that_are_there_stay_with_what_the_graph_shows_of_them() -> None:
    """Other tests read both from the registry. A new stage needs no line here."""
    found = [(stage.name, stage.group, *stage.kinds) for stage in STAGES.values()]
    assert set(found) >= SHOWN


def test_an_unknown_stage_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"stage 'clustrs' \(nearest: 'clusters'\)") as caught:
        find_stage("clustrs")
    assert caught.value.expected == f"one of {', '.join(STAGES)}"
