"""A workspace whose toy dataset is read and tokenised."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import make_workspace
from xc_core.chain import Workspace, run_stage


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
