"""A workspace whose params.yaml has comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from xc_core.chain import Workspace

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
