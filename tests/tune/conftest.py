"""A world in which figures differ between settings, trained once, and ``xc tune`` on copies of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from tests.cli.conftest import Ended, Xc, settings_of
from tests.cli.conftest import xc as xc
from tests.conftest import TOPICS, TOY_CHANGES, ToyWorld, make_workspace
from xc_core.chain import Workspace, run_stage
from xc_core.params import deep_merged
from xc_core.tune.record import StudyRecord, study_folder
from xc_core.tune.space import TRIAL_STAGES

LATE = {"fusion.rule.depth": [1, 2, 3, 7], "fusion.rule.weight": {"range": [0.0, 1.0]}}
"""A space of the last stage, whose trials take a second or less."""
CHANGES = deep_merged(TOY_CHANGES, {"fusion": {"fallback": False}})
"""The toy settings; without the fallback, so that the rule itself is what is judged."""
Tune = Callable[..., Ended]


def fixed(**others: Any) -> list[str]:
    """Return the toy settings as arguments of --set; ``others`` are by name, with __ for a dot, None drops one."""
    chosen = dict(setting.split("=", 1) for setting in settings_of(CHANGES))
    chosen |= {name.replace("__", "."): value for name, value in others.items()}
    return [part for name, value in chosen.items() if value is not None for part in ("--set", f"{name}={value}")]


def noisy_world() -> ToyWorld:
    """Return the toy world in which two labels of five are drawn at random, so nobody is always right."""
    world, draw = ToyWorld.make(), np.random.default_rng(0)
    for row in [*world.train, *world.test]:
        row["target_ind"] = sorted(
            {own if draw.random() < 0.6 else int(draw.integers(len(TOPICS))) for own in row["target_ind"]}
        )
        row["target_rel"] = [1.0] * len(row["target_ind"])
    return world


@pytest.fixture(scope="session")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The world with the experiment ngame, trained up to the fusion; tests only copy it."""
    workspace = make_workspace(tmp_path_factory.mktemp("noisy"), noisy_world())
    workspace.params.declare_experiment("toy", "ngame", "ngame", CHANGES)
    for name in ("corpus", "tokens", *(stage.name for stage in TRIAL_STAGES)):
        run_stage(workspace, name, "toy", "ngame")
    return workspace


@pytest.fixture
def project(noisy: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A copy of the trained world, to be changed."""
    monkeypatch.setenv("XC_ROOT", str(tmp_path / "project"))
    return Workspace(Path(shutil.copytree(noisy.root, tmp_path / "project")))


def write_space(path: Path, space: Any) -> Path:
    with path.open("w") as stream:
        YAML().dump(space, stream)
    return path


@pytest.fixture
def tune(xc: Xc, project: Workspace, tmp_path: Path) -> Tune:
    """Run ``xc tune`` on ngame with a space, given as a mapping, and the toy settings that it leaves free.

    What the stages report before an error is left out of its message.
    """

    def call(space: Any, *options: object, **others: Any) -> Ended:
        path = write_space(tmp_path / "space.yaml", space)
        settings = fixed(**{name.replace(".", "__"): None for name in space}, **others)
        ended = xc("tune", "--dataset", "toy", "--recipe", "ngame", "--space", path, *settings, *options)
        return replace(ended, err=f"xc: {ended.err.rpartition('xc: ')[2]}") if ended.code else ended

    return call


def record_of(workspace: Workspace, name: str = "ngame") -> StudyRecord:
    return StudyRecord.read(study_folder(workspace, "toy", name))


def seen(record: StudyRecord) -> list[tuple[Any, Any, Any]]:
    """Return what trials that count were and gave, in order."""
    return [(dict(trial.values), trial.value, dict(trial.figures)) for trial in record.ended]
