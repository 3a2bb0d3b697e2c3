"""A workspace whose params.yaml has comments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import make_workspace
from xc_core.chain import Workspace, run_stage

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


@pytest.fixture(scope="session")
def tokenised(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The toy dataset, read and tokenised; tests copy it."""
    workspace = make_workspace(tmp_path_factory.mktemp("tokenised"))
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    return workspace


@pytest.fixture
def ready(tokenised: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the toy dataset, read and tokenised."""
    return Workspace(Path(shutil.copytree(tokenised.root, tmp_path, dirs_exist_ok=True)))
