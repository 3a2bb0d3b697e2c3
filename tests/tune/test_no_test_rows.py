"""Test documents have no influence on a study: with one or 40 that teach what is wrong, every figure is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Xc
from tests.conftest import ToyWorld, make_workspace
from tests.tune.conftest import fixed, noisy_world, record_of, write_space
from xc_core.chain import STAGES, Workspace
from xc_core.tune.space import TRIAL_STAGES

pytestmark = pytest.mark.chain

SPACE = {"classifier.table.lr": {"log": [0.001, 0.1]}, "fusion.rule.weight": [0.1, 1.0]}
SINGLE = {"classifier.table.lr": [0.001], "fusion.rule.weight": [0.1]}
FITTED = ("neighbours", "prototype", "label_words", "label_characters")
"""Scores that are fitted on documents. Those of ``ngame`` are not: they read label vectors, rows and counts. Label
trees are left out, because no two fits are equal."""
SHORT = fixed(
    encoder__epochs=1.0,
    classifier__table__lr=None,
    fusion__rule__weight=None,
    **{f"scores__{name}": name for name in FITTED},
)


def removed(world: ToyWorld) -> None:
    """Leave one test document, as few as there can be, and poison it."""
    world.test = world.test[:1]
    poisoned(world)


def poisoned(world: ToyWorld) -> None:
    """Give test documents the words of train documents and one that no other has, and all labels but the right ones."""
    for row, like in zip(world.test, world.train[::2], strict=False):
        row["title"], row["content"] = like["title"], like["content"].replace(like["title"], "poison")
        row["target_ind"] = [label for label in range(len(world.labels)) if label not in like["target_ind"]]
        row["target_rel"] = [1.0] * len(row["target_ind"])


def learnt_from(world: ToyWorld) -> None:
    """Change train documents instead: figures have to differ, otherwise this test could not fail."""
    for row in world.train[::3]:
        row["target_ind"], row["target_rel"] = [0], [1.0]


def study(
    xc: Xc, root: Path, change: Callable[[ToyWorld], None], sampler: str, monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    world = noisy_world()
    change(world)
    monkeypatch.setenv("XC_ROOT", str(root))
    workspace = make_workspace(root, world)
    space = write_space(root / "space.yaml", SPACE if sampler == "tpe" else SINGLE)
    how = ("--sampler", sampler, "--trials", "2")
    ended = xc("tune", "--dataset", "toy", "--recipe", "ngame", "--space", space, *how, *SHORT)
    assert ended.code == 0, ended.err
    assert_no_later_stage(workspace)
    trials = record_of(workspace).trials
    return [(dict(own.values), own.value, dict(own.figures), dict(own.early), own.gains) for own in trials]


def assert_no_later_stage(workspace: Workspace) -> None:
    """Fail if any stage of an experiment has a folder outside the study, or one after the fusion inside it."""
    made = {path.parent.name for path in workspace.root.rglob("manifest.json")}
    assert made - {"corpus", "tokens", "wordpiece", "minilm"} == {stage.name for stage in TRIAL_STAGES}
    assert not made & set(list(STAGES)[list(STAGES).index("fusion") + 1 :])


@pytest.mark.parametrize("sampler", ["tpe", "one-at-a-time"])
def test_without_test_rows_every_figure_is_the_same(
    xc: Xc, tmp_path: Path, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(world: ToyWorld) -> None:
        """Leave the world as it is."""

    plain = study(xc, tmp_path / "plain", nothing, sampler, monkeypatch)
    assert [bool(gains) for *_, gains in plain] == [False, sampler != "tpe"]
    assert study(xc, tmp_path / "removed", removed, sampler, monkeypatch) == plain
    assert study(xc, tmp_path / "poisoned", poisoned, sampler, monkeypatch) == plain
    assert study(xc, tmp_path / "learnt", learnt_from, sampler, monkeypatch) != plain
