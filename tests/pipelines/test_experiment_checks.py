"""The checks of an experiment pass on a good artefact and fail for each thing that can be wrong with it."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from assets import checks
from tests.conftest import TOY_CHANGES
from tests.pipelines.judging import Judge, rewritten
from tests.pipelines.judging import instance as instance
from tests.pipelines.judging import judge as judge
from tests.pipelines.judging import own as own
from xc_core.chain import Workspace
from xc_core.classifiers import LabelTables, storage
from xc_core.cluster import Clusters
from xc_core.data.corpus import Corpus
from xc_core.data.folds import FINAL

pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]


def configure(workspace: Workspace, stage: str, **values: Any) -> None:
    """Change settings of one stage of the recipe in params.yaml."""
    changed = {**TOY_CHANGES, stage: {**TOY_CHANGES.get(stage, {}), **values}}
    workspace.params.declare_experiment("toy", "ngame", "ngame", changed)


@pytest.mark.parametrize("name", ["cluster_balance", "finite_weights", "index_recall", "metric_floor"])
def test_a_good_artefact_passes(trained: Workspace, judge: Judge, name: str) -> None:
    found = judge(trained, name)
    assert (found.passed, found.went_on) == (True, True)


# cluster_balance


def partition(workspace: Workspace, order: Array, sizes: Array, rows: Array | None = None) -> None:
    """Put other clusters of its documents, or of the corpus rows ``rows``, into the artefact of toy/ngame."""
    with rewritten(workspace.folder("clusters", "toy", "ngame")) as build:
        documents = published(workspace) if rows is None else rows
        Clusters(documents.astype(np.int64), order.astype(np.int64), sizes.astype(np.int64)).write(build)


def published(workspace: Workspace) -> Array:
    """Return the train and validation rows of the corpus."""
    return Corpus.open(workspace.folder("corpus", "toy")).published_rows()


@pytest.mark.parametrize(
    ("sizes", "spread"),
    [([20] * 12, 0), ([5] * 4 + [4] * 55, 1), ([5] * 45 + [4] * 3 + [3], 2), ([4] * 53 + [7] * 4, 3)],
)
def test_sizes_of_clusters_differ_by_one_at_most(own: Workspace, judge: Judge, sizes: list[int], spread: int) -> None:
    rows = len(published(own))
    assert rows == sum(sizes), "the sizes are those of the toy world's 240 train and validation documents"
    partition(own, np.random.default_rng(0).permutation(rows), np.array(sizes))
    found = judge(own, "cluster_balance")
    assert found.passed is found.went_on is (spread <= 1)
    assert found.facts == {"covers_documents": True, "spread": spread}


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
def test_clusters_that_do_not_cover_the_documents_fail(
    own: Workspace, judge: Judge, order: Callable[[int], Array]
) -> None:
    sizes = Clusters.open(own.folder("clusters", "toy", "ngame")).sizes
    partition(own, order(len(published(own))), sizes)
    found = judge(own, "cluster_balance")
    assert (found.passed, found.went_on, found.facts["covers_documents"]) == (False, False, False)


@pytest.mark.parametrize(
    "rows",
    [lambda rows: rows[:-1], lambda rows: np.r_[rows, rows[-1] + 1], lambda rows: np.r_[rows[:-1], rows[-1] + 1]],
    ids=["one missing", "one of test", "one of test in place of another"],
)
def test_clusters_of_other_documents_than_train_and_validation_fail(
    own: Workspace, judge: Judge, rows: Callable[[Array], Array]
) -> None:
    documents = rows(published(own))
    partition(own, np.arange(len(documents)), np.full(1, len(documents)), documents)
    found = judge(own, "cluster_balance")
    assert (found.passed, found.facts) == (False, {"covers_documents": False, "spread": 0})


@pytest.mark.parametrize("more", [-1, 1])
def test_sizes_that_do_not_sum_to_the_documents_fail(own: Workspace, judge: Judge, more: int) -> None:
    rows = len(published(own))
    partition(own, np.arange(rows), np.array([4] * 59 + [4 + more]))
    found = judge(own, "cluster_balance")
    assert (found.passed, found.facts["covers_documents"]) == (False, False)


# finite_weights


def table(workspace: Workspace, edit: Callable[[Array], Array], *, unit: bool, biased: bool = False) -> None:
    """Edit the final rows of the classifier, which are unit vectors or not, and whose last column may be a bias."""
    folder = workspace.folder("classifier", "toy", "ngame")
    with rewritten(folder) as build:
        path, content = build.path / FINAL / "rows.npy", build.path / "tables.json"
        np.save(path, edit(np.load(path)))
        build.json("tables.json", {**json.loads(content.read_text()), "unit": unit, "biased": biased})
    assert LabelTables.open(folder).unit is unit


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
    table(own, edit, unit=unit)
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
    table(own, scaled(factor), unit=unit)
    found = judge(own, "finite_weights")
    assert (found.passed, found.went_on) == (passes, passes)
    assert found.facts == {"finite": True, "unit": abs(factor - 1) < 1e-3, "rows": 10}


@pytest.mark.parametrize(("bias", "factor", "passes"), [(-3.0, 1.0, True), (-3.0, 1.002, False), (np.nan, 1.0, False)])
def test_a_bias_is_finite_and_no_part_of_the_unit_vector(
    own: Workspace, judge: Judge, bias: float, factor: float, passes: bool
) -> None:
    table(own, lambda rows: np.insert(scaled(factor)(rows), rows.shape[1], bias, axis=1), unit=True, biased=True)
    found = judge(own, "finite_weights")
    assert (found.passed, found.went_on) == (passes, passes)
    assert found.facts == {"finite": not np.isnan(bias), "unit": factor == 1, "rows": 10}


def test_a_block_of_rows_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_BLOCK", 1 << 14)
    rows = np.zeros((1 << 14, 64), np.float32)
    rows[:, 0] = 1
    tracemalloc.start()
    try:
        assert checks._finite_and_unit(rows, 64) == (True, True)
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes / 4
    finally:
        tracemalloc.stop()
    rows[-1, 0] = 2
    assert checks._finite_and_unit(rows, 64) == (True, False)
    rows[0, 1] = np.inf
    assert checks._finite_and_unit(rows, 1) == (False, False)


# floors


def recalls(workspace: Workspace, figures: dict[str, dict[str, float]]) -> None:
    """Replace the measured figures of the scores; the recipe asks for a recall of 0.95."""
    configure(workspace, "model", min_index_recall=0.95)
    with rewritten(workspace.folder("scores", "toy", "ngame")) as build:
        content = json.loads((build.path / "scores.json").read_text())
        build.json("scores.json", {**content, "figures": figures})


@pytest.mark.parametrize(("recall", "passes"), [(0.95, True), (1.0, True), (0.9499999, False)])
def test_every_index_finds_at_least_the_recipes_share(
    own: Workspace, judge: Judge, recall: float, passes: bool
) -> None:
    recalls(own, {"label_text": {"recall": 1.0}, "classifier": {"recall": recall}})
    found = judge(own, "index_recall")
    assert (found.passed, found.went_on) == (passes, passes)
    assert found.facts == {"recall": recall, "floor": 0.95}


def test_scores_without_an_index_pass(own: Workspace, judge: Judge) -> None:
    recalls(own, {"classifier": {"seconds": 0.1}})
    found = judge(own, "index_recall")
    assert (found.passed, found.facts) == (True, {"recall": 1.0, "floor": 0.95})


@pytest.mark.parametrize(("precision", "passes"), [(60.0, True), (100.0, True), (59.99, False)])
def test_precision_at_1_is_at_least_the_minimum_of_the_recipe(
    own: Workspace, judge: Judge, precision: float, passes: bool
) -> None:
    configure(own, "model", min_P_at_1=60.0)
    with rewritten(own.folder("evaluation", "toy", "ngame")) as build:
        metrics = json.loads((build.path / "metrics.json").read_text())
        build.json("metrics.json", {**metrics, "P_at_1": precision})
    found = judge(own, "metric_floor")
    assert (found.passed, found.went_on) == (passes, passes)
    assert found.facts == {"P_at_1": precision, "floor": 60.0}
