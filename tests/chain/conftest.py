"""Copies of the trained toy world that a test may change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xc_core.chain import Workspace


@pytest.fixture
def copied(trained: Workspace, tmp_path: Path) -> Workspace:
    """The trained workspace, to be changed."""
    shutil.copytree(trained.root, tmp_path / "copied")
    return Workspace(tmp_path / "copied")


@pytest.fixture
def edit() -> Callable[[Workspace, Any], None]:
    """Edit params.yaml as a user does, with an editor: the value of a dotted name is set."""
    from ruamel.yaml import YAML

    def set_value(workspace: Workspace, changes: dict[str, Any]) -> None:
        yaml, path = YAML(), workspace.root / "params.yaml"
        content = yaml.load(path.read_text())
        for name, value in changes.items():
            *parents, last = name.split("/")
            place = content
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        with path.open("w") as stream:
            yaml.dump(content, stream)

    return set_value


PARAMS = """\
# What the chain works on.
datasets:
  # the first one
  toy:
    corpus: {validation_fraction: 0.2}  # a fifth
    tokens: {}

# <dataset>_<recipe>: settings.
experiments:
  # the paper's
  toy_ngame:
    dataset: toy
    recipe: ngame
    base: ngame
    stages:
      encoder:
        epochs: 2  # a try
# the end
"""


@pytest.fixture
def bare(tmp_path: Path) -> Workspace:
    """A workspace with a params.yaml that has comments, and nothing else."""
    (tmp_path / "params.yaml").write_text(PARAMS)
    return Workspace(tmp_path)
