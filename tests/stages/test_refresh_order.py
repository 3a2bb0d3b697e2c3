"""Refresh after the lines of the labels file changed: a row belongs to a uid, on whatever line the uid is now."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from tests.stages.halves import HELD, open_embeddings, open_tables, rows_of, run_until
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.classifiers import foreseen_rows
from xc_core.data.folds import FINAL
from xc_core.errors import MovedError
from xc_core.infer.bundle import open_predictor

pytestmark = pytest.mark.chain

TRAININGS = (FINAL, *HELD)
TURNED = ["L7", "L2", "L9", "L0", "L5", "L1", "L8", "L3", "L6", "L4"]
"""No label is on its old line, and no two neighbours are neighbours still."""
MEADOW = {"uid": "L10", "title": "meadow", "content": "river0 river1 castle0"}


def relabelled(uids: list[str]) -> ToyWorld:
    """Return the toy world with these labels on these lines; L10 is new, with a train document, and others are gone."""
    world = ToyWorld.make()
    rows = {row["uid"]: row for row in (*world.labels, MEADOW)}
    line_of = {uid: line for line, uid in enumerate(uids)}
    if "L10" in line_of:
        world.train.append({"uid": "D9999", "title": "meadow0", "content": "", "target_ind": [10]})
    for part in (world.train, world.test):
        for row in part:
            row["target_ind"] = sorted(line_of[f"L{i}"] for i in row["target_ind"] if f"L{i}" in line_of)
            row["target_rel"] = [1.0] * len(row["target_ind"])
        part[:] = [row for row in part if row["target_ind"]]
    return ToyWorld(world.train, world.test, [rows[uid] for uid in uids])


def renew_data(workspace: Workspace, world: ToyWorld, recipe: str = "ngame") -> None:
    """Replace the source files and run every stage before the classifier, with the encoder as it is."""
    world.write(workspace.raw("toy"))
    for stage in list(STAGES)[: list(STAGES).index("classifier")]:
        if stage != "encoder":
            run_stage(workspace, stage, "toy", recipe, refresh=True)


def refresh(workspace: Workspace, uids: list[str], recipe: str = "ngame") -> None:
    """Replace the labels, embed them with the present encoder, and refresh the classifier."""
    renew_data(workspace, relabelled(uids), recipe)
    run_stage(workspace, "classifier", "toy", recipe, refresh=True)


CHANGES = {
    "turned": TURNED,
    "a new one in the middle": ["L0", "L1", "L2", "L3", "L10", *(f"L{i}" for i in range(4, 10))],
    "the first one gone": [f"L{i}" for i in range(1, 10)],
    "turned, one new and one gone": [*TURNED[:3], "L10", *TURNED[4:]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_label_keeps_its_own_row_in_every_training(copied: Workspace, change: str) -> None:
    uids = CHANGES[change]
    before = {training: rows_of(copied, training) for training in TRAININGS}
    refresh(copied, uids)
    for training, old in before.items():
        new = rows_of(copied, training)
        assert len(new) == len(uids)
        for line, uid in enumerate(uids):
            if uid != "L10":
                np.testing.assert_array_equal(new[line], old[int(uid[1:])], err_msg=f"{uid} in {training!r}")


@pytest.mark.parametrize("change", [name for name, uids in CHANGES.items() if "L10" in uids])
def test_a_new_row_is_predicted_from_its_own_text_by_the_kept_rows_of_its_training(
    copied: Workspace, change: str
) -> None:
    uids = CHANGES[change]
    refresh(copied, uids)
    texts = open_embeddings(copied).labels_LD
    line, others = uids.index("L10"), [line for line, uid in enumerate(uids) if uid != "L10"]
    for training in TRAININGS:
        rows = rows_of(copied, training)
        expected = foreseen_rows(texts[[line]], texts[others], rows[others], unit=True)
        np.testing.assert_allclose(rows[line], expected[0], atol=1e-6)


def test_a_second_refresh_finds_rows_where_the_first_put_them(copied: Workspace) -> None:
    before = {training: rows_of(copied, training) for training in TRAININGS}
    for uids in (TURNED, TURNED[::-1]):
        refresh(copied, uids)
        assert open_tables(copied).labels()["uid"].to_list() == uids
    for training, old in before.items():
        own = [int(uid[1:]) for uid in TURNED[::-1]]
        np.testing.assert_array_equal(rows_of(copied, training), old[own])


def test_the_model_of_turned_labels_answers_as_before(copied: Workspace) -> None:
    texts = ["castle0 castle1 castle2", "saddle1 river2", "falcon3"]
    before = open_predictor(copied.folder("model", "toy", "ngame")).predict(texts, 2)
    refresh(copied, TURNED)
    for stage in ("scores", "fusion", "evaluation", "audit", "model"):
        run_stage(copied, stage, "toy", "ngame")
    after = open_predictor(copied.folder("model", "toy", "ngame")).predict(texts, 2)
    for old, new in zip(before, after, strict=True):
        assert (new[0].uid, new[0].title) == (old[0].uid, old[0].title)
        assert new[0].label == TURNED.index(new[0].uid)
    assert [row[0].title for row in after] == ["castle", after[1][0].title, "falcon"]
    assert {label.title for label in after[1]} == {"saddle", "river"}


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Workspace]:
    """Train a recipe up to its classifier, on an untrained encoder unless rows are trained with it; tests copy it."""

    @cache
    def train(recipe: str) -> Workspace:
        workspace, changes = make_workspace(tmp_path_factory.mktemp(recipe)), deepcopy(TOY_CHANGES)
        if recipe in JOINT:
            changes["encoder"]["epochs"], changes["classifier"]["epochs"] = 1.0, 0.0
        else:
            changes["encoder"]["epochs"], changes["classifier"]["epochs"] = 0.0, 2.0
        workspace.params.declare_experiment("toy", recipe, recipe, changes)
        run_until(workspace, "classifier", recipe)
        return workspace

    return train


@pytest.fixture
def trained_with(trained_once: Callable[[str], Workspace], tmp_path: Path) -> Callable[[str], Workspace]:
    """Return a copy of the workspace in which a recipe is trained."""
    return lambda recipe: Workspace(Path(shutil.copytree(trained_once(recipe).root, tmp_path / recipe)))


JOINT = ("renee", "unidec")
"""Recipes that train rows along with the encoder."""


@pytest.mark.parametrize("recipe", JOINT)
def test_a_refresh_keeps_rows_that_were_trained_with_the_encoder_with_their_labels(
    trained_with: Callable[[str], Workspace], recipe: str
) -> None:
    workspace = trained_with(recipe)
    before = rows_of(workspace, recipe=recipe)
    refresh(workspace, TURNED, recipe)
    np.testing.assert_array_equal(rows_of(workspace, recipe=recipe), before[[int(uid[1:]) for uid in TURNED]])


@pytest.mark.parametrize("recipe", JOINT)
@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_were_trained_with_the_encoder_are_refused_for_other_labels(
    trained_with: Callable[[str], Workspace], recipe: str, change: str
) -> None:
    """Without --refresh; also after a refresh, since which the older encoder is accepted."""
    workspace = trained_with(recipe)
    renew_data(workspace, relabelled(CHANGES[change]), recipe)
    with pytest.raises(MovedError, match="encoder out of date: corpus and tokens changed"):
        run_stage(workspace, "classifier", "toy", recipe)
    run_stage(workspace, "classifier", "toy", recipe, refresh=True)
    kept = rows_of(workspace, recipe=recipe)
    with pytest.raises(MovedError, match="rows trained along with the encoder") as caught:
        run_stage(workspace, "classifier", "toy", recipe, force=True)
    assert "--refresh" in caught.value.do
    np.testing.assert_array_equal(rows_of(workspace, recipe=recipe), kept)


NOISE = ("freq-ns", "adversarial")
"""Recipes that add the noise distribution at prediction: label frequencies, or a tree over labels."""


@pytest.mark.parametrize("recipe", NOISE)
@pytest.mark.parametrize("change", CHANGES)
def test_a_noise_distribution_over_other_labels_or_labels_in_another_order_is_refused(
    trained_with: Callable[[str], Workspace], recipe: str, change: str
) -> None:
    """The probability of a label is its own, on whatever line it is."""
    workspace = trained_with(recipe)
    before = artifacts.verify(workspace.folder("classifier", "toy", recipe))
    size = len(CHANGES[change])
    with pytest.raises(MovedError, match=f"{size} labels, and a noise distribution over 10 others or in another order"):
        refresh(workspace, CHANGES[change], recipe)
    assert artifacts.verify(workspace.folder("classifier", "toy", recipe)) == before


@pytest.mark.parametrize("recipe", NOISE)
def test_a_noise_distribution_over_the_same_labels_is_kept_when_documents_are_added(
    trained_with: Callable[[str], Workspace], recipe: str
) -> None:
    workspace, world = trained_with(recipe), ToyWorld.make()
    before = open_tables(workspace, recipe).noise()
    world.train.append({**world.train[0], "uid": "D9999", "title": "river1 castle3"})
    renew_data(workspace, world, recipe)
    run_stage(workspace, "classifier", "toy", recipe, refresh=True)
    after = open_tables(workspace, recipe).noise()
    assert before is not None and after is not None
    assert before.arrays().keys() == after.arrays().keys()
    for name, value in before.arrays().items():
        np.testing.assert_array_equal(after.arrays()[name], value)


def test_a_refresh_keeps_the_noise_distribution_of_each_training(tmp_path: Path) -> None:
    """The held-out trainings drew from the labels of other documents than the final one."""
    workspace, changes, world = make_workspace(tmp_path), deepcopy(TOY_CHANGES), ToyWorld.make()
    changes["encoder"]["epochs"], changes["classifier"]["epochs"], changes["classifier"]["refit"] = 0.0, 2.0, True
    workspace.params.declare_experiment("toy", "freq-ns", "freq-ns", changes)
    run_until(workspace, "classifier", "freq-ns")
    before = [open_tables(workspace, "freq-ns").noise(training) for training in TRAININGS]
    world.train.append({**world.train[0], "uid": "D9999", "title": "river1 castle3"})
    renew_data(workspace, world, "freq-ns")
    run_stage(workspace, "classifier", "toy", "freq-ns", refresh=True)
    after = [open_tables(workspace, "freq-ns").noise(training) for training in TRAININGS]
    old, new = (
        [{k: v.tolist() for k, v in noise.arrays().items()} for noise in all_ if noise] for all_ in (before, after)
    )
    assert new == old
    assert len(old) == len(TRAININGS)
    assert old[0] != old[1] != old[2] != old[0], "the trainings can be distinguished"


@pytest.mark.parametrize("change", CHANGES)
def test_a_noise_distribution_that_prediction_does_not_need_refuses_no_labels(
    trained_with: Callable[[str], Workspace], change: str
) -> None:
    """NCE learns scores without bias, so its distribution is only needed in training."""
    workspace = trained_with("nce")
    before = rows_of(workspace, recipe="nce")
    refresh(workspace, CHANGES[change], "nce")
    rows = rows_of(workspace, recipe="nce")
    for line, uid in enumerate(CHANGES[change]):
        if uid != "L10":
            np.testing.assert_array_equal(rows[line], before[int(uid[1:])])
    for stage in ("scores", "fusion", "evaluation"):
        run_stage(workspace, stage, "toy", "nce")
