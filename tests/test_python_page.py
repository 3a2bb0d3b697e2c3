"""The Python of docs/python.md, and that of "Predictions of another program" in docs/add-a-method.md, runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from xc_core.chain import Workspace
from xc_core.metrics.evaluation import Evaluation

DOCS = Path(__file__).resolve().parents[1] / "docs"


def blocks(page: str) -> list[str]:
    """Return the Python of a page, of the toy dataset."""
    code = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.S | re.M)
    return [re.sub(r'"quick(-supcon)?"', '"ngame"', block).replace('"mine"', '"toy"') for block in code]


@pytest.fixture
def notebook(trained: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a notebook that was started in the project."""
    monkeypatch.setenv("XC_ROOT", str(trained.root))
    monkeypatch.chdir(tmp_path)
    return {}


def test_the_examples_for_notebooks_run(notebook: dict[str, Any], trained: Workspace, tmp_path: Path) -> None:
    for block in blocks("python.md"):
        exec(block, notebook)
    metrics = trained.open(Evaluation, "toy", "ngame").metrics
    assert dict(notebook["metrics"].select("metric", "percent").iter_rows()) == metrics
    assert json.loads((tmp_path / "leaderboard.json").read_text("utf-8"))[0]["recipe"] == "ngame"
    assert notebook["found"]["P_at_1"].points == 0, "the same recipe twice"
    assert {label.label for label in notebook["right"][0]} == set(notebook["true"])


def test_the_example_for_another_program_runs(notebook: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in blocks("add-a-method.md") if "Shortlist.of(" in block)
    exec(block, notebook)
    assert 0 < notebook["found"]["metrics"]["R_at_10"] <= 100
    assert "Difference(points=" in capsys.readouterr().out
