"""Test documents have no influence on a study: without them, or with others instead, every figure is the same."""

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
SHORT = fixed(encoder__epochs=1.0, classifier__table__lr=None, fusion__rule__weight=None)


def removed(world: ToyWorld) -> None:
    """Leave one test document of 40."""
    world.test = world.test[:1]


def garbled(world: ToyWorld) -> None:
    """Give test documents other words and other labels."""
    for number, row in enumerate(world.test):
        row["title"], row["content"] = f"word{number}", "nothing that any other document says " * (number % 3)
        row["target_ind"], row["target_rel"] = [number % 10], [1.0]


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
    assert study(xc, tmp_path / "garbled", garbled, sampler, monkeypatch) == plain
    assert study(xc, tmp_path / "learnt", learnt_from, sampler, monkeypatch) != plain
