"""The checks of an experiment pass on a good artefact and fail for each thing that can be wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES
from tests.pipelines.judging import Judge, rewritten
from tests.pipelines.judging import instance as instance
from tests.pipelines.judging import judge as judge
from tests.pipelines.judging import own as own
from xc_core.artifacts import read_manifest
from xc_core.stages import Workspace

pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]


def configure(workspace: Workspace, stage: str, **values: Any) -> None:
    """Change settings of one stage of the recipe in params.yaml."""
    changed = {**TOY_CHANGES, stage: {**TOY_CHANGES.get(stage, {}), **values}}
    workspace.declare_experiment("toy", "ngame", "ngame", changed)


@pytest.mark.parametrize("name", ["cluster_balance", "finite_weights", "index_recall", "metric_floor"])
def test_a_good_artefact_passes(trained: Workspace, judge: Judge, name: str) -> None:
    found = judge(trained, name)
    assert (found.passed, found.went_on) == (True, True)


# cluster_balance


def partition(workspace: Workspace, order: Array, sizes: Array) -> None:
    """Put another partition of the train documents into the clusters of toy/ngame."""
    with rewritten(workspace.folder("clusters", "toy", "ngame")) as build:
        np.save(build.path / "order.npy", order.astype(np.int64))
        np.save(build.path / "sizes.npy", sizes.astype(np.int64))


def train_rows(workspace: Workspace) -> int:
    return int(read_manifest(workspace.folder("corpus", "toy")).facts["rows"]["train"])


@pytest.mark.parametrize(
    ("sizes", "spread"),
    [([19] * 11, 0), ([4] * 51 + [5], 1), ([5] * 38 + [4] * 4 + [3], 2), ([4] * 47 + [7] * 3, 3)],
)
def test_sizes_of_clusters_differ_by_one_at_most(own: Workspace, judge: Judge, sizes: list[int], spread: int) -> None:
    rows = train_rows(own)
    assert rows == sum(sizes), "the sizes are those of the toy world's 209 train documents"
    partition(own, np.random.default_rng(0).permutation(rows), np.array(sizes))
    found = judge(own, "cluster_balance")
    assert found.passed is found.went_on is (spread <= 1)
    assert found.facts == {"covers_train": True, "spread": spread}


@pytest.mark.parametrize(
    "order",
    [
        lambda rows: np.r_[0, np.arange(rows - 1)],
        lambda rows: np.arange(1, rows + 1),
        lambda rows: np.arange(rows - 1),
        lambda rows: np.arange(rows + 1),
    ],
    ids=["one twice", "one outside", "one missing", "one too many"],
)
def test_a_partition_that_does_not_cover_the_train_documents_fails(
    own: Workspace, judge: Judge, order: Callable[[int], Array]
) -> None:
    sizes = np.load(own.folder("clusters", "toy", "ngame") / "sizes.npy")
    partition(own, order(train_rows(own)), sizes)
    found = judge(own, "cluster_balance")
    assert (found.passed, found.went_on, found.facts["covers_train"]) == (False, False, False)


@pytest.mark.parametrize("more", [-1, 1])
def test_sizes_that_do_not_sum_to_the_train_documents_fail(own: Workspace, judge: Judge, more: int) -> None:
    rows = train_rows(own)
    partition(own, np.arange(rows), np.array([4] * 51 + [5 + more]))
    found = judge(own, "cluster_balance")
    assert (found.passed, found.facts["covers_train"]) == (False, False)


# finite_weights


def table(workspace: Workspace, edit: Callable[[Array], Array]) -> None:
    """Edit the classifier's rows."""
    with rewritten(workspace.folder("classifier", "toy", "ngame")) as build:
        path = build.path / "rows.npy"
        np.save(path, edit(np.load(path)))


def scaled(factor: float) -> Callable[[Array], Array]:
    """Return a function that changes the length of one row."""

    def scale(rows: Array) -> Array:
        rows[3] *= factor
        return rows

    return scale


def holding(value: float) -> Callable[[Array], Array]:
    """Return a function that puts a number into one row."""

    def put(rows: Array) -> Array:
        rows[3, 1] = value
        return rows

    return put


@pytest.mark.parametrize(
    ("edit", "unit", "passes"),
    [
        (holding(np.nan), True, False),
        (holding(np.nan), False, False),
        (holding(-np.inf), False, False),
        (lambda rows: rows[:-1], True, False),
        (lambda rows: np.concatenate([rows, rows[:1]]), False, False),
        (lambda rows: rows[::-1].copy(), True, True),
    ],
    ids=["NaN", "NaN, not unit", "-inf, not unit", "one too few", "one too many, not unit", "in another order"],
)
def test_rows_are_finite_and_one_per_label(
    own: Workspace, judge: Judge, edit: Callable[[Array], Array], unit: bool, passes: bool
) -> None:
    table(own, edit)
    configure(own, "classifier", table={"lr": 0.02, "unit": unit})
    found = judge(own, "finite_weights")
    assert (found.passed, found.went_on) == (passes, passes)


@pytest.mark.parametrize(
    ("factor", "unit", "passes"),
    [
        (1.0005, True, True),
        (1.002, True, False),
        (0.998, True, False),
        (0.0, True, False),
        (2.0, False, True),
    ],
)
def test_rows_are_unit_vectors_if_the_recipe_makes_such(
    own: Workspace, judge: Judge, factor: float, unit: bool, passes: bool
) -> None:
    table(own, scaled(factor))
    configure(own, "classifier", table={"lr": 0.02, "unit": unit})
    found = judge(own, "finite_weights")
    assert (found.passed, found.went_on) == (passes, passes)
    assert found.facts == {"finite": True, "unit": abs(factor - 1) < 1e-3, "rows": 10}


# floors


@pytest.mark.parametrize(("recall", "passes"), [(0.95, True), (1.0, True), (0.9499999, False)])
def test_the_index_finds_at_least_the_recipes_share(own: Workspace, judge: Judge, recall: float, passes: bool) -> None:
    configure(own, "model", min_index_recall=0.95)
    with rewritten(own.folder("index", "toy", "ngame")) as build:
        build.facts["recall_by_row"] = recall
    found = judge(own, "index_recall")
    assert (found.passed, found.went_on) == (passes, passes)
    assert found.facts == {"recall": recall, "floor": 0.95}


@pytest.mark.parametrize(("precision", "passes"), [(60.0, True), (100.0, True), (59.99, False)])
def test_the_first_label_is_right_at_least_as_often_as_the_recipe_asks(
    own: Workspace, judge: Judge, precision: float, passes: bool
) -> None:
    configure(own, "model", min_P_at_1=60.0)
    with rewritten(own.folder("evaluation", "toy", "ngame")) as build:
        metrics = json.loads((build.path / "metrics.json").read_text())
        build.json("metrics.json", {**metrics, "P_at_1": precision})
    found = judge(own, "metric_floor")
    assert (found.passed, found.went_on) == (passes, passes)
    assert found.facts == {"P_at_1": precision, "floor": 60.0}
